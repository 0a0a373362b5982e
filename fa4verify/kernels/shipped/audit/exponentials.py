"""Every exponential of a kernel, by MUFU or by a polynomial, and what each is for.

Contract: `exponentials(graph)` finds `ex2` instructions and polynomial emulations. An emulation is recognised by what
it computes, from its end: an integer sum of a polynomial's bits and of a rounded number shifted into the exponent;
magic constant, clamp, coefficients are what the data flow leads to from there, None where it leads nowhere. Roles:
  weight   its result is converted to the dtype of P (and may be summed), or its product with a difference is: dS
  rescale  its argument is a scaled difference of two values that are no accumulators: the old maximum and the new one
  other    anything else (a sink, the weights of a combine)

Source: Cody-Waite range reduction with a magic number, as in flash-attn-4 `utils.ex2_emulation_2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fa4verify.kernels.shipped.audit.values import ACCUMULATORS, Constant, Node

if TYPE_CHECKING:
    from fa4verify.kernels.shipped.audit.values import Graph, Value

Role = Literal["weight", "rescale", "other"]
MANTISSA_BITS = 23
_FLOAT = ("add", "sub", "mul", "fma", "selp", "tanh", "div", "neg", "abs", "ex2", "mad", "min")


@dataclass(frozen=True, eq=False)
class Emulation:
    """One evaluation of 2^x by a polynomial; `coefficients` are fp32 bits, c0 first."""

    clamp: tuple[str, int] | None  # opcode and bits of the lower bound
    magic: tuple[str, int] | None  # opcode that rounds and bits of what is added
    coefficients: tuple[int, ...] | None
    lines: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Exponential:
    """2^argument: the node of the result, and how it is evaluated."""

    node: Node
    argument: Value | Constant
    role: Role
    emulation: Emulation | None = None

    @property
    def lines(self) -> tuple[int, ...]:
        """Lines of the PTX."""
        return self.emulation.lines if self.emulation else (self.node.line,)


def is_conversion(node: Node) -> bool:
    """Whether a node rounds fp32 to a 16- or 8-bit format."""
    return node.is_a("cvt") and node.opcode.endswith(".f32") and not node.opcode.startswith("cvt.rzi")


def of_floats(node: Node) -> bool:
    """Whether a node is float arithmetic or a choice between floats: where a score may be changed on its way."""
    return node.is_a(*_FLOAT) and ".s32" not in node.opcode


def accumulators(graph: Graph, value: Value | Constant) -> set[Node]:
    """Return the results of tensor cores (or loads of them) that a value is made of, through float arithmetic."""
    found: set[Node] = set()
    for origin in graph.origins(value):
        if isinstance(origin, Node):
            found |= {one for one in graph.behind(origin, of_floats) if one.opcode.startswith(ACCUMULATORS)}
    return found


def exponentials(graph: Graph) -> list[Exponential]:
    """Return all exponentials in the order of the text."""
    found = []
    for node in graph.nodes:
        if node.is_a("ex2"):
            found.append(Exponential(node, node.operands[0], _role(graph, node, node.operands[0])))
        elif (emulated := _emulation(graph, node)) is not None:
            emulation, argument = emulated
            found.append(Exponential(node, argument, _role(graph, node, argument), emulation))
    return found


def _role(graph: Graph, node: Node, argument: Value | Constant) -> Role:
    if any(is_conversion(user) or score_gradient(graph, user, position) for user, position in graph.users(node)):
        return "weight"
    for origin in graph.origins(argument):
        if isinstance(origin, Node) and origin.is_a("mul"):
            factors = [graph.only(origin, side) for side in (0, 1)]
            if any(isinstance(one, Node) and one.is_a("sub") for one in factors):
                return "rescale"
    return "other"


def score_gradient(graph: Graph, product: Node, position: int) -> list[tuple[Node, ...]]:
    """Return difference, product, perhaps a scaling, and conversion, where `product` is P * (dP - delta)."""
    other = graph.only(product, 1 - position) if position < 2 and product.is_a("mul") else None
    if not (isinstance(other, Node) and other.is_a("sub", "add", "fma")):
        return []
    found: list[tuple[Node, ...]] = []
    for user, _ in graph.takers(product):
        if is_conversion(user):
            found.append((other, product, user))
        elif user.is_a("mul"):
            found += [(other, product, user, one) for one, _ in graph.takers(user) if is_conversion(one)]
    return found


def _emulation(graph: Graph, node: Node) -> tuple[Emulation, Value | Constant] | None:
    """Read the emulation that ends in `node`, if one does; with the argument of the exponential."""
    if not node.opcode.startswith(("add.s32", "add.u32", "add.b32")):
        return None
    sides = [graph.only(node, side) for side in (0, 1)]
    for shifted, polynomial in (sides, sides[::-1]):
        if not (isinstance(shifted, Node) and shifted.is_a("shl") and isinstance(polynomial, Node)):
            continue
        by = graph.constant(shifted, 1)
        rounded = graph.only(shifted, 0)
        if by is None or by.bits != MANTISSA_BITS or not (isinstance(rounded, Node) and rounded.is_a("add")):
            continue
        return _read(graph, node, shifted, polynomial, rounded)
    return None


def _read(
    graph: Graph, node: Node, shifted: Node, polynomial: Node, rounded: Node
) -> tuple[Emulation, Value | Constant]:
    constant = partial(graph.constant, rounded)
    side = next((one for one in (0, 1) if constant(one) is not None), None)
    magic = None if side is None else (rounded.opcode, _bits(constant(side)))
    clamped = rounded.operands[0 if side is None else 1 - side]
    lines = {node.line, shifted.line, rounded.line}
    clamp, argument = None, clamped
    origins = graph.origins(clamped)
    if len(origins) == 1 and isinstance(origins[0], Node) and origins[0].is_a("max"):
        bound = next((one for one in (0, 1) if graph.constant(origins[0], one) is not None), None)
        if bound is not None:
            clamp = origins[0].opcode, _bits(graph.constant(origins[0], bound))
            argument = origins[0].operands[1 - bound]
            lines.add(origins[0].line)
    coefficients, steps, variables = _horner(graph, polynomial)
    if not (len(variables) == 1 and _is_remainder(graph, next(iter(variables)), rounded, side, clamped)):
        coefficients = None
    return Emulation(clamp, magic, coefficients, tuple(sorted(lines | steps))), argument


def _is_remainder(graph: Graph, found: Node, rounded: Node, side: int | None, clamped: Value | Constant) -> bool:
    """Whether a value is what the argument has beyond its rounding: clamped - (rounded - magic)."""
    back = graph.only(found, 1)
    if side is None or not (found.is_a("sub") and isinstance(back, Node) and back.is_a("sub")):
        return False
    same = graph.operand(found, 0) == graph.origins(clamped) and graph.only(back, 0) is rounded
    return same and graph.constant(back, 1) == graph.constant(rounded, side)


def _horner(graph: Graph, last: Node) -> tuple[tuple[int, ...] | None, set[int], set[Node]]:
    """Return the coefficients of a chain of fma, lowest power first, its lines, and what it is a polynomial in.

    None where it is no such chain.
    """
    found: list[int] = []
    lines: set[int] = set()
    variables: set[Node] = set()
    node: Node | Constant | None = last
    while isinstance(node, Node) and node.is_a("fma") and ".rn" in node.opcode:
        addend = graph.constant(node, 2)
        if addend is None:
            return None, lines, variables
        found.append(addend.bits)
        lines.add(node.line)
        inner = [graph.only(node, side) for side in (0, 1)]
        at = next((at for at in (0, 1) if isinstance(one := inner[at], Constant) or (one and one.is_a("fma"))), None)
        variable = None if at is None else inner[1 - at]
        if at is None or not isinstance(variable, Node):
            return None, lines, variables
        variables.add(variable)
        node = inner[at]
    if not isinstance(node, Constant):
        return None, lines, variables
    return (*found, node.bits), lines, variables


def _bits(constant: Constant | None) -> int:
    assert constant is not None
    return constant.bits
