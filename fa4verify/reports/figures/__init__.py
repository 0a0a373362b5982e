"""Figures of a run: which there are, each drawn from Records alone and left out where a run has nothing for it.

Contract: `figures` gives those that the records fill, in reading order; each is SVG of at most 30 kB, the same bytes
for the same records and matplotlib. Nothing is measured here: what a figure shows stands in the Record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.reports.figures import checks, errors, places, studies
from fa4verify.reports.figures.canvas import Figure
from fa4verify.reports.measures import metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fa4verify.vocabulary import Record

__all__ = ["Figure", "figures"]

# Tensors whose rows are mapped, of the worst record of each operation.
_MAPPED = {"forward": ("o",), "backward": ("dq", "dk", "dv")}
_CANCELS = 0.1  # relative error of a row


def figures(records: Sequence[Record]) -> tuple[Figure, ...]:
    """Return the figures of these records."""
    return tuple(figure for figure in _all(records) if figure is not None)


def _all(records: Sequence[Record]) -> Iterator[Figure | None]:
    yield checks.matrix(records)
    for operation in ("forward", "backward"):
        for dtype in ("bf16", "fp16"):
            yield errors.exceedance(records, operation, dtype)
    yield errors.ulps(records)
    yield errors.lengths(records)
    yield places.octave(records)
    yield places.columns(records)
    for operation, tensors in _MAPPED.items():
        yield from _maps([record for record in records if record.case.operation == operation], tensors)
    yield studies.rescale(records)
    yield studies.determinism(records)


def _maps(records: Sequence[Record], tensors: Sequence[str]) -> Iterator[Figure | None]:
    """Map the tensor whose worst row is worst, of the record that failed or came closest to its limits."""
    mapped = [record for record in records if any(_worst_row(record, tensor) for tensor in tensors)]
    if not mapped:
        return
    worst = max(
        mapped, key=lambda record: (record.verdict.outcome == "FAIL", _tells(record, tensors), _tightest(record))
    )
    yield places.rows(worst, max(tensors, key=lambda tensor: _worst_row(worst, tensor)))


def _tells(record: Record, tensors: Sequence[str]) -> bool:
    """Whether no row cancels to nearly nothing: such rows are far off in any kernel, and hide the others."""
    return max(_worst_row(record, tensor) for tensor in tensors) < _CANCELS


def _worst_row(record: Record, tensor: str) -> float:
    return metric(record, tensor, "worst_row_relative_l2") or 0.0


def _tightest(record: Record) -> float:
    """Return the largest share of a limit that a finding of the record takes."""
    shares = (
        abs(finding.value / finding.limit) for finding in record.verdict.findings if finding.value and finding.limit
    )
    return max(shares, default=0.0)
