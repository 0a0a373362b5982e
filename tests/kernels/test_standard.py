"""`standard`: every rounding that its docstring states, and no other."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from fa4verify.kernels.emulated.standard import STANDARD

PRECISION = {torch.bfloat16: (8, -126), torch.float16: (11, -14), torch.float32: (24, -126)}
NAN, INF = float("nan"), float("inf")


def draw(dtype, *, batch=1, seqlen_q=5, seqlen_k=9, heads=4, heads_kv=2, head_dim=8, head_dim_v=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [
        (batch, seqlen_q, heads, head_dim),
        (batch, seqlen_k, heads_kv, head_dim),
        (batch, seqlen_k, heads_kv, head_dim_v),
    ]
    return [(torch.randn(size, generator=generator) * 2).to(dtype) for size in sizes]


def rounded(x, dtype):
    """Round an exact number to nearest, ties to even, by integers: nothing in common with the routine under test."""
    x = Fraction(x) if not isinstance(x, mpmath.mpf) else Fraction(int(mpmath.floor(x * 2**300)), 2**300)
    precision, emin = PRECISION[dtype]
    exponent = emin
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - precision + 1)
    return round(x / ulp) * ulp  # Fraction rounds half to even


def slow(q, k, v, b, i, h, visible, *, scale, softcap=0.0, sink=None, reorder_ops=False):
    """One row by the docstring, in exact rationals and 400-bit floats."""
    dtype, single = q.dtype, torch.float32
    g = h // (q.shape[2] // k.shape[2])
    scale = rounded(scale, single)
    scores = []
    for j in visible:
        key = [Fraction(x) for x in k[b, j, g].tolist()]
        if reorder_ops:
            key = [rounded(x * scale, dtype) for x in key]
        t = rounded(sum(Fraction(x) * y for x, y in zip(q[b, i, h].tolist(), key, strict=True)), dtype)
        if not reorder_ops:
            t = rounded(t * scale, dtype)
        if softcap:
            capped = rounded(t / Fraction(softcap), dtype)
            capped = rounded(mpmath.tanh(mpmath.mpf(capped.numerator) / capped.denominator), dtype)
            t = rounded(capped * Fraction(softcap), dtype)
        scores.append(t)

    def exp(x):
        x = rounded(x, single)
        return rounded(mpmath.exp(mpmath.mpf(x.numerator) / x.denominator), single)

    m = max(scores if sink is None else [*scores, Fraction(sink)])
    e = [exp(t - m) for t in scores]
    row_sum = rounded(sum(e) + (0 if sink is None else exp(Fraction(sink) - m)), single)
    p = [rounded(x / row_sum, dtype) for x in e]
    o = [
        float(rounded(sum(w * Fraction(v[b, j, g, c].item()) for w, j in zip(p, visible, strict=True)), dtype))
        for c in range(v.shape[-1])
    ]
    log = mpmath.log(mpmath.mpf(row_sum.numerator) / row_sum.denominator)
    lse = rounded(mpmath.mpf(m.numerator) / m.denominator + log, single)
    return o, float(lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("options", "band"),  # row i sees the keys from i + band[0] up to but without i + band[1]
    [
        ({}, (-9, 9)),
        ({"reorder_ops": True, "softmax_scale": 0.3}, (-9, 9)),
        ({"causal": True, "softmax_scale": -0.7}, (-9, 5)),
        ({"window_size": (2, 1), "softcap": 1.5}, (2, 6)),
        ({"causal": True, "window_size": (3, None), "learnable_sink": True}, (1, 5)),
    ],
)
def test_every_bit_follows_the_stated_roundings(dtype, options, band):
    q, k, v = draw(dtype)
    sinks = torch.tensor([0.5, -3.0, 9.25, 0.0])
    options = dict(options)
    sink = sinks if options.pop("learnable_sink", False) else None
    out = STANDARD.forward(q, k, v, learnable_sink=sink, **options)
    assert out.o.dtype == dtype
    assert out.lse.dtype == torch.float32
    arithmetic = {name: options[name] for name in ("softcap", "reorder_ops") if name in options}
    scale = options.get("softmax_scale", 8**-0.5)
    mpmath.mp.prec, before = 400, mpmath.mp.prec
    for i in range(5):
        visible = range(max(0, i + band[0]), min(9, i + band[1]))
        for h in range(4):
            own_sink = None if sink is None else sinks[h].item()
            o, lse = slow(q, k, v, 0, i, h, visible, scale=scale, sink=own_sink, **arithmetic)
            assert out.o[0, i, h].tolist() == o
            assert out.lse[0, h, i].item() == lse
    mpmath.mp.prec = before


def test_scores_are_rounded_once():
    # S = 1 + 2^-11 + 2^-40: through float32 it would become the midpoint 1 + 2^-11, and then 1. With one key, LSE is S.
    q = torch.tensor([1.0, 2.0**-11, 2.0**-20]).half().view(1, 1, 1, 3)
    k = torch.tensor([1.0, 1.0, 2.0**-20]).half().view(1, 1, 1, 3)
    v = torch.ones(1, 1, 1, 3).half()
    assert STANDARD.forward(q, k, v, softmax_scale=1.0).lse.item() == 1 + 2**-10


def test_the_scaled_score_is_rounded_and_the_scale_is_float32():
    # bf16: 256 / 3 = 85.33 is stored as 85.5 (ulp 0.5), so that the second key weighs exp(-0.5), not exp(-0.67).
    q = torch.tensor([1.0]).bfloat16().view(1, 1, 1, 1)
    k = torch.tensor([258.0, 256.0]).bfloat16().view(1, 2, 1, 1)
    lse = STANDARD.forward(q, k, k, softmax_scale=1 / 3).lse.item()
    assert lse == np.float32(86 + np.log1p(np.float64(np.float32(np.exp(-0.5)))))


@pytest.mark.parametrize("reorder_ops", [False, True])
def test_it_is_the_low_precision_attention_that_torch_computes_op_by_op(reorder_ops):
    q, k, v = draw(torch.bfloat16, seqlen_q=64, seqlen_k=96, heads=2, head_dim=64, head_dim_v=64)
    mine = STANDARD.forward(q, k, v, reorder_ops=reorder_ops).o.float()
    tensors = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    s = tensors[0] @ (tensors[1] * 64**-0.5 if reorder_ops else tensors[1]).transpose(2, 3)
    p = torch.softmax(s if reorder_ops else s * 64**-0.5, dim=-1)
    theirs = (p @ tensors[2]).transpose(1, 2).float()
    # torch accumulates in float32 and rounds P and O through it: now and then another neighbour, never further off
    # than two roundings of P and one of O. 0.1 % differ when measured; without rounding P, 30 % would.
    assert (mine != theirs).float().mean() < 0.01
    assert (mine - theirs).abs().max() <= 3 * 2**-8 * theirs.abs().max()
    unrounded_p = (torch.softmax((s if reorder_ops else s * 64**-0.5).float(), -1) @ tensors[2].float()).bfloat16()
    assert (mine != unrounded_p.transpose(1, 2).float()).float().mean() > 0.1


def test_rows_without_a_key():
    q, k, v = draw(torch.float16, seqlen_q=6, seqlen_k=4)
    out = STANDARD.forward(q, k, v, causal=True)  # bottom right: rows 0 and 1 see nothing
    assert out.o[0, :2].eq(0).all()
    assert out.lse[0, :, :2].eq(-INF).all()
    assert out.lse[0, :, 2:].isfinite().all()
    sinks = torch.tensor([0.5, -3.0, 100.0, -INF])
    out = STANDARD.forward(q, k, v, causal=True, learnable_sink=sinks)
    assert out.o[0, :2].eq(0).all()
    assert torch.equal(out.lse[0, :, 0], sinks)
    for empty in (STANDARD.forward(q, k[:, :0], v[:, :0]), STANDARD.forward(q, k, v, window_size=(-9, 8))):
        assert empty.o.eq(0).all()
        assert empty.lse.eq(-INF).all()
    nothing = STANDARD.forward(q[:, :0], k, v)
    assert nothing.o.shape == (1, 0, 4, 8)
    assert nothing.lse.shape == (1, 4, 0)


def test_what_the_dtype_cannot_hold_overflows_as_it_does_in_a_kernel():
    q = torch.full((1, 1, 1, 2), 200.0).half()
    k = torch.tensor([[200.0, 200.0], [-200.0, -200.0]]).half().view(1, 2, 1, 2)
    v = torch.ones(1, 2, 1, 2).half()
    assert STANDARD.forward(q, k, v).o.isnan().all()
    assert STANDARD.forward(q, k, v, softmax_scale=2**-5, reorder_ops=True).o.eq(1).all()
    assert STANDARD.forward(q.bfloat16(), k.bfloat16(), v.bfloat16()).o.eq(1).all()
    k[0, 0, 0, 0] = NAN
    assert STANDARD.forward(q.bfloat16(), k.bfloat16(), v.bfloat16()).o.isnan().all()


def test_blocks_of_rows_change_no_bit(monkeypatch):
    q, k, v = draw(torch.bfloat16, batch=2, seqlen_q=33, seqlen_k=40)
    whole = STANDARD.forward(q, k, v, causal=True)
    monkeypatch.setattr("fa4verify.kernels.emulated.standard.BLOCK", 7 * 40)
    blocked = STANDARD.forward(q, k, v, causal=True)
    assert torch.equal(whole.o, blocked.o)
    assert torch.equal(whole.lse, blocked.lse)


def test_its_error_is_that_of_standard_attention_on_an_h200():
    # fp16, d 64, 4096 keys, 8 heads, N(0,1) + N(0,100) * Bernoulli(0.001): an H200 gave RMSE 2.18e-4 (torch, all rows).
    # 64 rows a head of a heavy-tailed distribution; four seeds gave 1.8e-4 to 2.4e-4.
    generator = np.random.Generator(np.random.Philox(key=0))

    def tensor(length):
        size = (1, length, 8, 64)
        outliers = 10 * generator.standard_normal(size) * (generator.random(size) < 1e-3)
        return torch.from_numpy((generator.standard_normal(size) + outliers).astype(np.float32)).half()

    q, k, v = tensor(64), tensor(4096), tensor(4096)
    s = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 8
    truth = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, -1), v.double())
    rmse = (STANDARD.forward(q, k, v).o.double() - truth).square().mean().sqrt().item()
    assert 1.5e-4 < rmse < 3e-4
