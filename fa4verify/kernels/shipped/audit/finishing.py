"""What a forward does once a row is complete: reciprocal of the sum, logarithm, constants, conversion of O.

Contract: each fact starts at the instruction that decides it and follows the values from there. The scale that a
forward multiplies scores by is a kernel parameter that FA4's host code computes; `log2e` is the parameter's value in a
recorded launch with softmax_scale = 1, so that the host's constant is audited too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.exponentials import accumulators, is_conversion, of_floats
from fa4verify.kernels.shipped.audit.facts import Fact, Facts, decimal, found, hexadecimal, missing
from fa4verify.kernels.shipped.audit.values import Constant, Node
from fa4verify.ptx.operand import Address, Symbol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.kernels.shipped.audit.exponentials import Exponential
    from fa4verify.kernels.shipped.audit.softmax import Step
    from fa4verify.kernels.shipped.audit.values import Graph

NEGATIVE_INFINITY = 0xFF800000


def finishing_facts(graph: Graph, weights: list[Exponential]) -> Facts:
    """Return the facts of a forward's epilogue."""
    return {"rcp": _reciprocal(graph), **_logarithm(graph), "o_conversion": _output(graph, weights)}


def _reciprocal(graph: Graph) -> Fact:
    """Return how 1 / row sum is computed: what multiplies accumulators, or is multiplied with before that."""
    nodes = [node for node in graph.nodes if node.is_a("rcp", "div") and node.opcode.endswith("f32")]
    scaling = [node for node in nodes if any(user.is_a("mul", "selp") for user, _ in graph.users(node))]
    if not scaling:
        return missing("a reciprocal that something is multiplied by")
    return found((node.opcode for node in scaling), (node.line for node in scaling))


def _logarithm(graph: Graph) -> Facts:
    """Return flavour of lg2, the factor that makes it a natural logarithm, and the offset taken from it."""
    logarithms = [node for node in graph.nodes if node.is_a("lg2")]
    if not logarithms:
        return dict.fromkeys(("lg2", "ln2", "lse_offset"), missing("a logarithm"))
    factors: list[str] = []
    offsets: list[str] = []
    lines: list[int] = []
    for logarithm in logarithms:
        waiting, seen = [logarithm], {logarithm}
        offset = "0"
        while waiting:
            for user, position in graph.users(waiting.pop()):
                literal = graph.constant(user, 1 - position) if position < 2 else None
                if user.is_a("mul") and literal is not None:
                    factors.append(hexadecimal(literal.bits))
                    lines.append(user.line)
                    continue
                if user.is_a("add", "sub") and literal is not None:
                    offset = decimal(literal.bits ^ (0x80000000 if user.is_a("add") else 0))
                    lines.append(user.line)
                follows = user.is_a("add", "sub", "selp") or (user.is_a("fma") and position == 2)
                if follows and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        offsets.append(offset)
    own = [node.line for node in logarithms]
    return {
        "lg2": found((node.opcode for node in logarithms), own),
        "ln2": found(factors, lines) if factors else missing("a literal factor of the logarithm"),
        "lse_offset": found(offsets, own + lines),
    }


def _output(graph: Graph, weights: list[Exponential]) -> Fact:
    """Return how O is rounded: conversions of accumulators that are no weights."""
    weighty = {id(one.node) for one in weights}
    nodes = []
    for node in graph.nodes:
        if not is_conversion(node):
            continue
        origins = [origin for at in range(len(node.operands)) for origin in graph.operand(node, at)]
        if any(id(one) in weighty for one in origins):
            continue
        if any(accumulators(graph, operand) for operand in node.operands):
            nodes.append(node)
    if not nodes:
        return missing("a conversion of scaled accumulators")
    return found((node.opcode for node in nodes), (node.line for node in nodes))


def scale_fact(graph: Graph, all_steps: list[Step], parameters: Mapping[str, bytes] | None) -> Fact:
    """Return log2(e) as the host code computed it into a kernel parameter, from a launch with softmax_scale 1."""
    if parameters is None:
        return missing("a recorded launch")
    values, lines = set(), set()
    for step in all_steps:
        for scale in step.scales:
            for node in _parameters(graph, scale):
                given = _given(node, parameters)
                if given is not None:
                    values.add(hexadecimal(given))
                    lines.add(node.line)
    return found(values, lines) if values else missing("a kernel parameter that scores are multiplied by")


def _parameters(graph: Graph, value: object) -> set[Node]:
    origins = graph.origins(value)  # type: ignore[arg-type]
    literals = {one.bits for one in origins if isinstance(one, Constant)} - {NEGATIVE_INFINITY}
    behind = {one for origin in origins if isinstance(origin, Node) for one in graph.behind(origin, of_floats)}
    return {one for one in behind if one.opcode.startswith("ld.param")} if not literals else set()


def _given(node: Node, parameters: Mapping[str, bytes]) -> int | None:
    address = next((one for one in node.statement.operands if isinstance(one, Address)), None)
    if address is None or not isinstance(address.base, Symbol) or address.base.name not in parameters:
        return None
    start = address.offset + 4 * node.lane
    return int.from_bytes(parameters[address.base.name][start : start + 4], "little")
