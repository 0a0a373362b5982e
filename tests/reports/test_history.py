"""Pairs of runs made by hand, in each of which one thing changed."""

from __future__ import annotations

import math

import msgspec
import pytest

from fa4verify.reports import summarise
from fa4verify.reports.history import Comparison, compare
from fa4verify.reports.spread import DECIDES
from fa4verify.vocabulary import Budget, Metrics, Profile, Record, Study
from tests.reports.make import case, record, run

STUDY = Study("options.tau", ("dtype",), ("o.rmse",))


def compared(old: list[Record], new: list[Record], **how: object) -> Comparison:
    only = how.pop("only", None)
    return compare(summarise(run(*old, **how)), summarise(run(*new, **how)), only=only)


def of(name: str, outcome: str = "PASS", *, seed: int = 0, rmse: float = 1e-5, **more: object) -> Record:
    values = {"rmse": rmse, "truth_rms": 1.0, "elements": 64.0, "ulp_p99": 2.0} | more.pop("values", {})
    metrics = {"o": Metrics(values, profile=Profile(radius=more.pop("radius", 1e-15)))}
    return record(name, outcome, case=case(name, seed=seed), metrics=metrics, **more)


@pytest.mark.parametrize(
    ("before", "after", "group", "regressed"),
    [
        ("PASS", "PASS", None, False),
        ("PASS", "FAIL", "broken", True),
        ("PASS", "INCONCLUSIVE", "broken", True),
        ("PASS", "CRASHED", "broken", True),
        ("PASS", "TIMEOUT", "broken", True),
        ("PASS", "SKIPPED", "broken", True),
        ("PASS", "MISSING", "broken", True),
        ("SKIPPED", "FAIL", "broken", True),
        ("SKIPPED", "PASS", "fixed", False),
        ("SKIPPED", "SKIPPED", None, False),
        ("FAIL", "PASS", "fixed", False),
        ("MISSING", "PASS", "fixed", False),
        ("FAIL", "SKIPPED", None, False),
        ("FAIL", "FAIL", "failing", False),
        ("FAIL", "CRASHED", "failing", False),
        (None, "PASS", "appeared", False),
        (None, "SKIPPED", "appeared", False),
        (None, "FAIL", "broken", True),
        ("PASS", None, "vanished", False),
        ("FAIL", None, "vanished", False),
    ],
)
def test_each_pair_of_verdicts_has_one_place(before, after, group, regressed):
    sides = []
    for outcome in (before, after):
        records = [record("other")] + ([record("a", outcome)] if outcome not in (None, "MISSING") else [])
        sides.append(summarise(run(*records, asked=("a",) if outcome == "MISSING" else ())))
    found = compare(*sides)
    groups = {name: getattr(found, name) for name in ("broken", "fixed", "failing", "appeared", "vanished")}
    assert {name: [change.id for change in changes] for name, changes in groups.items() if changes} == (
        {group: ["a"]} if group else {}
    )
    assert found.regressed is regressed
    if group and after not in (None, "PASS"):
        assert groups[group][0].why


def test_a_point_of_a_study_does_not_break():
    assert not compared([record("a")], [record("a", "FAIL")], study=STUDY).regressed
    assert compared([record("a")], [record("a", "CRASHED")], study=STUDY).regressed


def test_equal_figures_are_no_drift_and_the_last_bit_is():
    old = of("a")
    assert not compared([old], [old]).departed
    assert compared([old], [old]).compared == 7, "four metrics, one of the baseline kernel, two counters"
    (drifted,) = compared([old], [of("a", rmse=math.nextafter(1e-5, 1))]).drifted
    (figure,) = drifted.figures
    assert (figure.tensor, figure.metric, figure.direction, figure.allowed) == ("o", "rmse", "worse", 0.0)


def test_directions():
    assert compared([of("a")], [of("a", rmse=2e-5)]).regressed
    better = compared([of("a")], [of("a", rmse=5e-6)])
    assert (better.regressed, better.departed) == (False, True)
    problem = compared([of("a")], [of("a", values={"elements": 65.0})])
    assert [figure.direction for figure in problem.drifted[0].figures] == ["other"]
    assert (problem.regressed, problem.departed) == (False, True)
    signed = compared([of("a", values={"mean_error": -2e-6})], [of("a", values={"mean_error": 1e-6})])
    assert signed.drifted[0].direction == "better", "nearer 0, on the other side"
    active = compared([of("a", activity={"rescales_done": 3})], [of("a", activity={"rescales_done": 4})])
    assert [figure.tensor for figure in active.drifted[0].figures] == ["activity"]
    uncounted = compared([of("a", activity={"rescales_done": 3})], [of("a", activity={})])
    assert [figure.metric for figure in uncounted.drifted[0].figures] == ["rescales_done"], "counted no more"
    alone = compared([of("a")], [of("a", baseline={})])
    assert [figure.tensor for figure in alone.drifted[0].figures] == ["baseline o"], "compared with nothing any more"
    gone = msgspec.structs.replace(of("a"), metrics={"o": Metrics({"rmse": 1e-5})})
    assert compared([of("a")], [gone]).departed, "a figure that is not measured any more"


