"""One case walks through all rooms; whatever a kernel does, a Record comes back."""

import sys

import msgspec
import pytest
import torch

import fa4verify
from fa4verify import flow
from fa4verify.vocabulary import BITS, Budget, Case, Distribution, Finding, Shape, Suite, Verdict

O_BUDGET = Budget("o", "o", "relative_rmse", "absolute", 0.008, "two bf16 unit roundoffs: P and O")
CASE = Case(
    id="fwd-standard",
    operation="forward",
    kernel="standard",
    distribution=Distribution("normal"),
    shape=Shape(1, 96, 160, 2, 1, 64, 64),
    budgets=(O_BUDGET,),
)


def _with_kernel(name):
    return msgspec.structs.replace(CASE, kernel=f"{__name__}:{name}")


def raises(q, k, v, *, causal, softmax_scale):
    raise RuntimeError("an illegal\nmemory access")


def declines(q, k, v, *, causal, softmax_scale):
    raise fa4verify.Unsupported("no head dim of 64")


def wrong_shape(q, k, v, *, causal, softmax_scale):
    return q[:, :-1]


def zeros(q, k, v, *, causal, softmax_scale):
    return torch.zeros_like(q)


def test_a_case_passes_and_round_trips():
    record = fa4verify.verify(CASE)
    assert record.verdict.outcome == "PASS"
    assert 1e-4 < record.metrics["o"].values["relative_rmse"] < 8e-3
    assert record.checked["o"] == "checked"
    assert set(record.seconds) == {"draw", "run", "baseline", "solve", "measure", "judge"}
    assert msgspec.json.decode(msgspec.json.encode(record), type=fa4verify.Record) == record


def test_the_public_name_stays_callable_whatever_is_imported():
    import fa4verify.flow

    assert callable(fa4verify.verify)
    assert fa4verify.verify is fa4verify.flow.verify
    assert "fa4verify.verify" not in sys.modules


@pytest.mark.parametrize(
    ("kernel", "outcome", "words"),
    [
        ("raises", "CRASHED", "run: RuntimeError: an illegal memory access"),
        ("declines", "SKIPPED", "no head dim of 64"),
        ("wrong_shape", "FAIL", "(1, 95, 2, 64)"),
        ("zeros", "FAIL", "relative_rmse"),
    ],
)
def test_what_a_kernel_does_becomes_a_verdict(kernel, outcome, words):
    record = fa4verify.verify(_with_kernel(kernel))
    assert record.verdict.outcome == outcome
    assert words in " ".join(finding.message for finding in record.verdict.findings)


def test_a_fault_of_ours_is_not_a_verdict_on_the_kernel(monkeypatch):
    def broken(case, inputs, *, device):
        raise ZeroDivisionError("in the reference")

    monkeypatch.setattr(flow.references, "solve", broken)
    record = fa4verify.verify(CASE)
    assert record.verdict.outcome == "CRASHED"
    assert record.verdict.findings[0].message == "solve: ZeroDivisionError: in the reference"


def test_a_vacuous_budget_is_refused_and_its_honest_twin_admitted():
    vacuous = msgspec.structs.replace(CASE, budgets=(msgspec.structs.replace(O_BUDGET, limit=1.5),))
    with pytest.raises(flow.VacuousBudget, match="fwd-standard"):
        flow.admit(Suite("mine", "", (vacuous,)))
    flow.admit(Suite("mine", "", (CASE,)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distribution": Distribution("scaled_normal", {"factor": 1e300})}, "no finite element"),
        ({"distribution": Distribution("capture", {"path": "missing.npz"})}, "cannot be drawn and solved: SuiteError"),
        ({"window_size": (10**20, 0)}, "case fwd-standard: cannot be drawn and solved: OverflowError"),
    ],
)
def test_a_case_that_cannot_be_judged_is_refused_in_one_line(fields, said):
    broken = msgspec.structs.replace(CASE, **fields)
    with pytest.raises(flow.Inadmissible, match=said) as caught:
        flow.admit(Suite("mine", "", (broken,)))
    assert str(caught.value).startswith("mine: case fwd-standard: ")
    assert "\n" not in str(caught.value)


def test_the_command_reruns_the_case():
    assert flow.command(msgspec.structs.replace(CASE, suite="gate")) == "fa4verify run gate --select id=fwd-standard"
    substituted = msgspec.structs.replace(CASE, suite="my suite.toml", kernel="a.b:c", substituted=True)
    assert flow.command(substituted) == "fa4verify run 'my suite.toml' --select id=fwd-standard --kernel a.b:c"


