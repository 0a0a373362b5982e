"""Operands for single PTX instructions, by name and without storing them: the same on the device and in the replay.

Contract: `draw(kinds, family)` gives one array an operand (uint32, or uint64 for 64-bit kinds), all of one length.
Random bits are Philox's raw words, which no NumPy release may change; nothing goes through a distribution's code.

Families: `edges` (every combination of corner values, thinned to LIMIT rows; no NaN), `nan` (the same with a NaN in at
least one operand), `random` (bits over all magnitudes), `near` (f32: cancellation, ties, products and sums around the
smallest normal and the largest number), `moderate` (dot products without special values), `codes` (each upper half of
an f32 with lower halves around a tie), `halves` (each tie between two fp16 codes and both its neighbours), `exhaustive`
(all 2^16 values of a 16-bit register), `by_zero` (divisors that are zero, where PTX says nothing), `uniform` (lanes
exchange with the sizes compilers use).
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
LIMIT = 12288  # rows of edges and nan
ROWS = 4096  # of random
NEAR = 8192

F32 = [
    *(0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000),
    *(0x0B800000, 0x1F800000, 0x20000000, 0x33000000, 0x33800000, 0x33800001, 0x34000000, 0x3EFFFFFF, 0x3F000000),
    *(0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40000000, 0x40400000, 0x40490FDB, 0x42FC0000, 0x43000000),
    *(0x4B000000, 0x4B400000, 0x4B7FFFFF, 0x4B800000, 0x4EFFFFFF, 0x4F000000, 0x4F800000, 0x5F000000, 0x5F800000),
    *(0x7E800000, 0x7EFFFFFF, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000),
]
F32_NAN = [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7FA5A5A5, 0xFFDEADBE]
F16 = [
    0,
    1,
    2,
    0x200,
    0x3FF,
    0x400,
    0x401,
    0x1400,
    0x3555,
    0x3BFF,
    0x3C00,
    0x3C01,
    0x4000,
    0x4248,
    0x6400,
    0x7BFF,
    0x7C00,
]
F16_NAN = [0x7E00, 0xFE00, 0x7FFF, 0x7C01, 0xFC01, 0xFEAD]
BF16 = [0, 1, 2, 0x40, 0x7F, 0x80, 0x81, 0x3380, 0x3F7F, 0x3F80, 0x3F81, 0x4000, 0x4049, 0x4B40, 0x7F00, 0x7F7F, 0x7F80]
BF16_NAN = [0x7FC0, 0xFFC0, 0x7FFF, 0x7F81, 0xFF81, 0xFFEA]
INTEGERS = [
    *(0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 32767, 32768, 32769, 65535, 65536),
    *(2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1, 0x55555555, 0xAAAAAAAA, 0x12345678, 0xDEADBEEF),
]
WIDE = [2**32, 2**32 + 1, 2**33 - 1, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, 0x0123456789ABCDEF]
BITS = {
    **dict.fromkeys(("s8", "u8", "b16", "s16", "u16", "f16", "bf16", "e4m3x2", "e5m2x2"), 16),
    **dict.fromkeys(("b32", "s32", "u32", "f32", "f16x2", "bf16x2", "shift", "lane", "clamp"), 32),
    **dict.fromkeys(("b64", "s64", "u64", "f64"), 64),
    **dict.fromkeys(("divisor_s16", "divisor_u16"), 16),
    **dict.fromkeys(("divisor_s32", "divisor_u32"), 32),
    **dict.fromkeys(("divisor_s64", "divisor_u64"), 64),
    **dict.fromkeys(("sparse_bf16x2", "sparse_f16x2", "sparse_e4m3x4", "sparse_e5m2x4", "sparse_f32"), 32),
    "pred": 1,
}
FLOATS = {"f32", "f16", "bf16", "f16x2", "bf16x2"}


def raw(name: str, rows: int) -> Words:
    """Return `rows` random 64-bit words that depend on the name alone."""
    return np.random.Philox(key=zlib.crc32(name.encode())).random_raw(rows)


def _signed(values: list[int], bit: int) -> list[int]:
    return [*values, *(value | 1 << bit for value in values)]


def _pairs(values: list[int], every: int) -> list[int]:
    return [low | high << 16 for low, high in list(itertools.product(values, values))[::every]]


def edges(kind: str) -> list[int]:
    """Return the corner values of one operand, without NaN."""
    if kind == "f32":
        return _signed(F32, 31)
    if kind in ("f16", "bf16"):
        return _signed(F16 if kind == "f16" else BF16, 15)
    if kind in ("f16x2", "bf16x2"):
        return _pairs(_signed(F16 if kind == "f16x2" else BF16, 15), 11)
    if kind == "pred":
        return [0, 1]
    if kind == "shift":
        return [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 255, 256, 257, 2**31, 2**32 - 1]
    bits = BITS[kind]
    values = sorted({value & (1 << bits) - 1 for value in (INTEGERS + WIDE if bits == 64 else INTEGERS)})
    values = sorted({*values, *((1 << bits) - value & (1 << bits) - 1 for value in (1, 2, 3, 128, 129))})
    return [value for value in values if value or not kind.startswith("divisor")]


def nans(kind: str) -> list[int]:
    """Return NaN patterns of one operand; empty for kinds that have none."""
    if kind == "f32":
        return F32_NAN
    if kind in ("f16", "bf16"):
        return F16_NAN if kind == "f16" else BF16_NAN
    if kind in ("f16x2", "bf16x2"):
        codes, plain = (F16_NAN, F16) if kind == "f16x2" else (BF16_NAN, BF16)
        return [*_pairs(codes, 5), *(low | code << 16 for low in plain[::4] for code in codes[::2])]
    return []


def _product(columns: list[list[int]], name: str) -> list[Words]:
    size = int(np.prod([len(column) for column in columns], dtype=object))
    rows = np.arange(size, dtype=np.uint64) if size <= LIMIT else raw(name, LIMIT) % np.uint64(size)
    out = []
    for column in reversed(columns):
        out.append(np.array(column, np.uint64)[(rows % np.uint64(len(column))).astype(np.int64)])
        rows = rows // np.uint64(len(column))
    return out[::-1]


def _f32_random(name: str, rows: int) -> Words:
    """Return f32 patterns, never NaN: half over all exponents, half within 2^-8 ... 2^7, some with short fractions."""
    bits, choice = raw(name, rows), raw(name + "/choice", rows)
    exponent = np.where(choice & 1, bits >> 23 & 0xFF, 119 + (bits >> 23 & 15))
    exponent = np.minimum(exponent, 254)
    fraction = np.where(choice & 6, bits & 0x7FFFFF, bits & 0x7FFFFF & ~(np.uint64(0x7FFFFF) >> (choice >> 8 & 15)))
    return (bits >> 63 << 31 | exponent << 23 | fraction).astype(np.uint64)


def random(kind: str, name: str, rows: int = ROWS) -> Words:
    """Return random operands of one kind over all magnitudes; no NaN among f32, some among 16-bit floats."""
    if kind == "f32":
        return _f32_random(name, rows)
    bits, choice = raw(name, rows), raw(name + "/choice", rows)
    if kind == "pred":
        return bits >> 63
    if kind == "shift":
        return np.where(choice & 7, bits & 63, bits & 0xFFFFFFFF).astype(np.uint64)
    if kind in FLOATS or kind in ("e4m3x2", "e5m2x2"):
        return bits & np.uint64((1 << BITS[kind]) - 1)
    width = BITS[kind]
    mask = np.uint64((1 << width) - 1)
    values = (bits & mask) >> (choice % np.uint64(width))
    values = np.where(choice >> 32 & 1, (~values + np.uint64(1)) & mask, values).astype(np.uint64)
    return np.maximum(values, np.uint64(1)) if kind.startswith("divisor") else values


def _sparse(kind: str, name: str, rows: int, special: bool) -> Words:
    """Return operands of dot products: values around 1, and with `special` one in 32 that is not (f32: in 8)."""
    bits = raw(name, rows)
    if kind.endswith("x4"):  # without the exponent's top bit fp8 codes are finite and below 2
        plain = bits & np.uint64(0xBFBFBFBF)
        return np.where(bits >> np.uint64(60) == 0, bits & 0xFFFFFFFF, plain).astype(np.uint64) if special else plain
    scalar = kind.removeprefix("sparse_").removesuffix("x2")
    out = np.zeros(rows, np.uint64)
    corners = np.array([*edges(scalar) * 8, *nans(scalar) * 2], np.uint64)
    bias, fraction = {"f32": (127, 23), "bf16": (127, 7), "f16": (15, 10)}[scalar]
    for half in range(2 if kind.endswith("x2") else 1):
        x = raw(f"{name}/{half}", rows)
        exponent = np.uint64(bias - 5) + (x >> np.uint64(50) & np.uint64(7))
        sign, tail = (x & 1) << np.uint64(BITS[scalar] - 1), x >> np.uint64(8) & np.uint64((1 << fraction) - 1)
        code = sign | exponent << np.uint64(fraction) | tail
        code = np.where(x >> np.uint64(62) == 0, np.uint64(0), code) if scalar != "f32" else code
        rare = (x >> np.uint64(53) & np.uint64(7 if scalar == "f32" else 31)) == 0
        if special:
            chosen = (x >> np.uint64(8) & np.uint64(0xFFFF)).astype(np.int64) % len(corners)
            code = np.where(rare, corners[chosen], code)
        out |= code << np.uint64(16 * half)
    return out


def _near(count: int, name: str) -> list[Words]:
    """Return f32 operands whose sums, products and fused sums lie where rounding and flushing are decided."""
    a = _f32_random(name + "/a", NEAR).astype(np.int64)
    b = _f32_random(name + "/b", NEAR).astype(np.int64)
    pick = raw(name + "/pick", NEAR).astype(np.int64)
    mode, step = np.arange(NEAR) % 4, (pick & 7) - 4
    a_exponent = np.clip(a >> 23 & 0xFF, 30, 224)
    a = np.where(mode > 1, a & ~(0xFF << 23) | a_exponent << 23, a)
    cancelling = np.where((a & 0x7FFFFFFF) >= 8, (a ^ 1 << 31) + step, a ^ 1 << 31)
    cancelling = np.where((cancelling & 0x7F800000) == 0x7F800000, a ^ 1 << 31, cancelling)
    shifted = np.clip((a >> 23 & 0xFF) - 20 - (pick >> 8 & 7), 0, 254) << 23 | b & 0x80400001
    small = np.clip(254 - 152 + (pick >> 8) % 30 - (a >> 23 & 0xFF), 1, 254) << 23 | b & 0x807FFFFF
    large = np.clip(254 + 126 + (pick >> 8 & 3) - (a >> 23 & 0xFF), 1, 254) << 23 | b & 0x807FFFFF
    b = np.choose(mode, [cancelling, shifted, small, large])
    operands = [a, b]
    if count == 3:
        x, y = (t.astype(np.uint32).view(np.float32).astype(np.float64) for t in (a, b))
        with np.errstate(over="ignore", under="ignore"):
            product = (x * y).astype(np.float32)
        code = product.view(np.uint32).astype(np.int64)
        opposite = np.where((code & 0x7FFFFFFF) >= 8, (code ^ 1 << 31) + (pick >> 16 & 3) - 2, code ^ 1 << 31)
        far = np.clip((code >> 23 & 0xFF) + (pick >> 20) % 64 - 32, 0, 254) << 23 | pick >> 32 & 0x807F0001
        c = np.where(pick >> 28 & 1, opposite, far)
        operands.append(np.where((c & 0x7F800000) == 0x7F800000, c & 0x80000000, c))
    return [t.astype(np.uint64) for t in operands]


def _codes(family: str) -> Words:
    if family == "codes":
        lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint64)
        return (np.arange(1 << 16, dtype=np.uint64)[:, None] << np.uint64(16) | lows).ravel()
    codes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((codes[1:] + codes[:-1]) / 2).astype(np.float32)  # 12 significant bits: exact
    ties = np.concatenate([ties, np.array([65520.0], np.float32)]).view(np.uint32).astype(np.int64)
    around = np.concatenate([ties - 1, ties, ties + 1])
    return np.concatenate([around, around | 1 << 31]).astype(np.uint64)


def _lanes(kinds: tuple[str, ...], name: str) -> list[Words]:
    """Return operands of exchanges whose second and third operand is the same in a warp, as compilers write them."""
    warps = ROWS // 32
    out = [random("b32" if kind in ("lane", "clamp") else kind, f"{name}/{i}") for i, kind in enumerate(kinds)]
    width = np.uint64(1) << raw(name + "/width", warps) % np.uint64(6)
    for i, kind in enumerate(kinds):
        if kind == "lane":
            out[i] = np.repeat(raw(name + "/lane", warps) % np.uint64(33), 32)
        elif kind == "clamp":
            low = np.where(raw(name + "/up", warps) & 1, np.uint64(31), np.uint64(0))
            out[i] = np.repeat((np.uint64(32) - width) << np.uint64(8) | low, 32)
    return out


def draw(kinds: tuple[str, ...], family: str) -> list[Words]:
    """Return the operands of a family, one array each.

    Raises
    ------
    ValueError
        An unknown family.
    """
    name = "/".join([*kinds, family])
    if family == "edges":
        return _product([edges(kind) for kind in kinds], name)
    if family == "nan":
        columns = [[*nans(kind), *edges(kind)[:: 1 if len(kinds) < 3 else 3]] for kind in kinds]
        operands = _product(columns, name)
        is_nan = [np.isin(x, np.array(nans(kind), np.uint64)) for kind, x in zip(kinds, operands, strict=True)]
        keep = np.logical_or.reduce(is_nan)
        return [x[keep] for x in operands]
    if family in ("random", "moderate") and any(kind.startswith("sparse") for kind in kinds):
        return [_sparse(kind, f"{name}/{i}", 4 * ROWS, family == "random") for i, kind in enumerate(kinds)]
    if family == "random":
        return [random(kind, f"{name}/{i}") for i, kind in enumerate(kinds)]
    if family == "near":
        return _near(len(kinds), name)
    if family in ("codes", "halves"):
        first = _codes(family)
        return [np.roll(first, 4099 * i) for i in range(len(kinds))]
    if family == "exhaustive":
        return [np.arange(1 << 16, dtype=np.uint64)]
    if family == "by_zero":
        values = [random(kind.removeprefix("divisor_"), f"{name}/{i}", 256) for i, kind in enumerate(kinds)]
        return [np.zeros_like(x) if kind.startswith("divisor") else x for kind, x in zip(kinds, values, strict=True)]
    if family == "uniform":
        return _lanes(kinds, name)
    raise ValueError(f"no family {family!r}")


def families(kinds: tuple[str, ...], extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the families that suit an instruction with these operands, `extra` ones last."""
    if len(kinds) == 1 and BITS[kinds[0]] == 16:
        return ("exhaustive", *extra)
    names = ["edges", "random"]
    if any(kind in FLOATS for kind in kinds):
        names.append("nan")
    if len(kinds) > 1 and set(kinds) == {"f32"}:
        names.append("near")
    if any(kind.startswith("divisor") for kind in kinds):
        names.append("by_zero")
    return (*names, *extra)