def test_seeds_tell_how_far_a_figure_may_move():
    old = [of("s0", seed=0, rmse=1.0e-5), of("s1", seed=1, rmse=1.2e-5)]
    near = [of("s0", seed=0, rmse=1.15e-5), of("s1", seed=1, rmse=1.35e-5)]
    found = compared(old, near)
    assert (found.drifted, found.moved) == ((), 2)
    far = [of("s0", seed=0, rmse=1.3e-5), of("s1", seed=1, rmse=1.5e-5)]
    assert [case.id for case in compared(old, far).drifted] == ["s0", "s1"]
    wild = [of("s0", seed=0, rmse=9e-5), of("s1", seed=1, rmse=1.2e-5)]
    assert [case.id for case in compared(old, wild).drifted] == ["s0"], "nor does a wild seed excuse itself"
    other = [old[0], record("s1", case=case("s1", seed=1, causal=True), metrics=old[1].metrics)]
    moved = [near[0], other[1]]
    assert [case.id for case in compared(other, moved).drifted] == ["s0"], "another problem is no other seed"


def test_another_machine_moves_figures_by_what_its_truth_can():
    def elsewhere(*records: Record) -> object:
        item = run(*records)
        fingerprint = dict.fromkeys(DECIDES, "another")
        header = msgspec.structs.replace(item.header, fingerprint=fingerprint)
        return summarise(type(item)(header, item.records))

    here = summarise(run(of("a", radius=1e-12)))
    found = compare(here, elsewhere(of("a", rmse=1e-5 + 3e-12, radius=1e-12, values={"ulp_p99": 4.0})))
    assert not found.departed
    assert not found.same_sums
    assert found.incomparable == 2, "ulp_p99, and the baseline's rmse, whose truth has no radius"
    assert compare(here, elsewhere(of("a", rmse=1e-5 + 5e-12, radius=1e-12))).regressed
    assert {name for name, *_ in found.environment} == {*DECIDES}


def test_a_truth_solved_on_a_gpu_is_one_of_another_machine():
    def on(device: str | None) -> object:
        item = run(of("a", radius=1e-12, rmse=1e-5 + (3e-12 if device else 0.0)))
        return summarise(type(item)(msgspec.structs.replace(item.header, device=device), item.records))

    assert compare(on(None), on("cuda:0")).departed is False
    assert compare(on(None), on("cpu")).departed
    assert compare(on("cuda:1"), on("cuda:0")).departed is False, "the same figure"


def test_a_truth_solved_on_another_gpu_is_one_of_another_machine():
    """Another model takes other kernels of cuBLAS, another Triton other instructions; a driver changes neither."""
    h200, a100 = "NVIDIA H200, sm_90, 143771 MiB, driver 5", "NVIDIA A100, sm_80, 81920 MiB, driver 5"

    def on(device: str | None, moved: float = 0.0, **facts: str) -> object:
        item = run(of("a", radius=1e-12, rmse=1e-5 + moved))
        fingerprint = item.header.fingerprint | {name.replace("_", " "): fact for name, fact in facts.items()}
        return summarise(
            type(item)(msgspec.structs.replace(item.header, device=device, fingerprint=fingerprint), item.records)
        )

    here = on("cuda:0", gpu_0=h200, gpu_1=a100, triton="3.6.0")
    assert compare(here, on("cuda:0", 3e-12, gpu_0=h200[:-1] + "6", triton="3.6.0")).departed
    assert compare(here, on("cuda:1", 3e-12, gpu_0=a100, gpu_1=h200, triton="3.6.0")).departed
    assert not compare(here, on("cuda:1", 3e-12, gpu_0=h200, gpu_1=a100, triton="3.6.0")).departed
    assert not compare(here, on("cuda:0", 3e-12, gpu_0=h200, triton="3.7.0")).departed
    old = on(None, gpu_0=h200, triton="3.6.0")  # a header without the field, of a run that had a GPU
    assert compare(old, on("cuda:0", 3e-12, gpu_0=h200, triton="3.6.0")).departed
    assert not compare(old, on("cpu", 3e-12, triton="3.6.0")).departed


def test_what_is_not_checked_any_more_is_a_regression():
    old, new = (of("a", checked={"o": state, "lse": "checked"}) for state in ("checked", "no budget"))
    found = compared([old], [new])
    assert [(change.before, change.why) for change in found.unchecked] == [("o checked", "no budget")]
    assert found.regressed
    assert not compared([new], [old]).regressed
    assert not compared([old], [record("a", "CRASHED")]).unchecked, "its verdict tells"


def test_limits_that_changed_are_told_once():
    def limited(name: str, limit: float) -> Record:
        budget = Budget("o-rmse", "o", "rmse", "absolute", limit, "made by hand")
        return of(name) if limit == 0 else msgspec.structs.replace(of(name), case=case(name, budgets=(budget,)))

    found = compared([limited("a", 1.0), limited("b", 1.0)], [limited("a", 2.0), limited("b", 2.0)])
    assert dict(found.limits) == {("o-rmse", "o rmse absolute 1", "o rmse absolute 2"): 2}
    assert not found.departed
    assert dict(compared([limited("a", 1.0)], [limited("a", 0)]).limits) == {("o-rmse", "o rmse absolute 1", "none"): 1}


def test_of_selected_cases_the_others_have_not_vanished():
    old, new = [record("a"), record("b")], [record("a")]
    assert len(compared(old, new).vanished) == 1
    assert not compared(old, new, only={"a"}).vanished


def test_a_baseline_of_which_a_case_is_lost_is_not_kept():
    found = compared([record("a"), record("b")], [record("a")])
    assert (found.regressed, found.departed) == (False, True)
    assert not compared([record("a"), record("b")], [record("a")], only={"a"}).departed


def test_a_baseline_that_shares_no_case_is_not_kept():
    found = compared([record("a")], [record("b")])
    assert (found.paired, found.regressed, found.departed) == (0, False, True)