def test_a_verdict_without_evidence_cannot_be_built():
    with pytest.raises(ValueError, match="at least one budget"):
        Verdict("PASS")
    with pytest.raises(ValueError, match="failed"):
        Verdict("PASS", (Finding("held", passed=True), Finding("broken")))
    with pytest.raises(ValueError, match="says why"):
        Verdict("FAIL")


def gradients_by_autograd(q, k, v, *, causal, softmax_scale):
    """Torch's own attention, for autograd to differentiate."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=softmax_scale).transpose(1, 2)


def doubled(q, k, v, *, causal, softmax_scale):
    """Lose half of dV."""
    return gradients_by_autograd(q, k, (v + v.detach()) / 2, causal=causal, softmax_scale=softmax_scale)


BACKWARD = msgspec.structs.replace(
    CASE,
    id="bwd",
    operation="backward",
    budgets=tuple(
        Budget(tensor, tensor, "rmse", "expected_error", limit, "a test")
        for tensor, limit in (("dq", 2.5), ("dk", 2.5), ("dv", 2.5), ("delta", 1.3))
    ),
)


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        ("fa4-sm90", "PASS"),
        (f"{__name__}:gradients_by_autograd", "PASS"),
        (f"{__name__}:doubled", "FAIL"),
        ("standard", "SKIPPED"),
    ],
)
def test_a_backward_walks_through_all_rooms(kernel, outcome):
    record = flow.verify(msgspec.structs.replace(BACKWARD, kernel=kernel))
    assert record.verdict.outcome == outcome, record.verdict
    assert msgspec.json.decode(msgspec.json.encode(record), type=fa4verify.Record) == record
    if outcome == "PASS":
        assert {"dq", "dk", "dv"} <= set(record.metrics)
        assert record.checked["delta"] == ("checked" if kernel == "fa4-sm90" else "the kernel returned none")


def test_a_vacuous_backward_is_refused():
    lax = Budget("lax", "dv", "relative_rmse", "absolute", 2.0, "a test")
    suite = Suite("s", "about", (msgspec.structs.replace(BACKWARD, budgets=(lax,)),))
    with pytest.raises(flow.VacuousBudget, match="dv: zeros would pass lax"):
        flow.admit(suite)
    flow.admit(Suite("s", "about", (BACKWARD,)))


def test_bits_of_a_device_that_is_not_here_are_tried_against_the_rounded_truth():
    bits = msgspec.structs.replace(O_BUDGET, name="o-bits", metric=BITS, kind="absolute", limit=0.0)
    case = msgspec.structs.replace(CASE, kernel="fa4-sm90", baseline="flash-attn-4", budgets=(bits,))
    flow.admit(Suite("mine", "", (case,)))
    lax = msgspec.structs.replace(case, budgets=(msgspec.structs.replace(bits, limit=1e9),))
    with pytest.raises(flow.VacuousBudget, match="zeros would pass o-bits"):
        flow.admit(Suite("mine", "", (lax,)))


def test_a_problem_is_tried_once_and_the_first_refusal_is_told_whoever_tries_it():
    twin = msgspec.structs.replace(CASE, id="again", kernel="fa4-sm90")
    other = msgspec.structs.replace(CASE, id="other", causal=not CASE.causal)
    tried = []

    def trial(todo):
        for case in todo:
            tried.append(case.id)
            yield flow.VacuousBudget("zeros") if case.id == "other" else None

    with pytest.raises(flow.VacuousBudget, match="mine: case other: zeros"):
        flow.admit(Suite("mine", "", (CASE, twin, other)), trial=trial)
    assert tried == [CASE.id, "other"]


@pytest.mark.parametrize("options", [{}, {"o_dtype": "fp32"}])
def test_a_kernel_that_is_its_own_baseline_has_no_bits_to_compare(options):
    """Other options of the same kernel are another output."""
    budget = Budget("o-bits", "o", "bits_unlike_baseline", "absolute", 0.0, "any")
    shape = Shape(1, 64, 64, 1, 1, 64, 64)
    case = Case("self", "forward", "fa4-sm90", Distribution("normal"), shape=shape, baseline="fa4-sm90",
                options=options, budgets=(budget,))  # fmt: skip
    record = flow.verify(case)
    assert record.verdict.outcome != "PASS"
    assert ("compared with itself" in record.verdict.findings[0].message) == (not options)
