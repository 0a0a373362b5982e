"""Integer, logical and predicate lane operations.

Contract: `ENTRIES` lists (names, results, operands, emission). Integers wrap; shifts by the width or more give 0, or
copies of the sign; a shift count is 32 bits whatever the type (PTX ISA, "Integer Arithmetic", "Logic and Shift").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fa4verify.ptx.lane_ir import I1, Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

Entry = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], "Callable[..., Any]"]
ENTRIES: list[Entry] = []


def add(names: tuple[str, ...], results: tuple[str, ...], operands: tuple[str, ...], emit: Callable[..., Any]) -> None:
    """Enter an operation that several opcodes share."""
    ENTRIES.append((names, results, operands, emit))


def _shift(operation: str, signed: bool) -> Callable[..., Any]:
    def emit(v: Lanes, x: Any, count: Any) -> Any:
        width = x.type.element.width
        inside = v.icmp_unsigned("<", count, v.fill(count, width))
        safe = v.select(inside, count, v.fill(count, width - 1))
        shifted = getattr(v, operation)(x, v.widen(safe, width, signed=False))
        return shifted if signed else v.select(inside, shifted, v.fill(x, 0))

    return emit


def _compare(predicate: str, signed: bool) -> Callable[..., Any]:
    def emit(v: Lanes, x: Any, y: Any) -> Any:
        return v.word((v.icmp_signed if signed else v.icmp_unsigned)(predicate, x, y))

    return emit


def _choose(predicate: str, signed: bool) -> Callable[..., Any]:
    def emit(v: Lanes, x: Any, y: Any) -> Any:
        return v.select((v.icmp_signed if signed else v.icmp_unsigned)(predicate, x, y), x, y)

    return emit


def _relu(choose: Callable[..., Any]) -> Callable[..., Any]:
    def emit(v: Lanes, x: Any, y: Any) -> Any:
        return _choose(">", True)(v, choose(v, x, y), v.fill(x, 0))

    return emit


def _product(signed: bool, part: str) -> Callable[..., Any]:
    """Product of twice the width, or its upper half; with a third operand, which has the width of the result, added."""

    def emit(v: Lanes, x: Any, y: Any, *addend: Any) -> Any:
        width = x.type.element.width
        whole = v.mul(v.widen(x, 2 * width, signed), v.widen(y, 2 * width, signed))
        if part == "hi":
            whole = v.widen(v.lshr(whole, v.fill(whole, width)), width, signed=False)
        return v.add(whole, addend[0]) if addend else whole

    return emit


def _absolute(v: Lanes, x: Any) -> Any:
    return v.select(v.icmp_signed("<", x, v.fill(x, 0)), v.sub(v.fill(x, 0), x), x)


def _low(v: Lanes, x: Any, width: int) -> Any:
    return v.widen(x, width, signed=False)


def _count(name: str) -> Callable[..., Any]:
    """Return an emission of a 32-bit count, also of 64-bit operands; clz of 0 is the width."""

    def emit(v: Lanes, x: Any) -> Any:
        return _low(v, v.call(name, x, flags=(I1(0),) if name == "ctlz" else ()), 32)

    return emit


def _enter_arithmetic(width: int) -> None:
    b, s, u = (f"{letter}{width}" for letter in "bsu")
    both = (s, u)

    def names(*stems: str) -> tuple[str, ...]:
        return tuple(f"{stem}.{kind}" for stem in stems for kind in both)

    add(names("add"), (b,), (b, b), lambda v, x, y: v.add(x, y))
    add(names("sub"), (b,), (b, b), lambda v, x, y: v.sub(x, y))
    add(names("mul.lo"), (b,), (b, b), lambda v, x, y: v.mul(x, y))
    add(names("mad.lo"), (b,), (b, b, b), lambda v, x, y, z: v.add(v.mul(x, y), z))
    for kind, signed in ((s, True), (u, False)):
        if width < 64:
            wide = f"{kind[0]}{2 * width}"
            add((f"mul.wide.{kind}",), (wide,), (kind, kind), _product(signed, "wide"))
            add((f"mad.wide.{kind}",), (wide,), (kind, kind, wide), _product(signed, "wide"))
            add((f"mul.hi.{kind}",), (kind,), (kind, kind), _product(signed, "hi"))
            add((f"mad.hi.{kind}",), (kind,), (kind, kind, kind), _product(signed, "hi"))
        add((f"max.{kind}",), (kind,), (kind, kind), _choose(">", signed))
        add((f"min.{kind}",), (kind,), (kind, kind), _choose("<", signed))
        operation = "ashr" if signed else "lshr"
        alias = (f"shr.{kind}",) if signed else (f"shr.{kind}", f"shr.{b}")
        add(alias, (b,), (b, "u32"), _shift(operation, signed))
        for name, symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
            spellings = {"lt": "lo", "le": "ls", "gt": "hi", "ge": "hs"}
            aliases = (f"setp.{name}.{kind}",) if signed else (f"setp.{name}.{kind}", f"setp.{spellings[name]}.{kind}")
            add(aliases, ("pred",), (kind, kind), _compare(symbol, signed))
    add((f"neg.{s}",), (s,), (s,), lambda v, x: v.sub(v.fill(x, 0), x))
    add((f"abs.{s}",), (s,), (s,), _absolute)
    add((f"shl.{b}",), (b,), (b, "u32"), _shift("shl", signed=False))
    for name, symbol in (("eq", "=="), ("ne", "!=")):
        add(tuple(f"setp.{name}.{kind}" for kind in (b, s, u)), ("pred",), (b, b), _compare(symbol, signed=False))
    for name in ("and", "or", "xor"):
        operation = name if name == "xor" else f"{name}_"
        add((f"{name}.{b}",), (b,), (b, b), lambda v, x, y, operation=operation: getattr(v, operation)(x, y))
    add((f"not.{b}",), (b,), (b,), lambda v, x: v.not_(x))
    if width > 16:
        add((f"popc.{b}",), ("u32",), (b,), _count("ctpop"))
        add((f"clz.{b}",), ("u32",), (b,), _count("ctlz"))
        add((f"brev.{b}",), (b,), (b,), lambda v, x: v.call("bitreverse", x))


for _width in (16, 32, 64):
    _enter_arithmetic(_width)

add(("max.relu.s32",), ("s32",), ("s32", "s32"), _relu(_choose(">", signed=True)))
add(("min.relu.s32",), ("s32",), ("s32", "s32"), _relu(_choose("<", signed=True)))

add(("mov.pred",), ("pred",), ("pred",), lambda _v, p: p)
add(("not.pred",), ("pred",), ("pred",), lambda v, p: v.not_(p))
add(("and.pred",), ("pred",), ("pred", "pred"), lambda v, p, q: v.and_(p, q))
add(("or.pred",), ("pred",), ("pred", "pred"), lambda v, p, q: v.or_(p, q))
add(("xor.pred",), ("pred",), ("pred", "pred"), lambda v, p, q: v.xor(p, q))
