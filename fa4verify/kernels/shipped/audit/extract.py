"""PTX texts to facts: which kind of kernel an entry is, and what an audit says about it.

Contract: an entry's kind is decided by what it computes. `forward`: P is converted and a logarithm taken; `backward`:
P is converted, no logarithm; `combine`: exponentials or logarithms without a P; `preprocess`: a literal times what is
loaded; `postprocess`: only conversions. Facts of several entries of one text that are of a kind (the two kernels of a
head dim of 256) are put together. Of every kind: `program` and `float_flow`, digests of all that it is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fa4verify.kernels.shipped.audit.exponentials import exponentials, is_conversion
from fa4verify.kernels.shipped.audit.finishing import finishing_facts, scale_fact
from fa4verify.kernels.shipped.audit.float_flow import float_flow_fact
from fa4verify.kernels.shipped.audit.gradients import (
    gradient_facts,
    memory_facts,
    postprocess_facts,
    preprocess_facts,
)
from fa4verify.kernels.shipped.audit.program import program_fact
from fa4verify.kernels.shipped.audit.softmax import softmax_facts, steps
from fa4verify.kernels.shipped.audit.values import Graph
from fa4verify.ptx.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.kernels.shipped.audit.facts import Facts
    from fa4verify.ptx.module import Entry


def facts_of(text: str, parameters: Mapping[str, bytes] | None = None) -> dict[str, Facts]:
    """Return the facts of a PTX text by kind of kernel.

    Parameters
    ----------
    text
        One module.
    parameters
        Bytes of the kernel parameters of a recorded launch with softmax_scale 1, by name.

    Raises
    ------
    PtxError
        A text whose structure cannot be followed.
    """
    kinds: dict[str, Facts] = {}
    module = parse(text)
    for entry in module.entries:
        graph = Graph(entry)
        kind, facts = _of_entry(graph, parameters)
        put_together = {"program": program_fact(entry, module.variables), "float_flow": float_flow_fact(graph)}
        kinds = together(kinds, {kind: {**facts, **put_together}})
    return kinds


def together(kinds: Mapping[str, Facts], more: Mapping[str, Facts]) -> dict[str, Facts]:
    """Return the facts of both by kind; where both have a kind, with the values of both."""
    merged = {kind: _together(kinds[kind], facts) if kind in kinds else facts for kind, facts in more.items()}
    return {**kinds, **merged}


def parameter_places(entry: Entry) -> tuple[tuple[str, int, int], ...]:
    """Return name, offset and bytes of each kernel parameter (PTX ISA, "Kernel Function Parameters")."""
    places, offset = [], 0
    for one in entry.parameters:
        offset = -(-offset // one.align) * one.align
        places.append((one.name, offset, one.size))
        offset += one.size
    return tuple(places)


def _of_entry(graph: Graph, parameters: Mapping[str, bytes] | None) -> tuple[str, Facts]:
    found = exponentials(graph)
    weights = [one for one in found if one.role == "weight"]
    logarithm = any(node.is_a("lg2") for node in graph.nodes)
    if weights and logarithm:
        all_steps = steps(graph, weights)
        rescales = [one for one in found if one.role == "rescale"]
        facts = {**softmax_facts(graph, all_steps, rescales), **finishing_facts(graph, weights)}
        facts["log2e"] = scale_fact(graph, all_steps, parameters)
        return "forward", {**facts, **memory_facts(graph)}
    if weights:
        return "backward", {**gradient_facts(graph, weights), **memory_facts(graph)}
    if found or logarithm:
        return "combine", {}
    before = preprocess_facts(graph)
    if before["log2e"].value is not None:
        return "preprocess", before
    if any(is_conversion(node) for node in graph.nodes):
        return "postprocess", postprocess_facts(graph)
    return "other", {}


def _together(one: Facts, other: Facts) -> Facts:
    merged = {}
    for name in sorted({*one, *other}):
        both = [facts[name] for facts in (one, other) if name in facts]
        values = [fact.value for fact in both]
        if any(value is None for value in values):
            merged[name] = next(fact for fact in both if fact.value is None)
        else:
            parts = sorted({part for value in values for part in (value or "").split("; ")} - {""})
            real = [part for part in parts if part != "none"] or parts
            merged[name] = msgspec.structs.replace(
                both[0],
                value="; ".join(real),
                lines=tuple(sorted({line for fact in both for line in fact.lines})),
            )
    return merged
