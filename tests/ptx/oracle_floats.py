"""Floating-point instructions of PTX, read from the ISA one by one and computed on exact fractions.

Contract: `answer(opcode, values)` returns the results as bit patterns, or None where the opcode is not one of these or
only approximates. One rounding an operation; a NaN result is all ones but the sign, as PTX says for fp32 and an H200
gives elsewhere. `.ftz` takes subnormal operands as zeros of their sign and results likewise.
"""

from __future__ import annotations

from fractions import Fraction

from .oracle_integers import SIZE, combine, limits
from .oracle_numbers import FORMATS, Format, Number, cut, decode, encode, negative, root

F32 = FORMATS["f32"]
INFINITIES = ("inf", "-inf")
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


def _sign(value: Number, is_negative: bool) -> int:
    return -1 if is_negative or value == "-inf" else 1


def _add(x: Number, y: Number) -> Number:
    if "nan" in (x, y) or {x, y} == set(INFINITIES):
        return "nan"
    for value in (x, y):
        if value in INFINITIES:
            return value
    return x + y  # type: ignore[operator,return-value]


def _multiply(x: Number, y: Number, signs: int) -> Number:
    if "nan" in (x, y):
        return "nan"
    if x in INFINITIES or y in INFINITIES:
        if x == 0 or y == 0:
            return "nan"
        return "-inf" if signs < 0 else "inf"
    return x * y  # type: ignore[operator,return-value]


def flush(code: int, form: Format) -> int:
    """Return a zero of the same sign for a subnormal code."""
    return code & form.sign if code & form.sign - 1 < 1 << form.fraction else code


def rounded(value: Number, form: Format, mode: str, zero_negative: bool, ftz: bool) -> int:
    """Round a result once; with ftz, flush what rounds to less than the smallest normal with the exponent unbounded."""
    code = encode(value, form, mode, zero_negative)
    if ftz and isinstance(value, Fraction) and value != 0 and not encode(value, form, mode, unbounded=True):
        return form.sign if value < 0 else 0
    return code


def fused(form: Format, mode: str, ftz: bool, a: int, b: int, c: int | None, c_form: Format | None = None) -> int:
    """Return a * b + c, rounded once to the format of c; without c the product alone."""
    to = c_form or form
    if ftz:
        a, b = flush(a, form), flush(b, form)
        c = None if c is None else flush(c, to)
    x, y = decode(a, form), decode(b, form)
    signs = _sign(x, negative(a, form)) * _sign(y, negative(b, form))
    product = _multiply(x, y, signs)
    if c is None:
        return rounded(product, to, mode, signs < 0, ftz)
    z = decode(c, to)
    # Two zeros of one sign keep it; any other exact zero is positive, but negative where rounding goes down.
    zero_negative = mode == "rm"
    if product == 0 and z == 0 and (signs < 0) == negative(c, to):
        zero_negative = signs < 0
    return rounded(_add(product, z), to, mode, zero_negative, ftz)


def saturated(code: int, form: Format = F32) -> int:
    """Clamp a result to [0, 1]; NaN becomes +0."""
    value = decode(code, form)
    if value == "nan" or negative(code, form):
        return 0
    return _one(form) if value == "inf" or value > 1 else code  # type: ignore[operator]


def divided(mode: str, ftz: bool, a: int, b: int) -> int:
    """Return a / b."""
    if ftz:
        a, b = flush(a, F32), flush(b, F32)
    x, y = decode(a, F32), decode(b, F32)
    minus = negative(a, F32) != negative(b, F32)
    if "nan" in (x, y) or (x == 0 and y == 0) or (x in INFINITIES and y in INFINITIES):
        return F32.nan
    if x in INFINITIES or y == 0:
        return F32.infinity | (F32.sign if minus else 0)
    if y in INFINITIES:
        return F32.sign if minus else 0
    return rounded(x / y, F32, mode, minus, ftz)  # type: ignore[operator]


def extreme(operation: str, words: list[str], form: Format, values: list[int]) -> int:
    """Return min or max: the operand that is no NaN, unless .NaN; -0 is below +0."""
    if "ftz" in words:
        values = [flush(value, form) for value in values]
    sign = 0
    if "xorsign" in words:
        sign = (values[0] ^ values[1]) & form.sign
        values = [value & form.sign - 1 for value in values]
    numbers = [value for value in values if decode(value, form) != "nan"]
    if not numbers or ("NaN" in words and len(numbers) < len(values)):
        return form.nan

    def order(code: int) -> tuple[Fraction, int]:
        value = decode(code, form)
        if isinstance(value, str):
            value = Fraction(2) ** 300 * (1 if value == "inf" else -1)
        return value, -int(negative(code, form))

    return (min if operation == "min" else max)(numbers, key=order) | sign


