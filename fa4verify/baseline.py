"""A run that others are held to: what is kept of it, and which of its cases count here.

Contract: `keep` writes what `reports/history.py` compares (cases with their limits, verdicts, figures, counters) and
what that takes (the radius of the truth), packed by xz: the 421 cases of the gate are 180 kB, of a run file's 3.2 MB.
Times and the rest of the profiles are left out: the same run, measured again, gives the same records.
A case whose kernel cannot run here (FlashAttention's own, where flash-attn-4 is not installed) does not count: that it
is SKIPPED says nothing of the code. One that a kernel declines although it can run here counts.
Known limit: judged alone, as the pytest plugin does, a case has only the kept run's seeds to tell how far it may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fa4verify import kernels
from fa4verify.outcome import write
from fa4verify.reports import changes, history, summarise
from fa4verify.runs import Run, RunFileError, packed, read
from fa4verify.vocabulary import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fa4verify.reports.summary import Status
    from fa4verify.runs import RunHeader
    from fa4verify.vocabulary import Case, Metrics, Record

UNFIT: tuple[Status, ...] = ("MISSING", "CRASHED", "TIMEOUT")


def keep(run: Run, path: Path) -> int:
    """Write a run as a baseline; return its size in bytes.

    Parameters
    ----------
    run
        A finished run.
    path
        Where to; what is there is replaced at once.

    Raises
    ------
    RunFileError
        The run has cases that were not measured, so that later runs could not be held to them; or the disk is full.
    """
    counts = summarise(run).counts
    unfit = [f"{counts[status]} {status}" for status in UNFIT if counts[status]]
    if unfit or run.notes:
        raise RunFileError(f"{path}: not written: {', '.join((*unfit, *run.notes))}: such a run is no baseline")
    content = packed(lean(run))
    write(path, content)
    return len(content)


def lean(run: Run) -> Run:
    """Return the run without what is not compared."""
    place = {name: i for i, name in enumerate(run.header.asked)}  # workers finish in any order
    ordered = sorted(run.records, key=lambda record: place.get(record.case.id, len(place)))
    return Run(run.header, tuple(map(_lean, ordered)), run.notes)


def _lean(record: Record) -> Record:
    return msgspec.structs.replace(
        record,
        metrics={name: _radius_alone(found) for name, found in record.metrics.items()},
        baseline={name: _radius_alone(found) for name, found in record.baseline.items()},
        seconds={},
    )


def _radius_alone(found: Metrics) -> Metrics:
    profile = found.profile
    kept = Profile(radius=profile.radius) if profile is not None and profile.radius is not None else None
    return msgspec.structs.replace(found, profile=kept)


def counting(before: Run, cases: Iterable[Case], *, selected: bool) -> frozenset[str]:
    """Return the ids to compare: those of both runs, or of the selected cases, whose kernel can run here."""
    now = {case.id: case.kernel for case in cases}
    kernel_of = {record.case.id: record.case.kernel for record in before.records} | now
    ids = now if selected else {*before.header.asked, *kernel_of}
    return frozenset(name for name in ids if name not in kernel_of or runs_here(kernel_of[name]))


def runs_here(kernel: str) -> bool:
    """Whether a kernel can run on this machine; a user's own is expected to."""
    return kernel not in kernels.names() or kernels.availability(kernel) is None


class Baseline:
    """A baseline that cases are held to one by one, as they come."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        """Read the file; `header` is that of the run that is held to it.

        Raises RunFileError where the file cannot be read.
        """
        run = read(path)
        self._now = msgspec.structs.replace(header, asked=())
        self._before = msgspec.structs.replace(run.header, asked=())
        self._records = {record.case.id: record for record in run.records}
        self._seeds: dict[bytes, list[Record]] = {}
        for record in run.records:
            self._seeds.setdefault(history.problem(record.case), []).append(record)

    def __contains__(self, name: str) -> bool:
        """Whether the baseline has a case of this id."""
        return name in self._records

    def departs(self, record: Record) -> tuple[str, ...]:
        """Return a line for each thing that is not as it was; a case that the baseline lacks departs from nothing."""
        name = record.case.id
        if name not in self or not runs_here(record.case.kernel):
            return ()
        seeds = self._seeds[history.problem(self._records[name].case)]
        before, now = Run(self._before, tuple(seeds)), Run(self._now, (record,))
        comparison = history.compare(summarise(before), summarise(now), only={name})
        return changes.departures(comparison).get(name, ())
