"""How the floats of an entry are put together: a digest of their flow that addresses and copies do not change.

Contract: a vertex for each float operation and for all that takes a float on (the integer steps of an emulated
exponential, a comparison, a choice, a branch, a store), with edges to where its operands come from, copies looked
through (values.py). It starts from columns of tensor memory, literals by their bits, parameters, what is loaded from
wherever, and integers that no float is part of. Equal vertices count once: one more unrolled step changes nothing.

Equal digests do not mean equal results: places in memory, loops, and which thread does what are left to program.py.
Unlike ones mean other operations, or the same in another order; which releases and why: docs/audit.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.colours import behind, digest, refined
from fa4verify.kernels.shipped.audit.facts import Fact
from fa4verify.kernels.shipped.audit.program import is_arithmetic
from fa4verify.kernels.shipped.audit.values import Constant, Node, read, written
from fa4verify.ptx.operand import Negated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fa4verify.kernels.shipped.audit.colours import Edge
    from fa4verify.kernels.shipped.audit.values import Graph, Value

FLOATS = frozenset(("f16", "bf16", "f32", "f64", "tf32", "f16x2", "bf16x2", "f32x2", "e4m3x2", "e5m2x2"))
SYMMETRIC = ("add", "mul", "fma", "mad", "max", "min", "and", "or", "xor")  # in their first two operands
_LOADS = ("ld.", "ldmatrix", "tcgen05.ld")
_PASSING = ("st.", "stmatrix", "tcgen05.st", "tcgen05.ld", "selp.")  # their types and widths are the compiler's


def float_flow_fact(graph: Graph) -> Fact:
    """Return the digest of an entry's flow of floats."""
    results = [*graph.nodes]
    nodes = [*results, *_effects(graph)]
    number = {id(node): at for at, node in enumerate(nodes)}
    sources = [[graph.origins(value) for value in _read(node)] for node in nodes]
    floats = _floats(nodes, sources, number)
    labels = [_label(node) for node in nodes]
    leaves: dict[str, int] = {}

    def vertex(origin: Node | Constant) -> int:
        if isinstance(origin, Node) and number[id(origin)] in floats:
            return number[id(origin)]
        label = _leaf(origin)
        if label not in leaves:
            leaves[label] = len(labels)
            labels.append(label)
        return leaves[label]

    edges: set[Edge] = set()
    for at in floats:
        for operand, origins in enumerate(sources[at]):
            which = 0 if operand == 1 and nodes[at].is_a(*SYMMETRIC) else operand
            edges |= {(at, which, one) for one in map(vertex, origins) if one in floats or not nodes[at].is_a("wgmma")}
    alive = sorted(behind([at for at in floats if at >= len(results)], edges))
    return Fact(digest({*refined(labels, edges, alive)}))


def _effects(graph: Graph) -> Iterator[Node]:
    """Yield the statements that give no result, as nodes."""
    for at, statement in enumerate(graph.entry.statements):
        if not written(statement) and not is_arithmetic(statement):
            yield Node(statement.opcode, read(statement.operands, at), statement, at, 0)


def _read(node: Node) -> tuple[Value | Constant, ...]:
    """Return what a node reads: operands, accumulators in place, guard."""
    statement = node.statement
    more: tuple[Value | Constant, ...] = ()
    if node.opcode.startswith("wgmma.mma_async"):
        more = read((written(statement)[node.lane],), node.index)
    return node.operands + more + (read((statement.guard,), node.index) if statement.guard else ())


def _floats(nodes: list[Node], sources: list[list[tuple[Node | Constant, ...]]], number: dict[int, int]) -> set[int]:
    """Return the nodes that are float operations, or take what comes from one."""
    takers: dict[int, list[int]] = {}
    for at, operands in enumerate(sources):
        for origin in (one for origins in operands for one in origins if isinstance(one, Node)):
            takers.setdefault(number[id(origin)], []).append(at)
    found = {at for at, one in enumerate(nodes) if not FLOATS.isdisjoint(one.opcode.split("."))}
    loads = {at for at, one in enumerate(nodes) if one.opcode.startswith(_LOADS)}
    found = (found - loads) | {at for at in loads if nodes[at].opcode.startswith("tcgen05")}
    waiting = [*found]
    while waiting:
        for taker in takers.get(waiting.pop(), ()):
            if taker not in found and taker not in loads:
                found.add(taker)
                waiting.append(taker)
    return found


def _leaf(origin: Node | Constant) -> str:
    if isinstance(origin, Constant):
        return f"literal {origin.bits & 0xFFFFFFFF:X}"
    if origin.opcode.startswith("ld.param"):
        return "parameter"
    return "loaded" if origin.opcode.startswith(_LOADS) else "index"


def _label(node: Node) -> str:
    opcode = next((one for one in _PASSING if node.opcode.startswith(one)), node.opcode)
    if not node.pair:
        opcode += f" {node.lane}"
    guard = node.statement.guard
    turned = "".join("!" for one in node.statement.operands if isinstance(one, Negated))
    return f"{'' if guard is None else '@!' if isinstance(guard, Negated) else '@'}{turned}{opcode}"
