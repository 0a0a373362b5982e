"""The verdict on repeated runs: honoured, ignored, or no power to say."""

import msgspec
import pytest
import torch

from fa4verify.judgement import determinism
from fa4verify.judgement.repetition import measure, observe
from fa4verify.vocabulary import Budget, Case, Distribution, Output, Shape

ONE = tuple(
    Budget(f"{name}-same", name, "distinct", "absolute", 1.0, "a fixed order of adds") for name in ("dq", "dk", "dv")
)
MHA = Case("rep", "repeat", "any", Distribution("normal"), shape=Shape(1, 2, 4, 2, 2, 2, 2), runs=3, budgets=ONE)
GQA = msgspec.structs.replace(MHA, shape=Shape(1, 2, 4, 6, 2, 2, 2))


def run(dq=0.0, dk=0.0, dv=0.0, o=0.0):
    half = torch.bfloat16
    sizes = {"dq": (2, 2), "dk": (4, 2), "dv": (4, 2), "o": (2, 2)}
    values = {"dq": dq, "dk": dk, "dv": dv, "o": o}
    return Output(**{name: torch.full((1, n, h, 2), 1 + values[name], dtype=half) for name, (n, h) in sizes.items()})


MOVES = [run(), run(dq=0.5, dk=0.5, dv=0.5), run(dq=0.25)]


def judged(case, runs, twin=MOVES, no_twin=None):
    seen = observe(runs)
    metrics = measure(case, seen, observe(twin) if twin else None)
    verdict = determinism.judge(case, metrics, seen, no_twin)
    return verdict, determinism.flag(case, verdict, seen)


@pytest.mark.parametrize("case", [MHA, GQA])
def test_honoured(case):
    verdict, flag = judged(case, [run()] * 3)
    assert (verdict.outcome, flag) == ("PASS", "honoured")
    assert "dq has 1 bit pattern in 3 runs" in verdict.findings[0].message
    assert "fewer than 0.632 do, at 95 %" in verdict.findings[0].message
    assert "random orders of the adds give 3 patterns" in verdict.findings[0].message


@pytest.mark.parametrize("tensor", ["dq", "dk", "dv"])
@pytest.mark.parametrize("budgets", [ONE, ONE[:1]])
def test_ignored_with_index_and_both_values(tensor, budgets):
    """Under the flag every tensor is held, whether or not a budget names it."""
    case = msgspec.structs.replace(MHA, budgets=budgets)
    verdict, flag = judged(case, [run(), run(), run(**{tensor: 2**-7})])
    assert (verdict.outcome, flag) == ("FAIL", "accepted and ignored")
    broken = [finding for finding in verdict.findings if not finding.passed]
    assert len(broken) == 1
    message = broken[0].message
    assert message.startswith(f"deterministic=True accepted and ignored: {tensor} has 2 bit patterns in 3 runs")
    assert (
        "at [0, 0, 0, 0]: run 0 gave 1 (0x1.0000000000000p+0), run 2 gave 1.00781 (0x1.0200000000000p+0), 1 ulp"
        in message
    )
    assert broken[0].where == (0, 0, 0, 0)
    assert broken[0].value == 2


def test_a_forward_that_varies_is_not_blamed_on_the_flag():
    verdict, flag = judged(MHA, [run(), run(o=1.0), run()])
    assert verdict.outcome == "FAIL"
    assert "the forward has no fixed order: o has 2 bit patterns" in verdict.findings[0].message
    assert flag == "not proved"


def test_without_power_nothing_passes():
    verdict, flag = judged(MHA, [run()] * 3, twin=[run()] * 3)
    assert (verdict.outcome, flag) == ("INCONCLUSIVE", "not proved")
    assert verdict.findings[0].message.startswith("no power: random orders of the adds give the same bits of dq")


def test_power_is_asked_of_each_tensor_that_an_order_reaches():
    """Two query heads a KV head: dQ shows an order, dK and dV cannot."""
    verdict, _ = judged(GQA, [run()] * 3, twin=[run(), run(dq=0.5), run(dq=0.25)])
    assert verdict.outcome == "INCONCLUSIVE"
    assert [finding.tensor for finding in verdict.findings if not finding.passed] == ["dk", "dv"]


def test_without_the_flag_runs_that_differ_are_power_enough():
    free = msgspec.structs.replace(MHA, deterministic=False, budgets=ONE[1:])
    verdict, _ = judged(free, [run(), run(dq=0.5), run()], twin=[run()] * 3)
    assert verdict.outcome == "PASS"
    verdict, _ = judged(free, [run()] * 3, twin=[run()] * 3)
    assert verdict.outcome == "INCONCLUSIVE"


def test_without_a_twin_nothing_passes():
    verdict, _ = judged(MHA, [run()] * 3, twin=None, no_twin="GQA backward requires head_dim == head_dim_v")
    assert verdict.outcome == "INCONCLUSIVE"
    assert "GQA backward requires" in verdict.findings[0].message


def test_a_difference_is_a_difference_without_power_too():
    verdict, _ = judged(MHA, [run(), run(dq=1.0), run()], twin=[run()] * 3)
    assert verdict.outcome == "FAIL"


def test_without_the_flag_the_case_says_what_may_differ():
    free = msgspec.structs.replace(MHA, deterministic=False, budgets=ONE[1:])
    verdict, flag = judged(free, [*MOVES[:1], run(dq=0.5), run(dq=0.25)])
    assert (verdict.outcome, flag) == ("PASS", "not asked for")
    verdict, flag = judged(free, MOVES)
    assert (verdict.outcome, flag) == ("FAIL", "not asked for")
    assert "ignored" not in verdict.findings[0].message
    assert verdict.findings[0].message.startswith("dk has 2 bit patterns")


def test_what_was_checked():
    seen = observe([run()])
    assert determinism.checked(MHA, seen) == {
        "o": "checked", "lse": "the kernel returned none", "dq": "checked", "dk": "checked", "dv": "checked",
    }  # fmt: skip
    free = msgspec.structs.replace(MHA, deterministic=False, budgets=ONE[1:])
    assert determinism.checked(free, seen)["dq"] == "no budget: without deterministic its bits may differ"


def test_a_case_that_no_kernel_could_fail_is_refused():
    assert determinism.admit(MHA) == []
    lax = msgspec.structs.replace(ONE[0], limit=3.0)
    assert (
        "of which no two agree would pass dq-same" in determinism.admit(msgspec.structs.replace(MHA, budgets=(lax,)))[0]
    )
    ratio = msgspec.structs.replace(ONE[0], kind="ratio_to_baseline")
    assert "cannot be evaluated" in determinism.admit(msgspec.structs.replace(MHA, budgets=(ratio,)))[0]


def test_a_case_without_budgets_is_not_passed():
    verdict, _ = judged(msgspec.structs.replace(MHA, budgets=()), [run()] * 3)
    assert verdict.outcome == "INCONCLUSIVE"
