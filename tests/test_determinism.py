"""The operation repeat from draw to Record, on kernels that honour, refuse and ignore `deterministic`."""

import itertools

import msgspec
import pytest

import fa4verify
from fa4verify import cases, flow, judgement, kernels
from fa4verify.cases import load_suite
from fa4verify.judgement.repetition import order_dependent
from fa4verify.vocabulary import Budget, Case, Distribution, Shape, Suite

SAME = tuple(
    Budget(f"{name}-same", name, "distinct", "absolute", 1.0, "a fixed order of adds") for name in ("dq", "dk", "dv")
)
MHA = Case(
    id="rep",
    operation="repeat",
    kernel="fa4-sm90",
    distribution=Distribution("normal"),
    dtype="fp16",
    shape=Shape(1, 128, 1024, 4, 4, 64, 64),
    runs=4,
    budgets=SAME,
)
GQA = msgspec.structs.replace(MHA, shape=Shape(1, 64, 1024, 6, 2, 64, 64))
TWO_TILES = msgspec.structs.replace(MHA, shape=Shape(1, 128, 256, 4, 4, 64, 64))
FREE = msgspec.structs.replace(MHA, deterministic=False, budgets=SAME[1:])


class Wrapped:
    """fa4-sm90 whose backward asks `order` what to do with the flag in this run."""

    def __init__(self, order, change=None):
        self.order, self.change = order, change

    def forward(self, q, k, v, **options):
        """Run fa4-sm90's."""
        return fa4verify.kernel("fa4-sm90").forward(q, k, v, **options)

    def backward(self, dout, q, k, v, o, lse, *, deterministic, causal=False, softmax_scale=None):
        """Run fa4-sm90's in the order of this run."""
        deterministic, seed = self.order(deterministic)
        out = fa4verify.kernel("fa4-sm90").backward(
            dout, q, k, v, o, lse, causal=causal, softmax_scale=softmax_scale, deterministic=deterministic, seed=seed
        )
        return self.change(out) if self.change else out


def refuse(deterministic):
    if deterministic:
        raise fa4verify.Unsupported("SM120 backward has no deterministic mode")
    return False, 0


def unimplemented(deterministic):
    if deterministic:
        raise NotImplementedError("deterministic\nnot supported")
    return False, 0


def move_one_dk(out):
    out.dk[0, 5, 0, 3] += next(_count) % 2
    return out


_count = itertools.count()
honours = Wrapped(lambda deterministic: (deterministic, next(_count)))
ignores = Wrapped(lambda _: (False, next(_count)))
races = Wrapped(lambda deterministic: (deterministic and next(_count) % 4 != 3, 7))
constant = Wrapped(lambda _: (True, None))
refuses = Wrapped(refuse)
raises = Wrapped(unimplemented)
moves_dk = Wrapped(lambda _: (True, None), move_one_dk)


def _spoilt(out, name, value):
    getattr(out, name)[:] = value
    return out


zero_dq = Wrapped(lambda _: (True, None), lambda out: _spoilt(out, "dq", 0.0))
nan_dv = Wrapped(lambda _: (True, None), lambda out: _spoilt(out, "dv", float("nan")))


def no_flag(q, k, v, *, causal, softmax_scale):
    return q


def verified(case, name):
    kernel = f"{__name__}:{name}" if name in globals() else name
    return fa4verify.verify(msgspec.structs.replace(case, kernel=kernel))


def said(record):
    return " | ".join(finding.message for finding in record.verdict.findings)


@pytest.mark.parametrize("name", ["fa4-sm90", "fa4-sm100", "honours"])
@pytest.mark.parametrize("case", [MHA, GQA], ids=["mha", "gqa"])
def test_honoured(case, name):
    record = verified(case, name)
    assert record.verdict.outcome == "PASS", said(record)
    assert record.provenance["deterministic"] == "honoured"
    assert record.metrics["dq"].values["distinct_shuffled"] > 1
    assert set(record.checked.values()) == {"checked"}
    assert set(record.seconds) == {"draw", "run", "shuffle", "judge"}
    assert msgspec.json.decode(msgspec.json.encode(record), type=fa4verify.Record) == record


@pytest.mark.parametrize("name", ["ignores", "races"])
@pytest.mark.parametrize("case", [MHA, GQA], ids=["mha", "gqa"])
def test_accepted_and_ignored(case, name):
    """Always, or in one run of four: either way the bits differ, and the message says where and by what."""
    record = verified(case, name)
    assert record.verdict.outcome == "FAIL"
    assert record.provenance["deterministic"] == "accepted and ignored"
    assert "deterministic=True accepted and ignored: dq has" in said(record)
    assert ("deterministic=True accepted and ignored: dk has" in said(record)) == (case is GQA)
    broken = record.verdict.findings[0]
    assert broken.where == record.metrics["dq"].where["distinct"]
    assert "0x1." in broken.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_flag", "does not take deterministic"),
        ("refuses", "SM120 backward has no deterministic mode"),
        ("raises", "refuses deterministic=True: NotImplementedError: deterministic not supported"),
    ],
)
def test_refused(name, words):
    record = verified(MHA, name)
    assert record.verdict.outcome == "SKIPPED"
    assert words in said(record)
    assert verified(FREE, "refuses").verdict.outcome == "PASS"


