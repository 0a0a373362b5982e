"""Integer and bit instructions of PTX, read from the ISA one by one and computed on Python's integers.

Contract: `answer(opcode, values)` returns the results as bit patterns, or None where the opcode is not one of these.
Operands are bit patterns; an operand of a signed type is read as two's complement. Where PTX leaves an answer open
(division by zero) it is what an H200 gives (tests/golden/opcodes_h200.json).
"""

from __future__ import annotations

import re

SIZE = {f"{letter}{bits}": bits for letter in "sub" for bits in (8, 16, 32, 64)} | {"pred": 1}


def signed(value: int, bits: int) -> int:
    """Read the low bits as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def read(value: int, kind: str) -> int:
    """Read an operand of a type."""
    return signed(value, SIZE[kind]) if kind[0] == "s" else value & (1 << SIZE[kind]) - 1


def limits(kind: str) -> tuple[int, int]:
    """Return the smallest and the largest value of a type."""
    bits = SIZE[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def clamp(value: int, kind: str) -> int:
    """Return the nearest value of a type."""
    low, high = limits(kind)
    return min(max(value, low), high)


def compare(relation: str, x: int, y: int) -> bool:
    """Return eq ... of integers; lo, ls, hi, hs are the unsigned spellings."""
    relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(relation, relation)
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[relation]


def combine(relation: str, first: bool, second: bool) -> bool:
    """Combine a comparison with a predicate."""
    return {"and": first and second, "or": first or second, "xor": first != second}[relation]


def _divide(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _pieces(value: int, width: int, kind: str) -> list[int]:
    pieces = [value >> i & (1 << width) - 1 for i in range(0, 32, width)]
    return [signed(piece, width) for piece in pieces] if kind[0] == "s" else pieces


def _halves(operation: str, relu: bool, kind: str, a: int, b: int) -> int:
    result = 0
    for i, (x, y) in enumerate(zip(_pieces(a, 16, kind), _pieces(b, 16, kind), strict=True)):
        value = {"add": x + y, "min": min(x, y), "max": max(x, y)}[operation]
        result |= (max(value, 0) if relu else value) % (1 << 16) << 16 * i
    return result


def permute(mode: str, a: int, b: int, c: int) -> int:
    """Pick four of eight bytes, as prmt does."""
    source = [(a | b << 32) >> 8 * i & 255 for i in range(8)]
    at = c & 3
    if not mode:
        picks = [c >> 4 * i & 15 for i in range(4)]
    else:
        picks = {
            "f4e": [at + i for i in range(4)],
            "b4e": [(at - i) % 8 for i in range(4)],
            "rc8": [at] * 4,
            "ecl": [max(i, at) for i in range(4)],
            "ecr": [min(i, at) for i in range(4)],
            "rc16": [2 * (at & 1) + (i & 1) for i in range(4)],
        }[mode]
    result = 0
    for i, pick in enumerate(picks):
        byte = source[pick & 7]
        if not mode and pick & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << 8 * i
    return result


def _find(x: int, bits: int, signed_kind: bool, shift_amount: bool) -> int:
    if signed_kind and x < 0:
        x = ~x
    if x == 0:
        return 0xFFFFFFFF
    position = x.bit_length() - 1
    return bits - 1 - position if shift_amount else position


def _extract(x: int, position: int, length: int, kind: str) -> int:
    """bfe: the field's sign is the operand's bit at the field's end, or its top bit where the field reaches beyond."""
    bits = SIZE[kind]
    if bits == 32:  # the ISA says 0 ... 255 for both sizes; an H200 reads all 32 bits where the field is of 64
        position, length = position & 255, length & 255
    if length == 0:
        return 0
    pattern = x & (1 << bits) - 1
    fill = kind[0] == "s" and pattern >> min(position + length - 1, bits - 1) & 1
    inside = [position + i < bits and i < length for i in range(bits)]
    return sum((pattern >> position + i & 1 if inside[i] else int(fill)) << i for i in range(bits))


def _insert(a: int, b: int, position: int, length: int, bits: int) -> int:
    if bits == 32:
        position, length = position & 255, length & 255
    for i in range(position, min(position + length, bits)):
        b = b & ~(1 << i) | (a >> i - position & 1) << i
    return b


def _funnel(side: str, mode: str, a: int, b: int, c: int) -> int:
    n = min(c, 32) if mode == "clamp" else c & 31
    both = b << 32 | a
    return (both << n) >> 32 if side == "l" else both >> n


def _mask(mode: str, a: int, b: int) -> int:
    if mode == "wrap":
        a, b = a & 31, b & 31
    a, b = min(a, 32), min(b, 64)
    return sum(1 << i for i in range(a, min(a + b, 32)))


def _extend(mode: str, kind: str, a: int, n: int) -> int:
    """szext: keep n low bits, extended by sign or zero; of n >= 32 clamp keeps all, wrap takes n mod 32."""
    n = n & 31 if mode == "wrap" else min(n, 32)
    if n == 0:
        return 0
    value = a & (1 << n) - 1
    return signed(value, n) if kind[0] == "s" else value


