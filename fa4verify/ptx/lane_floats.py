"""Lane operations on fp32, as the processor's own vectors compute them: one rounding to nearest, subnormals kept.

Contract: `ENTRIES` as in `lane_integers`. Nothing is contracted: LLVM fuses only where the IR allows it, and it does
not. NaN results are 0x7FFFFFFF; max and min return the operand that is no NaN, and order -0 below +0 (PTX ISA, "max").
Directed rounding, flushing and MUFU are in `lane_functions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fa4verify.ptx.lane_moves import bf16_value, half_value

if TYPE_CHECKING:
    from fa4verify.ptx.lane_integers import Entry
    from fa4verify.ptx.lane_ir import Lanes

ENTRIES: list[Entry] = []


def _fma(v: Lanes, x: Any, y: Any, z: Any) -> Any:
    return v.canonical(v.call("fma", x, y, z))


def _extreme(greater: bool, nan: bool) -> Any:
    def emit(v: Lanes, x: Any, y: Any) -> Any:
        result = v.select(v.fcmp_ordered(">" if greater else "<", x, y), x, y)
        # Equal operands differ only where they are zeros of unlike sign.
        both = (v.and_ if greater else v.or_)(v.integers(x), v.integers(y))
        result = v.select(v.fcmp_ordered("==", x, y), v.floats(both), result)
        if nan:
            return v.canonical(v.select(v.fcmp_unordered("uno", x, x), x, result))
        return v.canonical(v.select(v.fcmp_unordered("uno", y, y), x, result))

    return emit


def _sign(operation: str, constant: int) -> Any:
    def emit(v: Lanes, x: Any) -> Any:
        integers = v.integers(x)
        return v.floats(getattr(v, operation)(integers, v.fill(integers, constant)))

    return emit


def _compare(symbol: str, ordered: bool) -> Any:
    return lambda v, x, y: v.word((v.fcmp_ordered if ordered else v.fcmp_unordered)(symbol, x, y))


for _kind in ("f32", "f32x2"):
    _two, _three = (_kind,) * 2, (_kind,) * 3
    for _name, _operation in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul")):
        ENTRIES.append(
            (
                (f"{_name}.{_kind}", f"{_name}.rn.{_kind}"),
                (_kind,),
                _two,
                lambda v, x, y, operation=_operation: v.canonical(getattr(v, operation)(x, y)),
            )
        )
    ENTRIES.append(((f"fma.rn.{_kind}",), (_kind,), _three, _fma))
    # What `contraction` makes of a difference with a product: a * b - c, and c - a * b.
    ENTRIES.append(((f"fms.rn.{_kind}",), (_kind,), _three, lambda v, x, y, z: _fma(v, x, y, v.fneg(z))))
    ENTRIES.append(((f"fnma.rn.{_kind}",), (_kind,), _three, lambda v, x, y, z: _fma(v, v.fneg(x), y, z)))

ENTRIES += [
    (("mad.rn.f32",), ("f32",), ("f32",) * 3, _fma),
    (
        ("fma.rn.f32.bf16",),
        ("f32",),
        ("bf16", "bf16", "f32"),
        lambda v, x, y, z: _fma(v, bf16_value(v, x), bf16_value(v, y), z),
    ),
    (
        ("fma.rn.f32.f16",),
        ("f32",),
        ("f16", "f16", "f32"),
        lambda v, x, y, z: _fma(v, half_value(v, x), half_value(v, y), z),
    ),
    (("div.rn.f32",), ("f32",), ("f32", "f32"), lambda v, x, y: v.canonical(v.fdiv(x, y))),
    (("rcp.rn.f32",), ("f32",), ("f32",), lambda v, x: v.canonical(v.fdiv(v.fill(x, 1.0), x))),
    (("sqrt.rn.f32",), ("f32",), ("f32",), lambda v, x: v.canonical(v.call("sqrt", x))),
    (("max.f32",), ("f32",), ("f32", "f32"), _extreme(greater=True, nan=False)),
    (("min.f32",), ("f32",), ("f32", "f32"), _extreme(greater=False, nan=False)),
    (("max.NaN.f32",), ("f32",), ("f32", "f32"), _extreme(greater=True, nan=True)),
    (("min.NaN.f32",), ("f32",), ("f32", "f32"), _extreme(greater=False, nan=True)),
    (("neg.f32",), ("f32",), ("f32",), _sign("xor", 0x80000000)),
    (("abs.f32",), ("f32",), ("f32",), _sign("and_", 0x7FFFFFFF)),
]

for _name, _symbol in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    ENTRIES.append(((f"setp.{_name}.f32",), ("pred",), ("f32", "f32"), _compare(_symbol, ordered=True)))
    ENTRIES.append(((f"setp.{_name}u.f32",), ("pred",), ("f32", "f32"), _compare(_symbol, ordered=False)))
ENTRIES.append((("setp.num.f32",), ("pred",), ("f32", "f32"), _compare("ord", ordered=True)))
ENTRIES.append((("setp.nan.f32",), ("pred",), ("f32", "f32"), _compare("uno", ordered=False)))
