"""Runs of one case: seeds make orders, a twin of ours shuffles whatever the kernel does, a flag can be refused."""

from dataclasses import replace

import msgspec
import pytest
import torch

from fa4verify.cases import draw
from fa4verify.kernels import Unsupported, repeat, repeated, shuffled
from fa4verify.kernels.gpu.load import Load
from fa4verify.kernels.repeated import SHUFFLES, takes_flag, twin_of
from fa4verify.vocabulary import Case, Distribution, Shape

# Four heads: with one, 128 rows share one order and about two elements of their dQ show it.
CASE = Case(
    "rep", "repeat", "fa4-sm90", Distribution("normal"), dtype="fp16", shape=Shape(1, 128, 1024, 4, 4, 64, 64), runs=3
)
INPUTS = draw(CASE)


def distinct(outputs, name="dq"):
    return len({getattr(output, name).numpy().tobytes() for output in outputs})


def kept(outputs):
    """Keep all runs: each is filled with NaN when the next is asked for."""
    return [replace(one, **{name: getattr(one, name).clone() for name in ("dq", "dk", "dv")}) for one in outputs]


def with_kernel(name, **fields):
    return msgspec.structs.replace(CASE, kernel=f"{__name__}:{name}" if name in globals() else name, **fields)


def attention(q, k, v, softmax_scale):
    weights = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()).mul(softmax_scale).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()).to(q.dtype)


def plain(q, k, v, *, causal, softmax_scale):
    return attention(q, k, v, softmax_scale)


def flagged(q, k, v, *, causal, softmax_scale, deterministic=False):
    return attention(q, k, v, softmax_scale)


def asserts(q, k, v, *, causal, softmax_scale, deterministic=False):
    assert not deterministic, "deterministic backward not supported on SM 12.x"
    return attention(q, k, v, softmax_scale)


def broken(q, k, v, *, causal, softmax_scale, deterministic=False):
    raise RuntimeError("an illegal memory access")


class Swallows:
    """Takes any option of a backward, whether or not it reads it."""

    def forward(self, q, k, v, *, causal, softmax_scale):  # noqa: ARG002
        """Return attention without a mask."""
        return attention(q, k, v, softmax_scale)

    def backward(self, dout, q, k, v, o, lse, **options):  # noqa: ARG002
        """Return zeros."""
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


swallows = Swallows()


@pytest.mark.parametrize("name", ["fa4-sm90", "fa4-sm100"])
def test_without_the_flag_each_run_is_another_order_and_with_it_none_is(name):
    assert distinct(repeat(with_kernel(name), INPUTS)) == 1
    free = kept(repeat(with_kernel(name, deterministic=False), INPUTS))
    assert distinct(free) == 3
    assert distinct(free, "dk") == distinct(free, "dv") == distinct(free, "o") == distinct(free, "lse") == 1


def test_the_same_runs_come_again():
    free = with_kernel("fa4-sm90", deterministic=False)
    assert distinct([*kept(repeat(free, INPUTS)), *kept(repeat(free, INPUTS))]) == 3


@pytest.mark.parametrize("name", ["fa4-sm90", "fa4-sm100", "plain"])
def test_the_twin_shuffles_whatever_is_under_test(name):
    twins = list(shuffled(with_kernel(name), INPUTS))
    assert len(twins) == distinct(twins) == SHUFFLES


def test_two_kv_tiles_have_no_order():
    small = msgspec.structs.replace(CASE, shape=Shape(1, 128, 256, 1, 1, 64, 64))
    assert distinct(shuffled(small, draw(small))) == 1


def test_the_twin_keeps_its_own_options_and_drops_a_strangers():
    own = with_kernel("fa4-sm100", options={"disable_2cta": True, "grad_dtype": "fp32"})
    assert next(shuffled(own, INPUTS)).dq.dtype == torch.float32
    assert next(shuffled(with_kernel("plain", options={"block": 7}), INPUTS)).dq.dtype == torch.float16


def test_a_case_without_adds_to_order_borrows_hoppers():
    wide = msgspec.structs.replace(CASE, kernel="fa4-sm100", shape=Shape(1, 128, 1024, 1, 1, 256, 256))
    assert twin_of(wide) == "fa4-sm90"
    assert twin_of(with_kernel("fa4-sm100")) == "fa4-sm100"
    assert twin_of(with_kernel("plain")) == "fa4-sm90"