def compare(relation: str, form: Format, ftz: bool, a: int, b: int) -> bool:
    """Compare; relations with u are true of NaN."""
    if ftz:
        a, b = flush(a, form), flush(b, form)
    x, y = decode(a, form), decode(b, form)
    unordered = "nan" in (x, y)
    if relation in ("num", "nan"):
        return unordered == (relation == "nan")
    if unordered:
        return relation.endswith("u")
    huge = Fraction(2) ** 300
    x, y = (huge if v == "inf" else -huge if v == "-inf" else v for v in (x, y))
    assert isinstance(x, Fraction)
    assert isinstance(y, Fraction)
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[relation[:2]]


def narrowed(words: list[str], mode: str, to: Format, code: int, source: Format) -> int:
    """Convert between formats; satfinite and relu as the ISA says."""
    value = decode(flush(code, source) if "ftz" in words and source is F32 else code, source)
    result = rounded(value, to, mode, negative(code, source), "ftz" in words and to is F32)
    if "satfinite" in words and value != "nan" and result & to.sign - 1 >= to.infinity:
        result = result & to.sign | to.infinity - 1
    if "relu" in words and negative(result, to) and value != "nan":
        result = 0
    return saturated(result, to) if "sat" in words else result


def to_integer(words: list[str], to: str, mode: str, code: int, source: Format) -> int:
    """Convert to an integer, clamped to its range."""
    value = decode(flush(code, source) if "ftz" in words else code, source)
    low, high = limits(to)
    bits = max(SIZE[to], 16)
    if value == "nan":
        return 1 << 63 if SIZE[to] == 64 else 0  # the ISA says 0; an H200 gives this for 64 bits
    if value in INFINITIES:
        return (high if value == "inf" else low) % (1 << bits)
    assert isinstance(value, Fraction)
    return min(max(cut(value, mode), low), high) % (1 << bits)


def integral(words: list[str], mode: str, code: int) -> int:
    """Round an fp32 to an integer that is an fp32."""
    code = flush(code, F32) if "ftz" in words else code
    value = decode(code, F32)
    if isinstance(value, Fraction):
        return encode(Fraction(cut(value, mode)), F32, "rn", negative(code, F32)) | code & F32.sign
    return encode(value, F32)


def halves(code: int, width: int = 16) -> tuple[int, int]:
    """Return the low and the high part of a packed register."""
    return code & (1 << width) - 1, code >> width


