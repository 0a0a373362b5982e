"""FA4's own FP8 kernel and `fa4-sm100` give the same bits: e4m3 and e5m2, offset 8, tau 0, descales.

Two configurations run always, all with `-m exhaustive`; shapes are small, since compiling one costs seconds.
"""

from __future__ import annotations

import pytest
import torch

from fa4verify import kernels

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_100a") is not None, reason=str(kernels.availability("fa4@sm_100a"))
)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SINK = torch.tensor([1.0, -2.0, 5.0, 0.25])
# dtype; batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v; what the scores are multiplied with; options
CONFIGURATIONS = {
    "decode over a tile boundary": (E4M3, (1, 1, 129, 6, 1, 128, 128), 1.0, {}),
    "e5m2, two tiles and a tail": (E5M2, (1, 130, 260, 1, 1, 64, 64), 2.0, {}),
    "e4m3, two tiles and a tail": (E4M3, (1, 130, 260, 1, 1, 64, 64), 2.0, {}),
    "head dim 128": (E4M3, (1, 130, 260, 1, 1, 128, 128), 1.0, {}),
    "causal, 24 emulated columns": (E4M3, (1, 200, 300, 2, 1, 128, 128), 1.0, {"causal": True}),
    "pair of CTAs": (E5M2, (1, 300, 300, 1, 1, 128, 128), 1.0, {}),
    "groups and sinks": (E4M3, (2, 70, 200, 4, 2, 96, 96), 1.0, {"learnable_sink": SINK}),
    "softcap": (E4M3, (1, 100, 256, 2, 2, 64, 64), 3.0, {"softcap": 15.0}),
    "window": (E5M2, (1, 140, 270, 1, 1, 64, 64), 4.0, {"window_size": (64, 0)}),
    "head dims 192 and 128": (E4M3, (1, 64, 200, 1, 1, 192, 128), 1.0, {"causal": True}),
    "head dim 256": (E4M3, (1, 64, 200, 1, 1, 256, 256), 1.0, {}),
    "head dim 32": (E4M3, (1, 90, 200, 1, 1, 32, 32), 1.0, {}),
    "rows without keys": (E4M3, (1, 200, 100, 1, 1, 64, 64), 1.0, {"causal": True}),
}
ALWAYS = tuple(CONFIGURATIONS)[:2]


def drawn(dtype, shape, factor):
    """Draw q, k, v and descales of no round value."""
    batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v = shape
    generator = torch.Generator().manual_seed(8)

    def normal(*size):
        return factor * torch.randn(*size, generator=generator)

    q = normal(batch, seqlen_q, heads, head_dim).to(dtype)
    k = normal(batch, seqlen_k, heads_kv, head_dim).to(dtype)
    v = normal(batch, seqlen_k, heads_kv, head_dim_v).to(dtype)
    scales = (0.3 + torch.rand(batch, heads_kv, generator=generator) for _ in range(3))
    return (q, k, v), dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))


def differing(one, other):
    kind = torch.int16 if one.element_size() == 2 else torch.int32
    return int((one.contiguous().view(kind) != other.contiguous().view(kind)).sum())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.exhaustive) for name in CONFIGURATIONS]
)
def test_the_same_bits(name):
    dtype, shape, factor, options = CONFIGURATIONS[name]
    tensors, descales = drawn(dtype, shape, factor)
    shipped = kernels.kernel("fa4@sm_100a").forward(*tensors, **descales, **options)
    emulated = kernels.kernel("fa4-sm100").forward(*tensors, **descales, **options)
    assert shipped.o.dtype == emulated.o.dtype == torch.bfloat16
    assert differing(shipped.o, emulated.o) == 0
    assert differing(shipped.lse, emulated.lse) == 0
    if name in ALWAYS:
        other = {"max_offset": 7.0} if shape[1] > 1 else {"k_descale": descales["k_descale"] * (1 + 2.0**-22)}
        changed = kernels.kernel("fa4-sm100").forward(*tensors, **{**descales, **options, **other})
        assert differing(shipped.o, changed.o) + differing(shipped.lse, changed.lse) > 0, "another number is seen"


@pytest.mark.parametrize("name", ["fa4-sm100", pytest.param("fa4@sm_100a", marks=pytest.mark.exhaustive)])
def test_a_head_dim_that_fa4_cannot_compile_is_refused(name):
    tensors, _ = drawn(E4M3, (1, 1, 1, 1, 1, 80, 80), 1.0)
    with pytest.raises(kernels.Unsupported, match="failed to partition"):
        kernels.kernel(name).forward(*tensors)