def test_a_constant_kernel_cannot_fool_the_power_check():
    """The twin is ours: on eight tiles the case has power whatever the kernel does, on two it has none."""
    assert verified(MHA, "constant").provenance["deterministic"] == "honoured"
    record = verified(TWO_TILES, "constant")
    assert record.verdict.outcome == "INCONCLUSIVE"
    assert record.provenance["deterministic"] == "not proved"
    assert "no power" in said(record)
    assert verified(TWO_TILES, "ignores").verdict.outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("name", ["zero_dq", "nan_dv"])
def test_a_constant_and_nan_repeat_and_are_no_success(name):
    record = verified(MHA, name)
    assert (record.verdict.outcome, record.provenance["deterministic"]) == ("INCONCLUSIVE", "not proved")
    assert f"no power: {name[-2:]} is the same number everywhere, or holds NaN" in said(record)


def test_two_heads_have_no_order():
    pair = msgspec.structs.replace(MHA, shape=Shape(1, 128, 1024, 4, 2, 64, 64))
    record = verified(pair, "fa4-sm90")
    assert record.verdict.outcome == "INCONCLUSIVE"
    assert {finding.tensor for finding in record.verdict.findings if not finding.passed} == {"dk", "dv"}


def test_without_a_twin_there_is_no_verdict():
    odd = msgspec.structs.replace(GQA, shape=Shape(1, 64, 1024, 6, 2, 64, 32))
    assert verified(odd, "fa4-sm90").verdict.outcome == "SKIPPED"
    record = verified(odd, "constant_zero")
    assert record.verdict.outcome == "INCONCLUSIVE"
    assert "no shuffled twin: GQA backward requires head_dim == head_dim_v" in said(record)


class _Zero(Wrapped):
    def backward(self, dout, q, k, v, o, lse, *, deterministic, causal=False, softmax_scale=None):  # noqa: ARG002
        return q * 0, k * 0, v * 0


constant_zero = _Zero(None)


def test_without_the_flag_dq_may_differ_and_mha_dk_may_not():
    record = verified(FREE, "fa4-sm90")
    assert record.verdict.outcome == "PASS", said(record)
    assert record.provenance["deterministic"] == "not asked for"
    values = record.metrics["dq"].values
    assert values["distinct"] == 4
    assert values["rmse_low"] < values["rmse_high"] < values["rmse_low"] * (1 + 2e-4)
    assert abs(values["rmse_deterministic"] / values["rmse"] - 1) < 2e-4
    assert record.checked["dq"] == "no budget: without deterministic its bits may differ"
    record = verified(FREE, "moves_dk")
    assert record.verdict.outcome == "FAIL"
    assert said(record).startswith("dk has 2 bit patterns in 4 runs; first differing at [0, 5, 0, 3]: run 0 gave ")


def test_fp32_gradients_show_what_rounding_hides():
    wide = msgspec.structs.replace(FREE, options={"grad_dtype": "fp32"})
    shares = [verified(case, "fa4-sm90").metrics["dq"].values["differing_share"] for case in (FREE, wide)]
    assert shares[0] < 2e-3
    assert 0.3 < shares[1] < 0.9


def test_a_case_that_cannot_fail_is_refused():
    lax = msgspec.structs.replace(SAME[0], limit=4.0)
    with pytest.raises(flow.VacuousBudget, match="no two agree would pass dq-same"):
        flow.admit(Suite("mine", "", (msgspec.structs.replace(MHA, budgets=(lax,)),)))
    flow.admit(Suite("mine", "", (MHA, FREE)))


def _problems():
    """Return each distinct problem of determinism-gpu; in a fast run the causal ones of head dim 64."""
    seen, found = set(), []
    for case in load_suite("determinism-gpu").cases:
        problem = (case.shape, case.causal, case.window_size)
        if problem not in seen:
            seen.add(problem)
            slow = case.shape.head_dim > 64 or not case.causal
            found.append(pytest.param(case, id=case.id, marks=pytest.mark.exhaustive if slow else ()))
    return found


@pytest.mark.parametrize("case", _problems())
def test_each_cell_on_a_gpu_has_power(case):
    """A thousand equal runs of a cell whose twin cannot tell one order from another would prove nothing."""
    twins = judgement.observe(kernels.shuffled(case, cases.draw(case)))
    for name in order_dependent(case):
        assert twins.tensors[name].distinct > 1, name
