"""The online softmax of a forward kernel: steps, columns, offset, maximum, rescale threshold.

Contract: a step is one unrolled treatment of one row's scores of a KV tile, recognised by the bias that all of its
exponents share (-maximum * scale + offset). Columns are those of tensor memory where the scores come from `tcgen05.ld`
with one lane a row (Blackwell); elsewhere a thread holds a part of the row and columns are counted, not named.
A threshold is the literal that the argument of a rescale's exponential is compared with; a kernel that has such
exponentials and no such comparison rescales always: tau 0.

Source: flash-attn-4 `softmax.SoftmaxSm100`, `softmax.Softmax`; but nothing is taken from there: only what is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.exponentials import accumulators, is_conversion, of_floats
from fa4verify.kernels.shipped.audit.facts import (
    NONE,
    Fact,
    Facts,
    decimal,
    found,
    hexadecimal,
    missing,
    number,
    ranges,
)
from fa4verify.kernels.shipped.audit.row_sum import row_sums
from fa4verify.kernels.shipped.audit.values import Constant, Node
from fa4verify.ptx.operand import Address, Register

if TYPE_CHECKING:
    from fa4verify.kernels.shipped.audit.exponentials import Exponential
    from fa4verify.kernels.shipped.audit.values import Graph, Value


@dataclass(frozen=True, eq=False)
class Step:
    """Exponentials that share a bias, with the column of each where it has one."""

    weights: tuple[Exponential, ...]
    sources: tuple[Node | None, ...]  # the accumulator that each score comes from
    columns: tuple[int, ...] | None
    bias: tuple[Node | Constant, ...]
    forms: frozenset[str]
    scales: tuple[Value | Constant, ...]  # what the scores are multiplied by

    @property
    def order(self) -> tuple[int, ...]:
        """Rank of each weight among the step's accumulators, or its column."""
        if self.columns is not None:
            return self.columns
        ranked = sorted(
            range(len(self.weights)),
            key=lambda at: (one.index, one.lane) if (one := self.sources[at]) is not None else (-1, at),
        )
        ranks = {at: rank for rank, at in enumerate(ranked)}
        return tuple(ranks[at] for at in range(len(self.weights)))


def softmax_facts(graph: Graph, all_steps: list[Step], rescales: list[Exponential]) -> Facts:
    """Return the facts of the exponentials and of the online softmax of a forward kernel."""
    weights = [one for step in all_steps for one in step.weights]
    if not weights:
        return dict.fromkeys(
            ("exponentials", "ex2", "tau", "offset", "p_conversion"), missing("no exponential that is converted to P")
        )
    return {
        **evaluation_facts(weights),
        "p_conversion": _conversions(graph, weights),
        "argument": found((form for step in all_steps for form in step.forms), (one.node.line for one in weights))
        if all(step.forms for step in all_steps)
        else missing("an exponent that is no score * scale - bias"),
        "exponentials": _count(all_steps),
        "emulated_columns": _emulated_columns(all_steps),
        "offset": _offset(graph, all_steps),
        **_rescale(graph, rescales),
        **_maximum(graph, all_steps),
        **row_sums(graph, all_steps),
    }


def evaluation_facts(weights: list[Exponential]) -> Facts:
    """Return how the exponentials of P are evaluated: ex2 flavour, coefficients, clamp, magic constant."""
    by_mufu = [one for one in weights if one.emulation is None]
    emulated = [(one, one.emulation) for one in weights if one.emulation is not None]
    facts: Facts = {"ex2": found((one.node.opcode for one in by_mufu), (one.node.line for one in by_mufu))}
    if not by_mufu:
        facts["ex2"] = Fact(NONE)
    if not emulated:
        return {**facts, "coefficients": Fact(NONE), "clamp": Fact(NONE), "magic": Fact(NONE)}
    lines = [line for one, _ in emulated for line in one.lines]
    if any(one.coefficients is None for _, one in emulated):
        facts["coefficients"] = missing("a polynomial that is no chain of fma with literal coefficients")
    else:
        facts["coefficients"] = found(
            (" ".join(map(hexadecimal, one.coefficients or ())) for _, one in emulated), lines
        )
    for name in ("clamp", "magic"):
        constants = [getattr(one, name) for _, one in emulated]
        facts[name] = found((f"{one[0]} {hexadecimal(one[1])}" if one else f"no {name}" for one in constants), lines)
    return facts


