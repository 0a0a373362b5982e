"""`standard-fp8`: every rounding that its docstring states, by torch's and NumPy's conversions, and what it refuses."""

import ml_dtypes
import numpy as np
import pytest
import torch

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.standard_fp8 import STANDARD_FP8

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PEER = {E4M3: (ml_dtypes.float8_e4m3fn, 448.0), E5M2: (ml_dtypes.float8_e5m2, 57344.0)}


def draw(dtype, seqlen_q=5, seqlen_k=40, heads=4, heads_kv=2, head_dim=16):
    generator = torch.Generator().manual_seed(3)
    sizes = [(1, seqlen_q, heads, head_dim), (1, seqlen_k, heads_kv, head_dim), (1, seqlen_k, heads_kv, head_dim)]
    tensors = [(torch.randn(size, generator=generator) * 2).to(dtype) for size in sizes]
    descales = {f"{name}_descale": 0.3 + torch.rand(1, heads_kv, generator=generator) for name in "qkv"}
    return tensors, descales


def half(x):
    """Round float64 to fp16: NumPy does it in one step."""
    return np.float16(x).astype(np.float64)


def slow(q, k, v, of_q, of_k, of_v, dtype, scale):
    """One row against all keys, numbers as NumPy scalars."""
    kind, largest = PEER[dtype]
    s = half((k @ q) * np.float64(np.float32(of_q) * np.float32(of_k)))
    t = half(s * np.float64(np.float32(scale)))
    e = np.exp((t - t.max()).astype(np.float32).astype(np.float64)).astype(np.float32)
    row_sum = np.float32(e.astype(np.float64).sum())
    p = half(e.astype(np.float64) / np.float64(row_sum))
    p8 = np.minimum(p * largest, largest).astype(np.float32).astype(kind).astype(np.float64)
    o = (p8 @ v) * (np.float64(np.float32(of_v)) / largest)
    return torch.from_numpy(o).to(torch.float32), np.float32(t.max() + np.log(np.float64(row_sum)))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_every_rounding_is_the_stated_one(dtype):
    (q, k, v), descales = draw(dtype)
    out = STANDARD_FP8.forward(q, k, v, **descales)
    assert out.o.dtype == torch.bfloat16
    wide = [x.float().double().numpy()[0] for x in (q, k, v)]
    for i, h in np.ndindex(5, 4):
        g = h // 2
        of = [descales[f"{name}_descale"][0, g].item() for name in "qkv"]
        o, lse = slow(wide[0][i, h], wide[1][:, g], wide[2][:, g], *of, dtype, 16**-0.5)
        # The sums of products run in another order in float64: a midpoint of bf16 is not met here.
        assert torch.equal(out.o[0, i, h], o.to(torch.bfloat16))
        assert abs(out.lse[0, h, i].item() - lse) <= 2e-7 * abs(lse)


def test_one_key_gives_its_value_and_the_last_code_is_used():
    (q, k, v), _ = draw(E4M3, seqlen_k=1)
    out = STANDARD_FP8.forward(q, k, v)
    assert torch.equal(out.o, v.repeat_interleave(2, dim=2).expand(1, 5, 4, 16).to(torch.bfloat16))
    assert out.activity["p_saturated"] == 0
    beyond = STANDARD_FP8.forward(q, k, v, p_scale=500.0)
    assert beyond.activity["p_saturated"] == 5 * 4
    assert torch.allclose(beyond.o.float(), out.o.float() * 448 / 500, rtol=2.0**-8)


def test_a_row_without_keys():
    (q, k, v), descales = draw(E4M3, seqlen_q=5, seqlen_k=2)
    out = STANDARD_FP8.forward(q, k, v, causal=True, learnable_sink=torch.arange(4.0), **descales)
    assert torch.equal(out.o[0, :3], torch.zeros(3, 4, 16, dtype=torch.bfloat16))
    assert torch.equal(out.lse[0, :, :3], torch.arange(4.0)[:, None].expand(4, 3))


def test_what_it_refuses():
    (q, k, v), _ = draw(E4M3)
    with pytest.raises(Unsupported, match="standard takes 16 bits"):
        STANDARD_FP8.forward(q.half(), k.half(), v.half())
    with pytest.raises(Unsupported, match="v_descale must be float32"):
        STANDARD_FP8.forward(q, k, v, v_descale=torch.ones(1, 2, 1))
