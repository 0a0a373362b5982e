"""Facts of the backward: P again, dS, and who adds to global memory in which way.

Contract: an addition of floats to memory that other CTAs add to as well (`red`, `atom`, a bulk reduction) has no order
of its own; integer atomics and acquiring loads on global memory are semaphores or schedulers. That there is none is a
finding too. Preprocess: delta and log2(e), which turns LSE into base 2. Postprocess: dQ's scale and rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.exponentials import is_conversion, score_gradient
from fa4verify.kernels.shipped.audit.facts import NONE, Fact, Facts, found, hexadecimal, missing
from fa4verify.kernels.shipped.audit.softmax import evaluation_facts
from fa4verify.kernels.shipped.audit.values import Node

if TYPE_CHECKING:
    from fa4verify.kernels.shipped.audit.exponentials import Exponential
    from fa4verify.kernels.shipped.audit.values import Graph
    from fa4verify.ptx.module import Statement

_FLOATS = (".f32", ".f16", ".bf16", ".f64", ".f16x2", ".bf16x2")


def gradient_facts(graph: Graph, weights: list[Exponential]) -> Facts:
    """Return the facts of a kernel that computes gradients."""
    if not weights:
        return dict.fromkeys(("ex2", "p_conversion", "ds_conversion"), missing("an exponential that is converted to P"))
    converted = [user for one in weights for user, _ in graph.users(one.node) if is_conversion(user)]
    emulated = sum(one.emulation is not None for one in weights)
    return {
        **evaluation_facts(weights),
        "exponentials": Fact(
            f"{emulated} emulated" if emulated else "all by MUFU", tuple(sorted(one.node.line for one in weights))
        ),
        "p_conversion": found((one.opcode for one in converted), (one.line for one in converted))
        if converted
        else Fact(NONE),
        "ds_conversion": _score_gradient(graph, weights),
    }


def _score_gradient(graph: Graph, weights: list[Exponential]) -> Fact:
    """Return how dS = P * (dP - delta) is formed and rounded: difference, products, conversion."""
    chains = [
        chain
        for one in weights
        for product, position in graph.users(one.node)
        for chain in score_gradient(graph, product, position)
    ]
    if not chains:
        return missing("a conversion of P * (dP - delta)")
    return found(
        (" ".join(node.opcode for node in chain) for chain in chains), (node.line for chain in chains for node in chain)
    )


def memory_facts(graph: Graph) -> Facts:
    """Return float additions to global memory without an order of their own, and semaphores."""
    adding = [one for one in graph.entry.statements if _adds_floats(one)]
    signalling = [one for one in graph.entry.statements if _signals(one)]
    return {
        name: found((one.opcode for one in some), (one.line for one in some)) if some else Fact(NONE)
        for name, some in (("float_adds", adding), ("semaphores", signalling))
    }


def _adds_floats(statement: Statement) -> bool:
    opcode = statement.opcode
    reduces = opcode.startswith(("red.", "atom.", "cp.reduce.async.bulk"))
    return (reduces and ".shared" not in opcode.split(".async")[0] and opcode.endswith(_FLOATS)) or (
        opcode.startswith("cp.reduce.async.bulk.tensor") and ".add" in opcode
    )


def _signals(statement: Statement) -> bool:
    opcode = statement.opcode
    if opcode.startswith("ld.") and ".acquire" in opcode and ".global" in opcode:
        return True
    return opcode.startswith(("red.", "atom.")) and ".shared" not in opcode and not opcode.endswith(_FLOATS)


def preprocess_facts(graph: Graph) -> Facts:
    """Return how delta is summed and what turns LSE into base 2."""
    delta = [node for node in graph.nodes if node.is_a("fma", "add") and _is_float(node)]
    scaled = [
        (node, literal)
        for node in graph.nodes
        if node.is_a("mul") and _is_float(node)
        for side in (0, 1)
        if (literal := graph.constant(node, side)) is not None and _loaded(graph, node, 1 - side)
    ]
    return {
        "delta": found((node.opcode for node in delta), (node.line for node in delta))
        if delta
        else missing("a sum of products"),
        "log2e": found((hexadecimal(one.bits) for _, one in scaled), (node.line for node, _ in scaled))
        if scaled
        else missing("a loaded value times a literal"),
    }


def postprocess_facts(graph: Graph) -> Facts:
    """Return how an accumulated gradient is scaled and rounded."""
    nodes = [node for node in graph.nodes if is_conversion(node)]
    products = {
        origin
        for node in nodes
        for at in range(len(node.operands))
        for origin in graph.operand(node, at)
        if isinstance(origin, Node) and origin.is_a("mul")
    }
    if not nodes:
        return {"conversion": missing("a conversion")}
    opcodes = sorted({node.opcode for node in products}) + sorted({node.opcode for node in nodes})
    lines = sorted({node.line for node in (*nodes, *products)})
    return {"conversion": Fact(" ".join(opcodes), tuple(lines))}


def _is_float(node: Node) -> bool:
    return ".f32" in node.opcode


def _loaded(graph: Graph, node: Node, side: int) -> bool:
    return any(isinstance(one, Node) and one.opcode.startswith("ld.global") for one in graph.operand(node, side))