def steps(graph: Graph, weights: list[Exponential]) -> list[Step]:
    """Group the weights by the bias of their exponents."""
    groups: dict[frozenset[int], list[tuple[Exponential, _Argument]]] = {}
    biases: dict[frozenset[int], tuple[Node | Constant, ...]] = {}
    for one in weights:
        argument = _argument(graph, one)
        key = frozenset(id(origin) for origin in argument.bias)
        biases[key] = argument.bias
        groups.setdefault(key, []).append((one, argument))
    made = []
    for key, members in groups.items():
        sources = tuple(_source(graph, argument.score) for _, argument in members)
        made.append(
            Step(
                tuple(one for one, _ in members),
                sources,
                _columns(graph, sources),
                biases[key],
                frozenset(argument.form for _, argument in members if argument.form),
                tuple(argument.scale for _, argument in members if argument.scale is not None),
            )
        )
    return made


@dataclass(frozen=True, eq=False)
class _Argument:
    """An exponent taken apart: the opcodes that make it, score, scale, and what is added to their product."""

    form: str = ""
    score: Value | Constant | None = None
    scale: Value | Constant | None = None
    bias: tuple[Node | Constant, ...] = ()


def _argument(graph: Graph, one: Exponential) -> _Argument:
    origins = graph.origins(one.argument)
    node = origins[0] if len(origins) == 1 else None
    if not isinstance(node, Node):
        return _Argument()
    if node.is_a("fma"):
        return _Argument(node.opcode, *_factors(graph, node), graph.operand(node, 2))
    if node.is_a("sub", "add"):
        for side in (0, 1):
            product = graph.only(node, side)
            if isinstance(product, Node) and product.is_a("mul") and (factors := _factors(graph, product))[0]:
                return _Argument(f"{product.opcode} {node.opcode}", *factors, graph.operand(node, 1 - side))
    return _Argument()


def _factors(graph: Graph, product: Node) -> tuple[Value | Constant | None, Value | Constant | None]:
    """Return score and scale of a product: the score is what tensor cores computed."""
    for side in (0, 1):
        if accumulators(graph, product.operands[side]):
            return product.operands[side], product.operands[1 - side]
    return None, None


def _source(graph: Graph, score: Value | Constant | None) -> Node | None:
    if score is None:
        return None
    last = sorted(accumulators(graph, score), key=lambda one: (one.index, one.lane))
    return last[-1] if last and len({one.lane for one in last}) == 1 else None


def _columns(graph: Graph, sources: tuple[Node | None, ...]) -> tuple[int, ...] | None:
    """Return columns of tensor memory, counted from the step's first, or None where they cannot be told."""
    places = []
    for one in sources:
        if one is None or not one.opcode.startswith("tcgen05.ld") or ".32x32b" not in one.opcode:
            return None
        address = next((operand for operand in one.statement.operands if isinstance(operand, Address)), None)
        if address is None or not isinstance(address.base, Register):
            return None
        base = graph.address(address.base, one.index)
        places.append((base[0], base[1] + address.offset + one.lane))
    if len({base for base, _ in places}) != 1:
        return None
    first = min(column for _, column in places)
    return tuple(column - first for _, column in places)


def _conversions(graph: Graph, weights: list[Exponential]) -> Fact:
    nodes = [user for one in weights for user, _ in graph.users(one.node) if is_conversion(user)]
    return found((one.opcode for one in nodes), (one.line for one in nodes))


def _count(all_steps: list[Step]) -> Fact:
    """Return emulated and all exponentials of a step: `16 of 128`."""
    return found(
        (f"{sum(one.emulation is not None for one in step.weights)} of {len(step.weights)}" for step in all_steps),
        (line for step in all_steps for one in step.weights for line in one.lines),
    )


def _emulated_columns(all_steps: list[Step]) -> Fact:
    emulated = [(step, [at for at, one in enumerate(step.weights) if one.emulation is not None]) for step in all_steps]
    if not any(chosen for _, chosen in emulated):
        return Fact(NONE)
    if any(step.columns is None for step, _ in emulated):
        return missing("the scores' columns: not loaded from one place of tensor memory")
    return found(
        (ranges((step.columns or ())[at] for at in chosen) for step, chosen in emulated),
        (line for step, chosen in emulated for at in chosen for line in step.weights[at].lines),
    )


