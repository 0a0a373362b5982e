"""Baselines: what is kept and what not, whose cases count here, one case at a time as all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fa4verify import kernels
from fa4verify.baseline import Baseline, counting, keep
from fa4verify.reports import summarise
from fa4verify.reports.history import compare
from fa4verify.runs import RunFileError, read
from fa4verify.vocabulary import Metrics, Profile
from tests.reports.make import case, record, run
from tests.reports.pictured import everything
from tests.reports.test_history import of

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = "fa4@sm_90a"


def kept(path: Path, *records: object) -> Path:
    keep(run(*records), path / "kept.jsonl.xz")
    return path / "kept.jsonl.xz"


def causal(item):
    """Return the record of another problem."""
    return msgspec.structs.replace(item, case=msgspec.structs.replace(item.case, causal=True))


def test_figures_limits_and_radius_are_kept_times_and_profiles_are_not(tmp_path):
    records = [item for item in everything() if item.verdict.outcome != "CRASHED"]
    found = read(kept(tmp_path, *records)).records
    assert not compare(summarise(run(*records)), summarise(run(*found))).departed
    for before, after in zip(records, found, strict=True):
        assert (after.case, after.verdict, after.seconds) == (before.case, before.verdict, {})
        profiles = [metrics.profile for metrics in after.metrics.values()]
        assert set(profiles) <= {None, Profile(radius=1e-13)}
    assert (tmp_path / "kept.jsonl.xz").stat().st_size < 5000


def test_records_are_kept_in_the_order_asked(tmp_path):
    """Workers finish in any order, and the same gate must give the same file."""
    names = ("a", "b", "c", "d")
    ran = run(*map(record, names))
    asked = msgspec.structs.replace(ran.header, asked=tuple(item.case.id for item in ran.records))
    for order in (ran.records, ran.records[::-1]):
        keep(type(ran)(asked, tuple(order), ran.notes), tmp_path / "kept.jsonl.xz")
        assert [item.case.id for item in read(tmp_path / "kept.jsonl.xz").records] == list(asked.asked)


@pytest.mark.parametrize("outcome", ["CRASHED", "TIMEOUT", "MISSING"])
def test_a_run_that_did_not_measure_all_is_no_baseline(tmp_path, outcome):
    bad = run(record("a"), asked=("b",)) if outcome == "MISSING" else run(record("a"), record("b", outcome))
    with pytest.raises(RunFileError, match=f"not written: 1 {outcome}: such a run is no baseline"):
        keep(bad, tmp_path / "kept.jsonl.xz")
    assert not list(tmp_path.iterdir())


def test_one_case_at_a_time_departs_as_all_at_once(tmp_path):
    old = [causal(of("a")), of("s0", seed=0, rmse=1.0e-5), of("s1", seed=1, rmse=1.2e-5), causal(record("p"))]
    new = [
        causal(of("a", rmse=2e-5)),
        of("s0", seed=0, rmse=1.1e-5),
        of("s1", seed=1, rmse=1.5e-5),
        causal(record("p", "SKIPPED")),
        of("n"),
    ]
    baseline = Baseline(kept(tmp_path, *old), run().header)
    departed = {item.case.id for item in new if baseline.departs(item)}
    assert departed == {"a", "s1", "p"}, "s0 moved by less than the seeds differ; n is new"
    together = compare(summarise(run(*old)), summarise(run(*new)))
    assert departed == {item.id for item in (*together.drifted, *together.broken)}
    assert "a" in baseline
    assert "n" not in baseline


def test_a_problem_that_is_another_one_under_the_same_id_is_still_compared(tmp_path):
    baseline = Baseline(kept(tmp_path, of("a")), run().header)
    assert baseline.departs(causal(of("a", rmse=2e-5)))


def test_a_kernel_that_cannot_run_here_does_not_count(tmp_path, monkeypatch):
    was = of("shipped")
    was = msgspec.structs.replace(was, case=msgspec.structs.replace(was.case, kernel=SHIPPED))
    skipped = msgspec.structs.replace(record("shipped", "SKIPPED"), case=was.case)
    before, cases = run(was, of("own")), [was.case, case("own"), case("new", kernel="their:own")]
    baseline = Baseline(kept(tmp_path, was, of("own")), run().header)
    for reason in (None, "needs flash-attn-4, not installed"):
        monkeypatch.setattr(kernels, "availability", lambda name, why=reason: why if name == SHIPPED else None)
        expected = {"own", "new"} if reason else {"shipped", "own", "new"}
        assert counting(before, cases, selected=False) == expected
        assert counting(before, cases[1:2], selected=True) == {"own"}
        assert bool(baseline.departs(skipped)) == (reason is None)


def test_an_exact_truth_has_radius_0_and_keeps_it(tmp_path):
    exact = record("a", metrics={"o": Metrics({"rmse": 1.0}, profile=Profile(radius=0.0))})
    (found,) = read(kept(tmp_path, exact)).records
    assert found.metrics["o"].profile == Profile(radius=0.0)
