"""FA4's features on Blackwell (and, where it has them, the other GPUs) against float64: no recording exists for those.

The bound is on the relative rms of a tensor: 2^-9 of rounding noise in P and as much in O give at most 4e-3 in bf16; a
key too many or too few, a page or a sequence mixed up gives 0.05 and more (`test_a_key_too_many_is_seen`).
"""

from __future__ import annotations

import itertools

import pytest
import torch

import fa4verify
from fa4verify import kernels

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_100a") is not None, reason=str(kernels.availability("fa4@sm_100a"))
)
LIMIT = 4e-3
LENGTHS = (70, 200, 129)


def tensors(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(torch.bfloat16) for size in sizes]


def attention(q, k, v, *, mask=None, bias=0.0, cap=0.0, sink=None):
    """Return O in float64; tensors (batch, seqlen, heads, head_dim), mask and bias (heads or 1, seqlen_q, seqlen_k)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    s = cap * torch.tanh(s / cap) if cap else s
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    if sink is not None:
        extra = sink.double()[None, :, None, None].expand(*s.shape[:3], 1)
        return (torch.cat([s, extra], -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)
    return (s.softmax(-1) @ v).transpose(1, 2)


def causal(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


def error(got, want):
    return float((got.double() - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt())


def split_kv(forward):
    q, k, v = tensors((1, 64, 2, 128), (1, 1024, 2, 128), (1, 1024, 2, 128))
    return forward(q, k, v, num_splits=3).o, attention(q, k, v)


def split_by_heuristic(forward):
    q, k, v = tensors((1, 64, 2, 64), (1, 1024, 2, 64), (1, 1024, 2, 64))
    return forward(q, k, v, num_splits=0).o, attention(q, k, v)


def packed(forward):
    q, k, v = tensors(*[(sum(LENGTHS), 2, 128)] * 3)
    out = forward(q, k, v, causal=True, **layout()).o
    return out, torch.cat([attention(*(x[None, part] for x in (q, k, v)), mask=causal(n, n))[0] for part, n in parts()])


def layout():
    offsets = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)
    return {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": 200, "max_seqlen_k": 200}


def parts():
    start = 0
    for length in LENGTHS:
        yield slice(start, start + length), length
        start += length


def pages(forward, size):
    (q,), (k, v) = tensors((2, 3, 4, 128)), tensors(*[(16, size, 2, 128)] * 2, seed=1)
    table = torch.randperm(16, generator=torch.Generator().manual_seed(2)).view(2, 8).to(torch.int32)
    used = (5 * size + 3, 7 * size)
    out = forward(q, k, v, page_table=table, seqused_k=torch.tensor(used, dtype=torch.int32), causal=True).o
    rows = []
    for b, length in enumerate(used):
        keys, values = (x[table[b].long()].reshape(1, -1, 2, 128)[:, :length] for x in (k, v))
        rows.append(attention(q[b : b + 1], keys, values, mask=causal(3, length)))
    return out, torch.cat(rows)


def windowed(forward):
    q, k, v = tensors(*[(1, 500, 1, 128)] * 3)
    distance = torch.arange(500)[None] - torch.arange(500)[:, None]
    return forward(q, k, v, window_size=(100, 20)).o, attention(q, k, v, mask=(distance <= 20) & (distance >= -100))


def with_sink(forward):
    q, k, v = tensors(*[(1, 150, 4, 64)] * 3)
    sink = torch.tensor([-3.0, 0.0, 2.0, 40.0])
    return forward(q, k, v, learnable_sink=sink).o, attention(q, k, v, sink=sink)


def capped(forward):
    q, k, v = (4 * x for x in tensors(*[(1, 200, 2, 64)] * 3))
    return forward(q, k, v, softcap=15.0).o, attention(q, k, v, cap=15.0)


def grouped(forward, pack):
    q, k, v = tensors((1, 200, 8, 64), (1, 333, 2, 64), (1, 333, 2, 64))
    return forward(q, k, v, causal=True, pack_gqa=pack).o, attention(q, k, v, mask=causal(200, 333))


def wide(forward, head_dim, head_dim_v):
    q, k, v = tensors((1, 200, 2, head_dim), (1, 200, 2, head_dim), (1, 200, 2, head_dim_v))
    return forward(q, k, v, causal=True).o, attention(q, k, v, mask=causal(200, 200))


def biased(forward):
    q, k, v = tensors(*[(1, 200, 2, 64)] * 3)
    distance = (torch.arange(200)[None] - torch.arange(200)[:, None]).double()
    slopes = torch.tensor([1 / 32, 2 / 32], dtype=torch.float64)[:, None, None]
    return forward(q, k, v, score_mod=modification("slope", "score_mod")).o, attention(q, k, v, bias=distance * slopes)


def masked(forward):
    q, k, v = tensors(*[(1, 200, 2, 64)] * 3)
    mask = causal(200, 200) | (torch.arange(200) < 50)
    return forward(q, k, v, mask_mod=modification("prefix", "mask_mod")).o, attention(q, k, v, mask=mask)


def modification(name, kind):
    from tests.golden.feature_mods import MODS

    return MODS[name][kind]


FEATURES = {
    "split-KV": split_kv,
    "split-KV by FA4's heuristic": split_by_heuristic,
    "packed sequences": packed,
    "pages of 128": lambda forward: pages(forward, 128),
    "pages of 16": lambda forward: pages(forward, 16),
    "window": windowed,
    "sink": with_sink,
    "softcap": capped,
    "groups, packed": lambda forward: grouped(forward, True),
    "groups, not packed": lambda forward: grouped(forward, False),
    "head dims 192, 128": lambda forward: wide(forward, 192, 128),
    "head dim 256": lambda forward: wide(forward, 256, 256),
    "score_mod": biased,
    "mask_mod": masked,
}
# What FA4 4.0.0b36 refuses, by its own words; head dim 256 on sm_120a by the 128 KiB of shared memory it wants, of 99.
REFUSED = {
    "sm_80": {"split-KV", "split-KV by FA4's heuristic", "pages of 128", "pages of 16", "score_mod", "sink"},
    "sm_90a": {"split-KV", "split-KV by FA4's heuristic"},
    "sm_120a": {"split-KV", "pages of 128", "pages of 16", "sink", "head dim 256"},
}
SOME = {("sm_100a", "split-KV"), ("sm_100a", "packed sequences"), ("sm_80", "groups, packed"), ("sm_120a", "window")}


@pytest.mark.parametrize(
    ("gpu", "feature"),
    [
        pytest.param(gpu, feature, marks=() if (gpu, feature) in SOME else pytest.mark.exhaustive)
        for gpu in ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
        for feature in FEATURES
    ],
)
def test_forward(gpu, feature):
    forward = fa4verify.kernel(f"fa4@{gpu}").forward
    if feature in REFUSED.get(gpu, ()):
        with pytest.raises(kernels.Unsupported):
            FEATURES[feature](forward)
        return
    got, want = FEATURES[feature](forward)
    assert error(got, want) < LIMIT


@pytest.mark.exhaustive
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("packed_sequences", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("gpu", ["sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_backward(gpu, head_dim, packed_sequences, deterministic):
    kernel = fa4verify.kernel(f"fa4@{gpu}")
    size = (sum(LENGTHS), 2, head_dim) if packed_sequences else (1, 200, 2, head_dim)
    q, k, v, dout = tensors(*[size] * 4)
    options = {"causal": True, **(layout() if packed_sequences else {})}
    forward = kernel.forward(q, k, v, **options)
    arguments = (dout, q, k, v, forward.o, forward.lse)
    if gpu == "sm_120a" and deterministic:
        with pytest.raises(kernels.Unsupported, match=r"deterministic backward not supported on SM 12\.0"):
            kernel.backward(*arguments, deterministic=True, **options)
        return
    out = kernel.backward(*arguments, deterministic=deterministic, **options)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    whole = [(slice(None), 200)] if not packed_sequences else [*parts()]
    for part, n in whole:
        one = [x[None, part] if packed_sequences else x for x in (*leaves, dout.double())]
        (attention(*one[:3], mask=causal(n, n)) * one[3]).sum().backward()
    for name, got, leaf in zip(("dq", "dk", "dv"), (out.dq, out.dk, out.dv), leaves, strict=True):
        assert error(got, leaf.grad) < LIMIT, name


def test_a_key_too_many_is_seen():
    q, k, v = tensors(*[(1, 200, 2, 64)] * 3)
    one_more = causal(200, 200) | torch.eye(200, dtype=torch.bool).roll(1, 1)
    assert error(attention(q, k, v, mask=one_more), attention(q, k, v, mask=causal(200, 200))) > 10 * LIMIT
