"""What was asked for becomes a suite: the command in a record runs its case again, also one of a larger form."""

from contextlib import contextmanager

import msgspec
import pytest

from fa4verify import gpus
from fa4verify.cases import load_suite
from fa4verify.plan import BadRequest, placed, plan


@pytest.mark.parametrize("full", [False, True])
def test_an_id_is_found_in_the_form_that_has_it(full):
    case = load_suite("fa3_table", full=full).cases[-1]
    assert plan("fa3_table", select=f"id={case.id}", budgets=False).cases == (case,)


def test_nothing_is_found_in_either_form():
    for suite in ("fa3_table", "gate"):
        with pytest.raises(BadRequest, match="no case matches 'nothing_like_it'"):
            plan(suite, select="nothing_like_it", budgets=False)


def of_kernels(*names):
    suite = plan("smoke", select="operation=forward", budgets=False)
    cases = tuple(msgspec.structs.replace(suite.cases[0], kernel=name) for name in names)
    return msgspec.structs.replace(suite, cases=cases)


def test_a_required_gpu_is_claimed_for_a_kernel_of_the_users_own(monkeypatch):
    """On the CPU it would pass, and say nothing of the device that was required."""
    asked = []

    @contextmanager
    def claim(wanted):
        asked.append(wanted)
        yield "cuda:0"

    monkeypatch.setattr(gpus, "claim", claim)
    monkeypatch.setattr(gpus, "listed", lambda: ("a GPU",))
    own = of_kernels("mine:attention", "fa4-sm90")
    with placed(own, "auto", require_gpu=True) as device:
        assert device == "cuda:0"
    assert asked == ["auto"]
    with placed(own, "auto") as device:
        assert device is None
    monkeypatch.setattr(gpus, "listed", tuple)
    with pytest.raises(BadRequest, match="nvidia-smi lists none"), placed(own, "auto", require_gpu=True):
        pass
    with placed(of_kernels("sdpa-math"), "auto", require_gpu=True) as device:
        assert device is None, "its cases fail, each with its reason"


@pytest.mark.parametrize("kernel", ["mine:attention", "sdpa-math"])
def test_a_required_gpu_is_not_the_cpu(kernel):
    """sdpa-math runs on both."""
    with (
        pytest.raises(BadRequest, match="the device is to be cpu"),
        placed(of_kernels(kernel), "cpu", require_gpu=True),
    ):
        pass
