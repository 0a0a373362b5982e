"""No schedule changes a bit of FA4; of a kernel that lacks a wait the late ones do, and say which wait it was."""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("flash_attn.cute.interface", exc_type=ImportError)

import fa4verify
from fa4verify import cases
from fa4verify.kernels.shipped import races
from fa4verify.kernels.shipped.execution import current, running
from fa4verify.ptx import Schedule
from fa4verify.ptx.errors import Deadlock
from fa4verify.ptx.operations import Op

SUITE = Path(__file__).parents[2] / "mutants" / "shipped.toml"
FORWARD = "fwd-fa4@sm_90a-bf16-b1h1q200k512d64-causal-fa3_outlier-s0"
BACKWARD = "bwd-fa4@sm_90a-bf16-b1h1q200k384d64-causal-normal-s0"
LATE = Schedule(order="random", quantum=200, late=True)


@dataclass(frozen=True)
class Without:
    """FA4's forward for Hopper without the n-th instruction that holds a text."""

    text: str
    nth: int = 0

    def forward(self, q, k, v, **options):
        """Run the forward without it."""

        def alter(kernel):
            rows = [row for row in range(len(kernel.code)) if self.text in kernel.source_line(row)]
            return kernel.without(rows[self.nth])

        with running(replace(current(), alter=alter)):
            return fa4verify.kernel("fa4@sm_90a").forward(q, k, v, **options)


WITHOUT_WAIT = Without("wgmma.wait_group")
WITHOUT_ARRIVAL = Without("mbarrier.arrive.shared")


def case(case_id, **changes):
    found = {one.id: one for one in cases.load_suite(str(SUITE)).cases}[case_id]
    return msgspec.structs.replace(found, **changes)


def outcomes(chosen, *schedules):
    return list(races.under_schedules(chosen, cases.draw(chosen), schedules))


def test_the_schedules_are_of_every_kind_and_drawn_by_the_seed():
    chosen = races.schedules(6, seed=3)
    assert len(set(chosen)) == len(set(map(races.describe, chosen))) == 8
    assert chosen[0] == Schedule()
    assert chosen[1].order == "reversed"
    assert [one.late for one in chosen[2:]] == [True, False] * 3
    assert {one.quantum for one in chosen[2:]} == {1, 7, 33}
    assert {one.seed for one in chosen[2:]} == set(range(3, 9))
    assert races.describe(chosen[2]) == "random, seed 3, at most 1 rows at a time, late"


@pytest.mark.parametrize("case_id", [FORWARD, BACKWARD])
def test_the_bits_of_fa4_do_not_depend_on_the_schedule(case_id):
    found = outcomes(case(case_id), *races.schedules(2), LATE)
    assert all(one.agrees for one in found)
    assert [one.schedule for one in found[:2]] == ["fixed", "reversed"]
    assert len({one.steps for one in found}) > 1, "the schedules were other ones"


def test_a_missing_wait_changes_bits_only_late():
    chosen = case(FORWARD, kernel=f"{__name__}:WITHOUT_WAIT")
    fixed, random, late = outcomes(chosen, Schedule(), Schedule(order="random", quantum=200), LATE)
    assert fixed.agrees
    assert random.agrees
    assert not late.agrees
    assert late.fault is None
    # 128 of 200 rows: two of the four warp groups' first scores are read before they are there.
    assert late.different["lse"] >= 64


def test_a_missing_arrival_is_a_fault_of_the_fixed_order():
    with pytest.raises(Deadlock, match="mbarrier"):
        outcomes(case(FORWARD, kernel=f"{__name__}:WITHOUT_ARRIVAL"), Schedule(), LATE)


def test_a_backward_that_promises_no_bits_depends_on_the_schedule():
    """The case's own seed does not take the schedule's place."""
    chosen = case(BACKWARD, deterministic=False)
    found = outcomes(chosen, *races.schedules(3))
    assert any("dq" in one.different for one in found)
    assert not any("dk" in one.different or "dv" in one.different for one in found)
    assert all(one.fault is None for one in found)


def test_deletions_know_their_number_and_who_noticed():
    chosen = case(FORWARD)
    inputs = cases.draw(chosen)
    deletions = races.Deletions(chosen, inputs, (Schedule(), LATE), lambda text: "wait_group" in text)
    assert len(deletions) == 7  # wgmma: 4 that wait for all, 2 for all but one; and the store's
    found = list(deletions)
    assert [(one.instruction, one.noticed is not None) for one in found] == [
        *((f"wgmma.wait_group.sync.aligned {left};", True) for left in (0, 1, 0, 1, 0, 0)),
        ("cp.async.bulk.wait_group.read 0;", False),
    ]
    assert all("flash_fwd_sm90" in one.kernel for one in found)
    assert all(one.noticed.schedule == races.describe(LATE) for one in found[:-1]), "late schedules come first"
    assert found[0].line < found[1].line


def test_a_deadlock_tells_who_waits_on_one_line():
    chosen = case(FORWARD)
    deletions = races.Deletions(chosen, cases.draw(chosen), (Schedule(),), lambda text: text == "bar.arrive 1, 416;")
    (only,) = deletions
    assert only.noticed.fault.startswith("Deadlock: nobody can go on")
    assert "barrier 1, 32 of 416 threads" in only.noticed.fault
    assert "\n" not in only.noticed.fault
    assert only.noticed.steps == 0


def test_all_that_synchronises_is_left_out_and_nothing_else():
    chosen = case(FORWARD)
    seen = {}

    class Looking(races.Deletions):
        def places(self):
            for kernel, row in self._places:
                seen.setdefault(kernel.program.instructions[row].opcode.split(".")[0], set()).add(row)

    Looking(chosen, cases.draw(chosen), (Schedule(),)).places()
    assert set(seen) == {"bar", "mbarrier", "wgmma", "cp"}
    assert sum(map(len, seen.values())) == 55
    assert Op.MBARRIER_INIT not in races.SYNCHRONISING
