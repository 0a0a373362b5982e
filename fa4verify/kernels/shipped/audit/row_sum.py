"""In which order, and how wide, a row's exponentials are added.

Contract: `order` is a digest of the whole expression, with a number for each exponential (its column, or its rank in
the thread) and `old` for what the step starts from; two kernels with the same digest add in the same order. Beside it a
description for people: how many chains of additions, how long, packed or not, and how the old sum comes in.
Source: the expression itself; flash-attn-4 `utils.fadd_reduce` is what b36 makes it from.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.facts import Facts, found, missing
from fa4verify.kernels.shipped.audit.values import Constant, Node

if TYPE_CHECKING:
    from fa4verify.kernels.shipped.audit.softmax import Step
    from fa4verify.kernels.shipped.audit.values import Graph

_DIGITS = 8


def row_sums(graph: Graph, all_steps: list[Step]) -> Facts:
    """Return description and digest of the sums of all steps, and the opcodes that add."""
    texts, digests, opcodes, lines = set(), set(), set(), set()
    for step in all_steps:
        leaves = {id(one.node): number for one, number in zip(step.weights, step.order, strict=True)}
        sums = _sums(graph, step, set(leaves))
        roots = [node for node in sums.values() if not _goes_on(graph, node, sums)]
        if len(roots) != 1:
            return dict.fromkeys(
                ("row_sum", "row_sum_order", "row_sum_add"),
                missing(f"one sum of a step's exponentials, but {len(roots)}"),
            )
        expression = _expression(graph, roots[0], leaves, set(sums))
        reached = expression.count("#")
        if reached != len(leaves):
            return dict.fromkeys(
                ("row_sum", "row_sum_order", "row_sum_add"), missing(f"{len(leaves) - reached} exponentials in no sum")
            )
        texts.add(_described(graph, roots[0], leaves, sums))
        digests.add(hashlib.sha256(expression.encode()).hexdigest()[:_DIGITS])
        opcodes |= {node.opcode for node in sums.values()}
        lines |= {node.line for node in sums.values()}
    return {
        "row_sum": found(texts, lines),
        "row_sum_order": found(digests, lines),
        "row_sum_add": found(opcodes, lines),
    }


def _sums(graph: Graph, step: Step, leaves: set[int]) -> dict[int, Node]:
    """Return the additions that lead from a step's exponentials to their sum."""
    sums: dict[int, Node] = {}
    waiting = [one.node for one in step.weights]
    while waiting:
        for user, position in graph.users(waiting.pop()):
            adds = user.is_a("add") and ".f32" in user.opcode
            accumulates = user.is_a("fma") and position == 2
            alone = len(graph.operand(user, position)) == 1
            if (adds or accumulates) and alone and id(user) not in sums and id(user) not in leaves:
                sums[id(user)] = user
                waiting.append(user)
    return sums


def _goes_on(graph: Graph, node: Node, sums: dict[int, Node]) -> bool:
    """Whether another addition of the step takes this sum, on every path."""
    return any(
        id(user) in sums and (position == 2 or user.is_a("add")) and len(graph.operand(user, position)) == 1
        for user, position in graph.users(node)
    )


def _inside(graph: Graph, node: Node, position: int, known: set[int]) -> Node | None:
    """Return the operand where it is one of `known` and nothing else."""
    origin = graph.only(node, position)
    return origin if isinstance(origin, Node) and id(origin) in known else None


def _expression(graph: Graph, node: Node, leaves: dict[int, int], sums: set[int]) -> str:
    if id(node) in leaves:
        return f"#{leaves[id(node)]}"
    if id(node) not in sums:
        return "old"
    known = set(leaves) | sums
    parts = []
    for position in range(len(node.operands)):
        inside = _inside(graph, node, position, known)
        literal = graph.constant(node, position)
        if inside is not None:
            parts.append(_expression(graph, inside, leaves, sums))
        else:
            parts.append(f"{literal.bits:X}" if isinstance(literal, Constant) else "old")
    return f"({node.opcode} {' '.join(parts)})"


def _described(graph: Graph, root: Node, leaves: dict[int, int], sums: dict[int, Node]) -> str:
    """Describe the sum: chains are runs of additions of one exponential each."""
    known = set(leaves) | set(sums)
    chains: list[list[int]] = []
    old: set[str] = set()

    def walk(node: Node, chain: list[int] | None) -> None:
        inner = [_inside(graph, node, position, known) for position in range(len(node.operands))]
        numbers = [leaves[id(one)] for one in inner if one is not None and id(one) in leaves]
        deeper = [one for one in inner if one is not None and id(one) not in leaves]
        if any(one is None for one in inner) and not any(
            graph.constant(node, position) for position in range(len(inner)) if inner[position] is None
        ):
            old.add(node.opcode.split(".")[0])
        if len(deeper) > 1 or (not numbers and deeper):
            for one in deeper:
                walk(one, None)
            return
        if chain is None:
            chain = []
            chains.append(chain)
        chain += numbers
        for one in deeper:
            walk(one, chain)

    walk(root, None)
    lengths = sorted({len(chain) for chain in chains})
    width = "f32x2" if any(node.pair for node in sums.values()) else "f32"
    entering = f", old sum by {' and '.join(sorted(old))}" if old else ""
    return f"{len(chains)} x {' or '.join(map(str, lengths))} {width}{entering}"
