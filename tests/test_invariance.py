"""Neighbours, padding, what lay in the output: a kernel without fault is equal throughout, each fault is named."""

import json
from itertools import pairwise

import pytest
import torch

from fa4verify import invariance, kernels
from fa4verify.cli import main
from fa4verify.vocabulary import Output


class _Plain:
    """Float32 attention, sequence by sequence, with FA4's varlen arguments; wrong where `fault` says."""

    def __init__(self, fault=""):
        self.fault = fault

    def _attention(self, q, k, v):
        s = torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1))
        p = torch.softmax(s * q.shape[-1] ** -0.5, 2)
        o = torch.einsum("hqk,khd->qhd", p, v.float().repeat_interleave(q.shape[1] // v.shape[1], 1))
        return o, torch.logsumexp(s, 2)

    def _parts(self, q, k, cu, used):
        if cu is not None:
            bounds = [slice(int(a), int(b)) for a, b in pairwise(cu)]
            return [(at, at) for at in bounds]
        length = k.shape[1] if used is None or self.fault == "padding" else int(used[0])
        return [((i, slice(None)), (i, slice(0, length))) for i in range(q.shape[0])]

    def forward(self, q, k, v, *, causal, out=None, cu_seqlens_q=None, seqused_k=None, **_):
        if causal:
            raise kernels.Unsupported("no causal mask here")
        o = torch.zeros_like(q) if out is None else out
        rows = []
        for at, keys in self._parts(q, k, cu_seqlens_q, seqused_k):
            found, lse = self._attention(q[at], k[keys], v[keys])
            if self.fault == "neighbours":
                found = found + 1e-2 * q.float().mean()
            o[at] = (o[at] + found if self.fault == "unwritten" else found).to(q.dtype)
            rows.append(lse)
        return Output(o=o, lse=torch.cat(rows, 1) if cu_seqlens_q is not None else torch.stack(rows))

    def backward(self, dout, q, k, v, _o, _lse, *, cu_seqlens_q=None, seqused_k=None, **_):
        found = [torch.zeros_like(x) for x in (q, k, v)]
        for at, keys in self._parts(q, k, cu_seqlens_q, seqused_k):
            leaves = [x.detach().clone().requires_grad_() for x in (q[at], k[keys], v[keys])]
            gradients = torch.autograd.grad(self._attention(*leaves)[0], leaves, dout[at].float())
            for whole, place, part in zip(found, (at, keys, keys), gradients, strict=True):
                whole[place] = part.to(q.dtype)
        return Output(dq=found[0], dk=found[1], dv=found[2])


PROBLEM = invariance.Problem(seqlen=50, pad=14, heads=2, heads_kv=1, head_dim=32)


@pytest.fixture
def kernel(monkeypatch):
    def use(fault=""):
        monkeypatch.setattr(kernels, "kernel", lambda _: _Plain(fault))
        return list(invariance.examine("plain", "cpu", PROBLEM))

    return use


def test_a_kernel_without_fault_is_equal_throughout(kernel):
    found = kernel()
    assert {finding.outcome for finding in found} == {"equal"}
    assert len(found) == 5 * (6 + 1 + 1 + 4)


@pytest.mark.parametrize("fault", ["neighbours", "padding", "unwritten"])
def test_a_fault_is_named(kernel, fault):
    unequal = {finding.check for finding in kernel(fault) if finding.outcome == "differs"}
    word = {"neighbours": "batch", "padding": "padding", "unwritten": "unwritten"}[fault]
    assert unequal
    assert all(word in check or (fault == "neighbours" and "varlen" in check) for check in unequal)


def test_a_refusal_is_no_success(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "kernel", lambda _: _Plain())
    monkeypatch.setattr(invariance, "PROBLEMS", (PROBLEM, invariance.Problem(causal=True)))
    file = tmp_path / "found.json"
    assert main(["invariance", "plain", "--device", "cpu", "--json", str(file)]) == 3
    assert "no causal mask here" in capsys.readouterr().out
    assert {one["outcome"] for one in json.loads(file.read_text())} == {"equal", "refused"}
    assert main(["invariance", "plain", "--device", "cpu", "--matching", "causal=False"]) == 0
    assert main(["invariance", "flash-attn-4"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-kernel"], "unknown kernel"),
        (["fa4-sm90", "--device", "cpu"], "takes no cu_seqlens_q"),
        (["sdpa-math", "--device", "cpu"], "takes no cu_seqlens_q"),
        (["plain", "--matching", "d127"], "matches none of 12 problems"),
    ],
)
def test_what_compares_nothing_is_a_mistake_in_one_line(capsys, arguments, said):
    assert main(["invariance", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


class _Buffered(_Plain):
    """The same tensors in every call, as a kernel with a workspace of its own returns them; padding is attended to."""

    def __init__(self):
        super().__init__("padding")
        self._kept = {}

    def _same(self, **found):
        for name, x in found.items():
            if x is not None:
                kept = self._kept.setdefault((name, *x.shape), x.clone())
                found[name] = kept.copy_(x)
        return Output(**found)

    def forward(self, *given, **options):
        output = super().forward(*given, **options)
        return self._same(o=output.o, lse=output.lse)


def test_a_kernel_that_returns_one_buffer_is_not_compared_with_itself(monkeypatch):
    monkeypatch.setattr(kernels, "kernel", lambda _: _Buffered())
    differs = {
        (one.check, one.tensor) for one in invariance.examine("buffered", "cpu", PROBLEM) if one.outcome == "differs"
    }
    assert {("padding: 0.0", "o"), ("padding: 0.0", "lse")} <= differs


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "NaN or infinity"), (0.0, "0.0 everywhere")])
def test_a_constant_is_invariant_and_no_success(monkeypatch, value, said):
    class Constant(_Plain):
        def forward(self, *given, **options):
            output = super().forward(*given, **options)
            return Output(o=torch.full_like(output.o, value), lse=output.lse)

    monkeypatch.setattr(kernels, "kernel", lambda _: Constant())
    unequal = [one for one in invariance.examine("constant", "cpu", PROBLEM) if one.outcome != "equal"]
    assert [(one.check, one.tensor) for one in unequal] == [("alone", "o")]
    assert said in unequal[0].detail


def test_a_gradient_that_is_not_returned_is_no_success(monkeypatch):
    class Forgetful(_Plain):
        def backward(self, *given, **options):
            output = super().backward(*given, **options)
            return Output(dk=output.dk, dv=output.dv)

    monkeypatch.setattr(kernels, "kernel", lambda _: Forgetful())
    unequal = [one for one in invariance.examine("forgetful", "cpu", PROBLEM) if one.outcome != "equal"]
    assert [(one.tensor, one.outcome) for one in unequal] == [("dq", "refused")]


def test_findings_that_cannot_be_written_are_no_difference(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "kernel", lambda _: _Plain())
    monkeypatch.setattr(invariance, "PROBLEMS", (PROBLEM,))
    (tmp_path / "taken").write_text("")
    assert main(["invariance", "plain", "--device", "cpu", "--json", str(tmp_path / "taken" / "found.json")]) == 2
    assert "cannot write" in capsys.readouterr().err


class _Faulty(_Plain):
    """The device faults in the backward of head dim 64."""

    def backward(self, dout, q, *given, **options):
        if q.shape[-1] == 64:
            raise RuntimeError("CUDA error: an illegal\nmemory access")
        return super().backward(dout, q, *given, **options)


def test_a_fault_loses_neither_what_was_found_nor_the_next_problem(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "kernel", lambda _: _Faulty())
    faulty = invariance.Problem(seqlen=50, pad=14, head_dim=64)
    monkeypatch.setattr(invariance, "PROBLEMS", (PROBLEM, faulty, PROBLEM))
    file = tmp_path / "found.json"
    assert main(["invariance", "plain", "--device", "cpu", "--json", str(file)]) == 1
    assert "RuntimeError: CUDA error: an illegal memory access" in capsys.readouterr().out
    outcomes = [one["outcome"] for one in json.loads(file.read_text())]
    assert (outcomes.count("crashed"), outcomes.count("equal")) == (1, 2 * 60)


def test_what_was_found_before_an_interruption_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "kernel", lambda _: _Plain())
    monkeypatch.setattr(invariance, "PROBLEMS", (PROBLEM, invariance.Problem(seqlen=51)))
    really = invariance.examine

    def interrupted(name, device, problem):
        if problem.seqlen == 51:
            raise KeyboardInterrupt
        return really(name, device, problem)

    monkeypatch.setattr(invariance, "examine", interrupted)
    file = tmp_path / "found.json"
    assert main(["invariance", "plain", "--device", "cpu", "--json", str(file)]) == 130
    assert len(json.loads(file.read_text())) == 60


def test_what_cannot_be_written_is_refused_before_anything_is_run(monkeypatch, tmp_path, capsys):
    def used(_):
        raise AssertionError("examined")

    monkeypatch.setattr(invariance, "_survived", used)
    monkeypatch.setattr(kernels, "kernel", lambda _: _Plain())
    assert main(["invariance", "plain", "--device", "cpu", "--json", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
