"""Two runs -> what changed between them.

Contract: cases pair by id, which holds problem, kernel, options and seed. A case is good if it passed (in a study also
if it failed: that is a point of a curve). A case is in one at most of `broken` (fails and did not, or was good and is
not judged now), `fixed`, `failing` (did before), `appeared` and `vanished`; `drifted` and `unchecked` look at the
figures of all that were measured in both runs. A figure has drifted where it moved by more
than the yardstick's tolerance and by more than the case's seeds differ (spread.py); less than that is `moved`.
Nothing here knows which kernel is right: a figure nearer 0 is called better, one that counts what was done is neither.
Known limit: a kernel of random order (atomics on a device) moves its figures in every run. Only other seeds in the
suite tell how much of that is ordinary; without them every such case drifts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from fa4verify.reports.spread import same_sums, seed_spread, tolerance
from fa4verify.vocabulary import BITS, EXP2_METRICS, METRICS, REPEAT_METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from fa4verify.reports.summary import Row, Summary
    from fa4verify.runs import RunHeader
    from fa4verify.vocabulary import Budget, Case, Metrics, Record

Direction = Literal["worse", "better", "other"]

ABSENT = "not there"
ACTIVITY, BASELINE = "activity", "baseline "
# Figures of the problem, of its yardstick or of what an order of adds did: no side of them is better.
_NEITHER = frozenset(
    {"truth_rms", "floor_rmse", "floor_max_abs", "expected_rmse", "input_rmse", "head_spread", "elements", "runs", BITS}
) | {
    "fa_rule_limit",
    "rate_bound",
    "distinct_shuffled",
}
_ERRORS = frozenset((*METRICS, *REPEAT_METRICS, *EXP2_METRICS)) - _NEITHER


@dataclass(frozen=True)
class Change:
    """A case whose verdict changed, or that is in one run only: statuses, and what decided the one that matters."""

    id: str
    before: str
    after: str
    why: str = ""
    command: str = ""


@dataclass(frozen=True)
class Drift:
    """One figure that moved further than it may; `new` is None where it is not measured any more."""

    tensor: str
    metric: str
    old: float
    new: float | None
    allowed: float
    direction: Direction

    @property
    def excess(self) -> float:
        """How many times the larger of both values the smaller is; infinite from or to 0."""
        low, high = sorted((abs(self.old), abs(self.new or 0.0)))
        return high / low if low else math.inf


@dataclass(frozen=True)
class Drifted:
    """A case with figures that drifted, worst first."""

    id: str
    figures: tuple[Drift, ...]
    command: str = ""

    @property
    def direction(self) -> Direction:
        """Worse if any figure is."""
        directions = {figure.direction for figure in self.figures}
        return "worse" if "worse" in directions else "better" if "better" in directions else "other"


@dataclass(frozen=True)
class Comparison:
    """What changed from `old` to `new`."""

    old: RunHeader
    new: RunHeader
    broken: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
    failing: tuple[Change, ...] = ()
    appeared: tuple[Change, ...] = ()
    vanished: tuple[Change, ...] = ()
    drifted: tuple[Drifted, ...] = ()
    unchecked: tuple[Change, ...] = ()
    limits: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    environment: tuple[tuple[str, str, str], ...] = ()
    paired: int = 0
    compared: int = 0
    moved: int = 0
    incomparable: int = 0
    same_sums: bool = True

    @property
    def worse(self) -> tuple[Drifted, ...]:
        """The cases of which a figure drifted away from 0."""
        return tuple(case for case in self.drifted if case.direction == "worse")

    @property
    def regressed(self) -> bool:
        """Whether something is worse than it was: a verdict, a figure, or what is checked."""
        return bool(self.broken or self.worse or self.unchecked)

    @property
    def departed(self) -> bool:
        """Whether a baseline is not kept: regressed, drifted in any direction, or a case of it was not run."""
        return self.regressed or bool(self.drifted) or bool(self.vanished) or not self.paired


def compare(old: Summary, new: Summary, *, only: Collection[str] | None = None) -> Comparison:
    """Compare two runs.

    Parameters
    ----------
    old, new
        The runs, finished or not; a case without a Record is MISSING.
    only
        The ids to look at: of a run of selected cases the others have not vanished.
    """
    before = {row.id: row for row in old.rows if only is None or row.id in only}
    after = {row.id: row for row in new.rows if only is None or row.id in only}
    groups: dict[str, list[Change]] = {name: [] for name in ("broken", "fixed", "failing", "appeared", "vanished")}
    for name in dict.fromkeys((*after, *before)):
        was, now = before.get(name), after.get(name)
        if kind := _kind(_state(old, was), _state(new, now)):
            groups[kind].append(_change(name, was, now))
    pairs = [(was, after[name]) for name, was in before.items() if name in after]
    figures = _Figures(old, new)
    drifted = [found for was, now in pairs if (found := figures.drifted(was, now))]
    order = {"worse": 0, "other": 1, "better": 2}
    drifted.sort(key=lambda case: (order[case.direction], -case.figures[0].excess))
    return Comparison(
        old=old.header,
        new=new.header,
        **{name: tuple(changes) for name, changes in groups.items()},
        drifted=tuple(drifted),
        unchecked=tuple(change for was, now in pairs for change in _unchecked(was, now)),
        limits=_limits(pairs),
        environment=tuple(_environment(old.header, new.header)),
        paired=len(pairs),
        compared=figures.compared,
        moved=figures.moved,
        incomparable=figures.incomparable,
        same_sums=figures.exact,
    )


def _state(summary: Summary, row: Row | None) -> str:
    if row is None:
        return "absent"
    if row.status == "PASS" or summary.is_point(row):
        return "good"
    return "skipped" if row.status == "SKIPPED" else "failing"


def _kind(was: str, now: str) -> str:
    """Return the group of a case, empty where nothing is to be told."""
    if now == "failing":
        return "failing" if was == "failing" else "broken"
    if now == "absent":
        return "vanished"
    if was == "absent":
        return "appeared"
    if was == "good" and now == "skipped":
        return "broken"
    return "fixed" if now == "good" and was != "good" else ""


def _change(name: str, was: Row | None, now: Row | None) -> Change:
    row = now or was
    why = "" if row is None or row.status == "PASS" else row.decisive
    before, after = (ABSENT if row is None else row.status for row in (was, now))
    return Change(name, before, after, why, now.command if now else "")


class _Figures:
    """Compares the figures of pairs of cases, and counts what it did."""

    def __init__(self, old: Summary, new: Summary) -> None:
        solvers = {_solver(header) for header in (old.header, new.header)}
        self.exact = same_sums(old.header.fingerprint, new.header.fingerprint) and len(solvers) == 1
        self.compared = self.moved = self.incomparable = 0
        self._seeds = [_by_problem(summary) for summary in (old, new)]

    def drifted(self, was: Row, now: Row) -> Drifted | None:
        if was.record is None or now.record is None:
            return None
        found = [*self._measured(was.record, now.record), *self._counted(was.record, now.record)]
        found.sort(key=lambda drift: (drift.direction != "worse", -drift.excess))
        return Drifted(now.id, tuple(found), now.command) if found else None

    def _measured(self, was: Record, now: Record) -> Iterator[Drift]:
        after = _tensors(now)
        for tensor, old in _tensors(was).items():
            new = after.get(tensor)
            if new is None:
                if was.checked.get(tensor) != "checked" or not now.checked:  # else `_unchecked` tells
                    name, value = next(iter(old.values.items()), ("", 0.0))
                    yield Drift(tensor, name, value, None, 0.0, "other")
                continue
            for name, value in old.values.items():
                if name not in new.values:
                    yield Drift(tensor, name, value, None, 0.0, "other")
                    continue
                allowed = 0.0 if self.exact else tolerance(name, old, new)
                yield from self._judged(was.case, (tensor, name), value, new.values[name], allowed)

    def _counted(self, was: Record, now: Record) -> Iterator[Drift]:
        for name, value in was.activity.items():
            if name in now.activity:
                yield from self._judged(was.case, (ACTIVITY, name), value, now.activity[name], 0.0)
            else:
                yield Drift(ACTIVITY, name, value, None, 0.0, "other")

    def _judged(
        self, case: Case, figure: tuple[str, str], old: float, new: float, allowed: float | None
    ) -> Iterator[Drift]:
        if allowed is None:
            self.incomparable += 1
            return
        self.compared += 1
        if abs(new - old) <= allowed:
            return
        spread = seed_spread(*(self._over_seeds(seeds, case, figure) for seeds in self._seeds))
        if abs(new - old) <= spread:
            self.moved += 1
            return
        yield Drift(*figure, old, new, max(spread, allowed), _direction(figure, old, new))

    @staticmethod
    def _over_seeds(seeds: dict[bytes, dict[int, Record]], case: Case, figure: tuple[str, str]) -> list[float]:
        tensor, name = figure
        records = list(seeds.get(problem(case), {}).values())
        if tensor == ACTIVITY:
            return [record.activity[name] for record in records if name in record.activity]
        found = (_tensors(record).get(tensor) for record in records)
        return [metrics.values[name] for metrics in found if metrics is not None and name in metrics.values]


def _solver(header: RunHeader) -> tuple[str, str] | None:
    """Return which GPU solves the truth, in which order of sums: its model and Triton's version; None for none.

    A file from before headers knew their device lists GPUs if its run had one.
    """
    facts, device = header.fingerprint, header.device
    found = [said for name, said in facts.items() if re.fullmatch(r"gpu \d+", name)]
    on_gpu = bool(found) if device is None else device.startswith("cuda")
    if not on_gpu:
        return None
    model = header.gpu or (found[0] if found else "")
    return model.partition(", driver ")[0], facts.get("triton", "")


def _tensors(record: Record) -> dict[str, Metrics]:
    return record.metrics | {f"{BASELINE}{name}": metrics for name, metrics in record.baseline.items()}


def _direction(figure: tuple[str, str], old: float, new: float) -> Direction:
    tensor, name = figure
    if tensor == ACTIVITY or tensor.startswith(BASELINE) or name not in _ERRORS or abs(new) == abs(old):
        return "other"
    return "worse" if abs(new) > abs(old) else "better"


def _by_problem(summary: Summary) -> dict[bytes, dict[int, Record]]:
    """Return the records of each problem by seed."""
    found: dict[bytes, dict[int, Record]] = {}
    for row in summary.rows:
        if row.record is not None:
            found.setdefault(problem(row.record.case), {})[row.record.case.seed] = row.record
    return found


def problem(case: Case) -> bytes:
    """Return what a case has in common with the same case of another seed."""
    return msgspec.json.encode(
        msgspec.structs.replace(
            case, id="", seed=0, suite="", substituted=False, timeout_s=0.0, budgets=(), requires=(), baseline=None
        )
    )


def _unchecked(was: Row, now: Row) -> Iterator[Change]:
    """Yield the tensors that were checked and are not; of a case that did not run, its verdict tells."""
    if was.record is None or now.record is None or not now.record.checked:
        return
    for name, state in was.record.checked.items():
        after = now.record.checked.get(name, "not listed")
        if state == "checked" != after:
            yield Change(now.id, f"{name} checked", "not checked", after, now.command)


def _limits(pairs: Iterable[tuple[Row, Row]]) -> dict[tuple[str, str, str], int]:
    """Return the limits that are other ones now: name, before and after, with the number of cases."""
    found: Counter[tuple[str, str, str]] = Counter()
    for was, now in pairs:
        if was.record is None or now.record is None or not now.record.metrics:
            continue  # a Record that could not be stored has lost its case's limits too
        before, after = (
            {budget.name: budget for budget in row.record.case.budgets} for row in (was, now) if row.record
        )
        for name in dict.fromkeys((*before, *after)):
            told = [_limit(budgets.get(name)) for budgets in (before, after)]
            if told[0] != told[1]:
                found[name, told[0], told[1]] += 1
    return dict(found)


def _limit(budget: Budget | None) -> str:
    if budget is None:
        return "none"
    around = f" around {budget.value:g}" if budget.kind == "equals" else ""
    return f"{budget.tensor} {budget.metric} {budget.kind} {budget.limit:g}{around}"


def _environment(old: RunHeader, new: RunHeader) -> Iterator[tuple[str, str, str]]:
    sides = [
        {"fa4verify": header.version, "commit": header.commit, "machine": header.machine, "suite": header.suite}
        | {"kernel": header.kernel or "as in the suite"}
        | header.fingerprint
        for header in (old, new)
    ]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        before, after = (side.get(name) or "unknown" for side in sides)
        if before != after:
            yield name, before, after
