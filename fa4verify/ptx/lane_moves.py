"""Lane operations that move, select, pack and convert without rounding.

Contract: `ENTRIES` as in `lane_integers`. Conversions between integers extend by the sign of the source's type; a
result narrower than its slot leaves zeros above (reading widens where the register asks for it).
cvt.f32.f16 keeps every value; a NaN becomes the device's. cvt.f32.bf16 appends 16 zeros, whatever the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fa4verify.ptx.lane_ir import FLOAT, I16, I32, I64, Lanes, vector
from fa4verify.ptx.operations import RANK_SHIFT

if TYPE_CHECKING:
    from fa4verify.ptx.lane_integers import Entry

ENTRIES: list[Entry] = []


def _same(_v: Lanes, x: Any) -> Any:
    return x


def _select(v: Lanes, x: Any, y: Any, p: Any) -> Any:
    return v.select(v.truth(p), x, y)


for _bits in (16, 32, 64):
    _kinds = [f"{letter}{_bits}" for letter in ("bsu" if _bits == 16 else "bsuf")]
    _b = f"b{_bits}"
    ENTRIES.append((tuple(f"mov.{kind}" for kind in _kinds), (_b,), (_b,), _same))
    ENTRIES.append((tuple(f"selp.{kind}" for kind in _kinds), (_b,), (_b, _b, "pred"), _select))


def _pack(element: Any) -> Any:
    """Parts, the lowest first, side by side."""

    def emit(v: Lanes, *parts: Any) -> Any:
        width = parts[0].type.element.width
        whole = v.zext(parts[0], vector(element))
        for i, part in enumerate(parts[1:], 1):
            whole = v.or_(whole, v.shl(v.zext(part, vector(element)), v.fill(vector(element), i * width)))
        return whole

    return emit


def _halves(v: Lanes, x: Any) -> tuple[Any, Any]:
    half = x.type.element.width // 2
    return v.widen(x, half, signed=False), v.widen(v.lshr(x, v.fill(x, half)), half, signed=False)


ENTRIES += [
    (("mov.b64.pack2",), ("b64",), ("b32", "b32"), _pack(I64)),
    (("mov.b64.unpack2",), ("b32", "b32"), ("b64",), _halves),
    (("mov.b32.pack2",), ("b32",), ("b16", "b16"), _pack(I32)),
    (("mov.b32.unpack2",), ("b16", "b16"), ("b32",), _halves),
    (("mov.b64.pack4",), ("b64",), ("b16",) * 4, _pack(I64)),
    (("mov.b16.pack2",), ("b16",), ("b8", "b8"), _pack(I16)),
]


def _integer(width: int, signed: bool) -> Any:
    return lambda v, x: v.widen(x, width, signed)


for _to in (8, 16, 32, 64):
    for _source in (8, 16, 32, 64):
        for _letter in "us":
            _names = tuple(f"cvt.{letter}{_to}.{_letter}{_source}" for letter in "us")
            if _to > _source or _letter == "u":  # cut or kept: the sign of the source does not matter
                if _to <= _source:
                    _names += tuple(f"cvt.{letter}{_to}.s{_source}" for letter in "us")
                ENTRIES.append((_names, (f"b{_to}",), (f"{_letter}{_source}",), _integer(_to, _letter == "s")))


def _from_integer(signed: bool) -> Any:
    return lambda v, x: (v.sitofp if signed else v.uitofp)(x, vector(FLOAT))


for _letter in "us":
    for _source in (8, 16, 32, 64):
        ENTRIES.append(
            ((f"cvt.rn.f32.{_letter}{_source}",), ("f32",), (f"{_letter}{_source}",), _from_integer(_letter == "s"))
        )


def _to_integer(name: str) -> Any:
    """Round to an integral value, then saturate; NaN gives 0 (PTX ISA, cvt)."""

    def emit(v: Lanes, x: Any, *, signed: bool) -> Any:
        whole = v.call(name, x)
        low, high = (-(2.0**31), 2.0**31) if signed else (0.0, 2.0**32)
        inside = v.and_(v.fcmp_ordered(">=", whole, v.fill(x, low)), v.fcmp_ordered("<", whole, v.fill(x, high)))
        safe = v.select(inside, whole, v.fill(x, 0.0))
        converted = v.fptosi(safe, vector(I32)) if signed else v.fptoui(safe, vector(I32))
        top = 0x7FFFFFFF if signed else 0xFFFFFFFF
        bottom = 0x80000000 if signed else 0
        converted = v.select(v.fcmp_ordered(">=", whole, v.fill(x, high)), v.fill(converted, top), converted)
        return v.select(v.fcmp_ordered("<", whole, v.fill(x, low)), v.fill(converted, bottom), converted)

    return emit


for _mode, _intrinsic in (("rzi", "trunc"), ("rni", "roundeven"), ("rmi", "floor"), ("rpi", "ceil")):
    for _letter in "us":
        _emit = _to_integer(_intrinsic)
        ENTRIES.append(
            (
                (f"cvt.{_mode}.{_letter}32.f32",),
                (f"{_letter}32",),
                ("f32",),
                lambda v, x, emit=_emit, signed=_letter == "s": emit(v, x, signed=signed),
            )
        )


def _from_half(v: Lanes, x: Any) -> Any:
    """Move exponent and fraction into place; 2^112 times that is the value, also of subnormals."""
    wide = v.zext(x, vector(I32))
    magnitude = v.shl(v.and_(wide, v.fill(wide, 0x7FFF)), v.fill(wide, 13))
    value = v.integers(v.fmul(v.floats(magnitude), v.fill(vector(FLOAT), 2.0**112)))
    special = v.icmp_unsigned(">=", magnitude, v.fill(magnitude, 0x7C00 << 13))
    value = v.select(special, v.or_(magnitude, v.fill(magnitude, 0x7F800000)), value)
    sign = v.shl(v.and_(wide, v.fill(wide, 0x8000)), v.fill(wide, 16))
    return v.canonical(v.floats(v.or_(value, sign)))


def bf16_value(v: Lanes, x: Any) -> Any:
    """Value of bf16 codes."""
    return v.floats(v.shl(v.zext(x, vector(I32)), v.fill(vector(I32), 16)))


half_value = _from_half
ENTRIES += [
    (("cvt.f32.f16",), ("f32",), ("f16",), half_value),
    (("cvt.f32.bf16",), ("f32",), ("bf16",), bf16_value),
]


def _round_whole(name: str) -> Any:
    return lambda v, x: v.canonical(v.call(name, x))


for _mode, _intrinsic in (("rzi", "trunc"), ("rni", "roundeven"), ("rmi", "floor"), ("rpi", "ceil")):
    ENTRIES.append(((f"cvt.{_mode}.f32.f32",), ("f32",), ("f32",), _round_whole(_intrinsic)))


def _map_address(v: Lanes, address: Any, rank: Any) -> Any:
    offset = v.and_(address, v.fill(address, (1 << RANK_SHIFT) - 1))
    return v.or_(offset, v.shl(rank, v.fill(rank, RANK_SHIFT)))


ENTRIES.append((("mapa.shared::cluster.u32",), ("b32",), ("b32", "b32"), _map_address))
