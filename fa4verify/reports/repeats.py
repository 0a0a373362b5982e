"""Repeated runs as tables: who honours `deterministic`, and what an order of adds moves.

Contract: of the records of operation repeat, those with `deterministic` make one matrix for each kernel and dtype,
heads and mask down, head dims across, a cell for what became of the flag; those without make a table of RMSE over
orders for each tensor that an order reaches. No such record, no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.reports.measures import activity, metric
from fa4verify.reports.study import Cell, Table
from fa4verify.reports.text import NONE, digits, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fa4verify.vocabulary import Case, Record

LEGEND = (
    "honoured N: one bit pattern of every tensor in N runs, where random orders of the adds are seen to differ; "
    "ignored: the flag was taken and bits differ; refused: the kernel says that it cannot; no power: no order could "
    "have shown; skipped: for another reason. RMSE over orders: range is largest less smallest, deterministic its "
    "order's less the mean, both over the mean; better: share of orders whose RMSE is below it."
)
GRADIENTS = ("dq", "dk", "dv")
# The worst of several records decides a cell.
_SEVERITY = ("PASS", "SKIPPED", "INCONCLUSIVE", "TIMEOUT", "CRASHED", "FAIL")
_ADDS = {"dq": "dq_adds_max", "dk": "dkv_adds", "dv": "dkv_adds"}


def tables(records: Iterable[Record]) -> tuple[Table, ...]:
    """Return the matrices, then the tables of RMSE."""
    repeated = [record for record in records if record.case.operation == "repeat"]
    return (*_matrices(repeated), *_spreads(repeated))


def heads_of(case: Case) -> str:
    """Return MHA, GQA or MQA."""
    shape = case.shape
    return "MHA" if shape.heads == shape.heads_kv else "MQA" if shape.heads_kv == 1 else "GQA"


def mask_of(case: Case) -> str:
    """Return full, causal or window."""
    return "window" if case.window_size != (None, None) else "causal" if case.causal else "full"


def _matrices(records: list[Record]) -> Iterator[Table]:
    titles: dict[str, dict[tuple[str, int], list[Record]]] = {}
    for record in records:
        case = record.case
        if case.deterministic:
            place = (f"{heads_of(case)} {mask_of(case)}", case.shape.head_dim)
            cells = titles.setdefault(f"deterministic: {case.kernel}, {case.dtype}", {})
            cells.setdefault(place, []).append(record)
    for title, cells in titles.items():
        dims = sorted({dim for _, dim in cells})
        labels = dict.fromkeys(label for label, _ in cells)
        lines = tuple((label, tuple(_state(cells.get((label, dim), [])) for dim in dims)) for label in labels)
        yield Table(title, ("heads, mask", *(f"d{dim}" for dim in dims)), lines)


def _state(records: list[Record]) -> Cell:
    """Say what became of the flag; of several records, what became of it in the worst."""
    if not records:
        return Cell(NONE)
    worst = max(records, key=lambda record: _SEVERITY.index(record.verdict.outcome))
    outcome = worst.verdict.outcome
    if outcome == "PASS":
        return Cell(f"honoured {min(record.case.runs for record in records)}", outcome)
    if outcome == "FAIL":
        several = [(name, metric(worst, name, "distinct") or 0.0) for name in ("o", "lse", *GRADIENTS)]
        told = ", ".join(f"{name} {count:.0f}" for name, count in several if count > 1)
        return Cell(f"ignored: {told}" if told else outcome, outcome)
    said = " ".join(finding.message for finding in worst.verdict.findings)
    if outcome == "SKIPPED" and "deterministic" in said:
        return Cell("refused", outcome)
    if outcome == "INCONCLUSIVE" and "no power" in said:
        return Cell("no power", outcome)
    return Cell(outcome.lower(), outcome)


def _spreads(records: list[Record]) -> Iterator[Table]:
    headers = ("keys", "adds", "orders", "patterns", "differ", "RMSE", "range", "deterministic", "better")
    titles: dict[str, list[tuple[int, tuple[Cell, ...]]]] = {}
    for record in records:
        for tensor in GRADIENTS:
            values = {
                name: metric(record, tensor, name) for name in ("rmse", "rmse_deterministic", "distinct_shuffled")
            }
            if record.case.deterministic or None in values.values():
                continue
            line = tuple(Cell(text, record.verdict.outcome) for text in _spread(record, tensor))
            titles.setdefault(_title(record.case, tensor), []).append((record.case.shape.seqlen_k, line))
    for title, lines in titles.items():
        ordered = sorted(lines, key=lambda line: line[0])
        yield Table(title, headers, tuple((str(keys), cells) for keys, cells in ordered))


def _spread(record: Record, tensor: str) -> tuple[str, ...]:
    def value(name: str) -> float:
        return metric(record, tensor, name) or 0.0

    mean = value("rmse")

    def relative(difference: float) -> str:
        return digits(difference / mean) if mean else NONE

    return (
        digits(activity(record, _ADDS[tensor])),
        digits(value("runs")),
        digits(value("distinct")),
        percent(value("differing_share")),
        digits(mean),
        relative(value("rmse_high") - value("rmse_low")),
        relative(value("rmse_deterministic") - mean),
        percent(value("orders_better")),
    )


def _title(case: Case, tensor: str) -> str:
    shape = case.shape
    heads = "" if shape.heads == shape.heads_kv == 1 else f" h{shape.heads}kv{shape.heads_kv}"
    mask = "" if mask_of(case) == "full" else f" {mask_of(case)}"
    options = "".join(f", {name}={value}" for name, value in sorted(case.options.items()))
    problem = f"{case.dtype} d{shape.head_dim}{heads}{mask}, {case.distribution.name}"
    return f"RMSE of {tensor} over orders: {case.kernel} {problem}{options}"