def _logic(operation: str, bits: int, values: tuple[int, ...]) -> int:
    if operation == "not":
        return ~values[0]
    if operation == "cnot":
        return int(values[0] & (1 << bits) - 1 == 0)
    x, y = values
    return {"and": x & y, "or": x | y, "xor": x ^ y}[operation]


def answer(opcode: str, values: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the results of one lane, or None where the opcode is not for integers."""
    operation, *words = opcode.split(".")
    if operation in ("prmt", "lop3", "shf", "bmsk", "szext", "dp2a", "dp4a"):
        return (_special(operation, words, values) % (1 << 32),)
    if operation == "slct":
        return (values[0] if signed(values[2], 32) >= 0 else values[1],)
    kind = words[-1]
    if kind in ("s16x2", "u16x2"):
        return (_halves(operation, "relu" in words, kind, *values),)
    if kind not in SIZE or (operation == "cvt" and words[-2] not in SIZE):
        return None
    bits = SIZE[kind]
    if operation == "mov":
        return (values[0],) if len(values) == 1 else None
    if operation == "selp":
        return (values[0] if values[2] else values[1],)
    if operation in ("and", "or", "xor", "not", "cnot"):
        return (_logic(operation, bits, values) % (1 << bits),)
    if operation == "setp":
        x, y = (read(value, kind) for value in values[:2])
        result = compare(words[0], x, y)
        return (int(combine(words[1], result, bool(values[2])) if len(values) == 3 else result),)
    return _arithmetic(operation, words, kind, values)


def _special(operation: str, words: list[str], values: tuple[int, ...]) -> int:
    if operation == "prmt":
        return permute("".join(words[1:]), *values)
    if operation == "lop3":
        a, b, c, table = values
        return sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))
    if operation == "shf":
        return _funnel(words[0], words[1], *values)
    if operation == "bmsk":
        return _mask(words[0], *values)
    if operation == "szext":
        return _extend(words[0], words[1], *values)
    a_kind, b_kind = words[-2:]
    a, b, c = values
    if operation == "dp4a":
        products = zip(_pieces(a, 8, a_kind), _pieces(b, 8, b_kind), strict=True)
    else:
        low = _pieces(b, 8, b_kind)
        products = zip(_pieces(a, 16, a_kind), low[:2] if words[0] == "lo" else low[2:], strict=True)
    return c + sum(x * y for x, y in products)


def _arithmetic(operation: str, words: list[str], kind: str, values: tuple[int, ...]) -> tuple[int, ...] | None:
    bits = SIZE[kind]
    if operation in ("shl", "shr"):
        x, count = read(values[0], kind), min(values[1], bits)
        return ((x << count if operation == "shl" else x >> count) % (1 << bits),)
    if operation in ("popc", "clz", "brev", "bfind"):
        x = read(values[0], kind)
        pattern = x % (1 << bits)
        if operation == "bfind":
            return (_find(x, bits, kind[0] == "s", "shiftamt" in words),)
        if operation == "brev":
            return (int(f"{pattern:0{bits}b}"[::-1], 2),)
        return (pattern.bit_count() if operation == "popc" else bits - pattern.bit_length(),)
    if operation == "bfe":
        return (_extract(values[0], values[1], values[2], kind),)
    if operation == "bfi":
        return (_insert(*values, bits) % (1 << bits),)
    if operation == "cvt":
        to = words[-2]
        x = read(values[0], kind)
        x = clamp(x, to) if words[0] == "sat" else read(x, to)
        return (x % (1 << max(SIZE[to], 16)),)  # an 8-bit result fills the 16 bits of its register
    x, *rest = [read(value, kind) for value in values]
    if operation in ("abs", "neg"):
        return ((abs(x) if operation == "abs" else -x) % (1 << bits),)
    y = rest[0]
    if operation in ("add", "sub"):
        value = x + y if operation == "add" else x - y
        return ((clamp(value, kind) if words[0] == "sat" else value) % (1 << bits),)
    if operation in ("min", "max"):
        value = min(x, y) if operation == "min" else max(x, y)
        return ((max(value, 0) if words[0] == "relu" else value) % (1 << bits),)
    if operation in ("div", "rem"):
        if y == 0:
            return ((1 << bits) - 1,)
        quotient = _divide(x, y)
        return ((quotient if operation == "div" else x - quotient * y) % (1 << bits),)
    if operation == "sad":
        return ((abs(x - y) + rest[1]) % (1 << bits),)
    if operation in ("mul", "mad") and re.fullmatch("lo|hi|wide", words[0]):
        product = x * y
        if words[0] == "wide":
            third = read(values[2], f"{kind[0]}{2 * bits}") if operation == "mad" else 0
            return ((product + third) % (1 << 2 * bits),)
        part = product >> bits if words[0] == "hi" else product
        if operation == "mad":
            part += rest[1]
        if "sat" in words:
            part = clamp(part, kind)
        return (part % (1 << bits),)
    return None