def answer(opcode: str, values: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the results of one lane, or None where the opcode is not for floating point or not exact."""
    operation, *words = opcode.split(".")
    kind = words[-1]
    if "approx" in words or "full" in words:
        return None
    if operation == "cvt":
        return _convert(words, values)
    if operation in ("selp", "mov", "slct"):
        return None
    if kind in ("f16x2", "bf16x2") and operation not in ("setp",):
        scalar = ".".join([operation, *words[:-1], kind[:-2]])
        parts = [answer(scalar, tuple(halves(value)[i] for value in values)) for i in (0, 1)]
        return None if None in parts else (parts[0][0] | parts[1][0] << 16,)  # type: ignore[index]
    if kind == "f32x2":
        scalar = ".".join([operation, *words[:-1], "f32"])
        parts = [answer(scalar, values[i::2]) for i in (0, 1)]
        return None if None in parts else (parts[0][0], parts[1][0])  # type: ignore[index]
    if kind not in ("f32", "f16", "bf16"):
        return None
    form = FORMATS[kind]
    ftz = "ftz" in words
    mode = next((word for word in words if word in ROUNDINGS), "rn")
    if len(words) > 1 and words[-2] == "f32" and operation in ("fma", "add", "sub"):  # mixed: fma.rn.f32.bf16
        return (_mixed(operation, mode, form, values),)
    if operation == "setp":
        result = compare(words[0], form, ftz, *values[:2])
        return (int(combine(words[1], result, bool(values[2])) if len(values) == 3 else result),)
    if operation == "testp":
        return (int(_test(words[0], values[0])),)
    if operation in ("min", "max"):
        return (extreme(operation, words, form, list(values)),)
    if operation in ("abs", "neg"):
        return (_signed_copy(operation, form, ftz, values[0]),)
    if operation == "copysign":
        return (values[0] & F32.sign | values[1] & F32.sign - 1,)
    if operation == "div":
        return (divided(mode, ftz, *values),)
    if operation == "rcp":
        return (divided(mode, ftz, 0x3F800000, *values),)
    if operation == "sqrt":
        return (_root(mode, ftz, values[0]),)
    result = _sum_or_product(operation, form, mode, ftz, values)
    if result is None:
        return None
    if "sat" in words:
        result = saturated(result)
    if "relu" in words and negative(result, form) and decode(result, form) != "nan":
        result = 0
    return (result,)


def _one(form: Format) -> int:
    return form.bias << form.fraction


def _sum_or_product(operation: str, form: Format, mode: str, ftz: bool, values: tuple[int, ...]) -> int | None:
    if operation in ("fma", "mad", "fms", "fnma"):
        a, b, c = values
        if operation == "fms":
            c ^= form.sign
        return fused(form, mode, ftz, a ^ form.sign if operation == "fnma" else a, b, c)
    if operation == "mul":
        return fused(form, mode, ftz, *values, None)
    if operation in ("add", "sub"):
        a, b = values
        return fused(form, mode, ftz, a, _one(form), b ^ form.sign if operation == "sub" else b)
    return None


def _mixed(operation: str, mode: str, form: Format, values: tuple[int, ...]) -> int:
    if operation == "fma":
        return fused(form, mode, False, *values, c_form=F32)
    a, c = values
    return fused(form, mode, False, a, _one(form), c ^ F32.sign if operation == "sub" else c, c_form=F32)


def _test(name: str, code: int) -> bool:
    value = decode(code, F32)
    subnormal = isinstance(value, Fraction) and 0 < abs(value) < Fraction(2) ** -126
    return {
        "finite": isinstance(value, Fraction),
        "infinite": value in INFINITIES,
        "number": value != "nan",
        "notanumber": value == "nan",
        "normal": isinstance(value, Fraction) and not subnormal,  # zero counts, on an H200
        "subnormal": subnormal,
    }[name]


def _signed_copy(operation: str, form: Format, ftz: bool, code: int) -> int:
    if decode(code, form) == "nan":
        return form.nan
    if ftz:
        code = flush(code, form)
    return code & form.sign - 1 if operation == "abs" else code ^ form.sign


def _root(mode: str, ftz: bool, code: int) -> int:
    code = flush(code, F32) if ftz else code
    value = decode(code, F32)
    if value == 0:
        return code
    if value == "inf":
        return F32.infinity
    if isinstance(value, str) or value < 0:
        return F32.nan
    return root(value, F32, mode)


def _convert(words: list[str], values: tuple[int, ...]) -> tuple[int, ...] | None:
    to, source = words[-2:]
    mode = next((word.removesuffix("i") for word in words if word.removesuffix("i") in ROUNDINGS), "rn")
    rounds_to_integer = any(word in ("rni", "rzi", "rmi", "rpi") for word in words)
    if to in ("bf16x2", "f16x2", "e4m3x2", "e5m2x2") and source == "f32":
        form = FORMATS[to[:-2]]
        high, low = (narrowed(words, mode, form, value, F32) for value in values)
        return (high << form.bits | low,)
    if source in ("e4m3x2", "e5m2x2", "f16x2"):
        form, narrow = FORMATS[to[:-2]], FORMATS[source[:-2]]
        low, high = (narrowed(words, mode, form, half, narrow) for half in halves(values[0], narrow.bits))
        return (high << form.bits | low,)
    if to == "tf32":
        if mode == "rna" and decode(values[0], F32) == "nan":
            return (values[0] & ~0x1FFF,)  # a NaN is cut like any number; other roundings make NVIDIA's of it
        return (narrowed(words, mode, FORMATS["tf32"], values[0], F32) << 13,)
    if source in FORMATS and to in SIZE:
        return (to_integer(words, to, mode, values[0], FORMATS[source]),)
    if source in SIZE and to in FORMATS:
        from .oracle_integers import read

        return (encode(Fraction(read(values[0], source)), FORMATS[to], mode),)
    if source == "bf16" and to == "f32":
        return (values[0] << 16,)  # also a NaN's bits: an H200 only shifts, the ISA leaves the payload open
    if source in FORMATS and to in FORMATS:
        if rounds_to_integer:
            result = integral(words, mode, values[0])
        else:
            result = narrowed(words, mode, FORMATS[to], values[0], FORMATS[source])
        return (saturated(result) if rounds_to_integer and "sat" in words else result,)
    return None