def _offset(graph: Graph, all_steps: list[Step]) -> Fact:
    """Return what is added to every exponent: the literal from which maximum * scale is subtracted."""
    values, lines = [], []
    for step in all_steps:
        bias = step.bias[0] if len(step.bias) == 1 else None
        if not isinstance(bias, Node):
            return missing("the bias of an exponent")
        lines.append(bias.line)
        literal = next((one for at in range(len(bias.operands)) if (one := graph.constant(bias, at))), None)
        if bias.is_a("mul", "neg") and literal is None:
            values.append("0")
        elif bias.is_a("sub", "fma", "add") and literal is not None:
            values.append(decimal(literal.bits))
        else:
            return missing(f"an offset in {bias.statement.text!r}")
    return found(values, lines)


def _rescale(graph: Graph, rescales: list[Exponential]) -> Facts:
    """Return ex2 flavour and threshold of the rescale, in log2 units."""
    if not rescales:
        return dict.fromkeys(("rescale_ex2", "tau"), missing("an exponential of a difference of two maxima"))
    values, lines = [], []
    for one in rescales:
        for origin in graph.origins(one.argument):
            if not isinstance(origin, Node):
                continue
            lines.append(origin.line)
            compared = [
                (user, position, literal)
                for user, position in graph.users(origin)
                if user.is_a("setp")
                and (literal := graph.constant(user, 1 - position)) is not None
                and math.isfinite(number(literal.bits))
            ]
            values += [_threshold(*one) for one in compared] or ["0"]
            lines += [user.line for user, _, _ in compared]
    return {
        "rescale_ex2": found((one.node.opcode for one in rescales), (one.node.line for one in rescales)),
        "tau": found(values, lines),
    }


def _threshold(comparison: Node, position: int, literal: Constant) -> str:
    """Return tau; with the comparison where it does not keep the old maximum at and above the threshold."""
    keeps = comparison.opcode.split(".")[1] == ("ge" if position == 0 else "le")
    return f"{-number(literal.bits) + 0.0:.9g}" + ("" if keeps else f" by {comparison.opcode}")


def _maximum(graph: Graph, all_steps: list[Step]) -> Facts:
    """Return how the row's maximum is taken, whether NaN survives it, and of how many columns it is."""
    opcodes: set[str] = set()
    lines: set[int] = set()
    counts: set[str] = set()
    for step in all_steps:
        behind = {
            one
            for bias in step.bias
            if isinstance(bias, Node)
            for one in graph.behind(bias, lambda node: node.is_a("max", "shfl") or of_floats(node))
        }
        reductions = {one for one in behind if one.opcode.startswith("tcgen05.ld.red") and _is_reduced(one)}
        extrema = {one for one in behind if one.is_a("max", "min") and ".s32" not in one.opcode}
        maxima = extrema | reductions  # a minimum is no maximum: its opcode is told, and agrees with no contract
        opcodes |= {_of_maximum(one) for one in maxima}
        lines |= {one.line for one in maxima}
        statements = {one.index for one in step.sources if one is not None}
        loads = {(one.index, one.lane) for one in behind if one.index in statements and not _is_reduced(one)}
        for one in reductions:
            if one.index in statements:
                loads |= {(one.index, lane) for lane in range(one.lane)}
        counts.add(str(len(loads)))
    if not opcodes or counts == {"0"}:
        return dict.fromkeys(("max", "nan", "columns"), missing("a maximum behind the bias of the exponents"))
    return {
        "max": found(opcodes, lines),
        "nan": found({"kept" if ".NaN" in one else "dropped" for one in opcodes}, lines),
        "columns": found(counts, lines),
    }


def _is_reduced(node: Node) -> bool:
    """Whether a result of `tcgen05.ld.red` is the reduction and not one of the loaded columns."""
    return node.opcode.startswith("tcgen05.ld.red") and node.lane == _loaded(node)


def _loaded(node: Node) -> int:
    count = next((part[1:] for part in node.opcode.split(".") if part[:1] == "x" and part[1:].isdigit()), "0")
    return int(count)


def _of_maximum(node: Node) -> str:
    if node.opcode.startswith("tcgen05.ld.red"):
        return "tcgen05.ld.red.max" + (".NaN" if ".NaN" in node.opcode else "")
    return node.opcode