def test_who_takes_the_flag():
    assert takes_flag("fa4-sm90")
    assert takes_flag("standard")  # it has no backward, which is for `run` to say
    assert [takes_flag(f"{__name__}:{name}") for name in ("plain", "flagged", "swallows")] == [False, True, True]


def test_a_kernel_without_the_flag_declines_it_and_runs_without():
    with pytest.raises(Unsupported, match="does not take deterministic"):
        next(repeat(with_kernel("plain"), INPUTS))
    assert distinct(repeat(with_kernel("plain", deterministic=False), INPUTS)) == 1


def test_an_error_that_only_the_flag_raises_is_a_refusal():
    with pytest.raises(Unsupported, match=r"refuses deterministic=True: AssertionError: .* not supported on SM 12"):
        next(repeat(with_kernel("asserts"), INPUTS))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        next(repeat(with_kernel("broken"), INPUTS))


class OneMemory:
    """Returns the same memory from every run, and writes over O and LSE in its backward."""

    memory = torch.zeros(1, 128, 4, 64, dtype=torch.float16)

    def forward(self, q, k, v, *, causal, softmax_scale):  # noqa: ARG002
        """Return attention without a mask."""
        return self.memory.copy_(attention(q, k, v, softmax_scale))

    def backward(self, dout, q, k, v, o, lse, *, causal, softmax_scale):  # noqa: ARG002
        """Return zeros."""
        o.fill_(torch.nan)
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


one_memory = OneMemory()


def test_what_a_backward_writes_over_is_reported_as_the_forward_gave_it():
    case = with_kernel("one_memory", deterministic=False)
    for output in repeat(case, INPUTS):
        expected = attention(*(INPUTS.tensors[name] for name in ("q", "k", "v")), 64**-0.5)
        assert torch.equal(output.o, expected)


def test_gradients_before_their_rounding():
    fp32 = next(repeat(with_kernel("fa4-sm90", options={"grad_dtype": "fp32"}), INPUTS))
    rounded = next(repeat(CASE, INPUTS))
    for name in ("dq", "dk", "dv"):
        assert torch.equal(getattr(fp32, name).half(), getattr(rounded, name))
    with pytest.raises(ValueError, match="expected 'fp32'"):
        next(repeat(with_kernel("fa4-sm90", options={"grad_dtype": "fp64"}), INPUTS))


class LastAnswer(Swallows):
    """Computes its gradients once and returns the same tensors in every run."""

    given = None

    def backward(self, dout, q, k, v, o, lse, **options):  # noqa: ARG002
        """Return what was returned before."""
        self.given = self.given or tuple(torch.randn(x.shape, dtype=x.dtype) for x in (q, k, v))
        return self.given


last_answer = LastAnswer()


def test_an_answer_that_is_not_computed_again_is_no_repetition():
    runs = [one.dq.isnan().any().item() for one in repeat(with_kernel("last_answer"), INPUTS)]
    assert runs == [False, True, True]


class Unwilling(Load):
    """A load whose thread fails, at once or later."""

    def __init__(self, after):
        super().__init__("cuda:0")
        self.after = after

    def _queue(self):
        for _ in range(self.after):
            self._queued()
        raise RuntimeError("no memory for the load")


def test_a_load_that_does_not_start_or_ends_early_is_an_error():
    with pytest.raises(RuntimeError, match="no memory for the load"), Unwilling(0):
        pass
    early = Unwilling(3)
    early._thread.start()
    early._thread.join()
    assert early.products == 3
    with pytest.raises(RuntimeError, match="no memory for the load"):
        early.since()


class Steady(Load):
    """A load of five products."""

    def _queue(self):
        self.products = 4
        self._queued()
        self._stop.wait()


def test_each_loaded_run_tells_what_ran_beside_it(monkeypatch):
    monkeypatch.setattr(repeated, "_load", lambda *_: Steady("cuda:0"))
    counts = [one.activity["load_products"] for one in repeat(with_kernel("swallows", loaded=True), INPUTS)]
    assert counts == [5, 0, 0]
