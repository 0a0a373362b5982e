"""flash2: the scalar model left to right; fa4-sm90 where there is one tile, other bits where order counts."""

import pytest
import torch

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90
from fa4verify.kernels.emulated.flash2 import FLASH2
from fa4verify.kernels.emulated.visibility import resolve

from .attention64 import attention64, check
from .scalar_model import Model, same_bits
from .test_fa4_sm90 import BF16, FEATURES, FP16, draw


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_bits_of_the_scalar_model(dtype, causal):
    q, k, v = draw(5, 390, 64, dtype=dtype, outliers=True)
    model = Model(128, 128, right=0 if causal else None, ascending=True)
    o, lse = model(q[0, :, 0], k[0, :, 0], v[0, :, 0])
    out = FLASH2.forward(q, k, v, causal=causal)
    assert same_bits(out.o[0, :, 0], o)
    assert same_bits(out.lse[0, 0], torch.from_numpy(lse))


def test_order_is_all_that_differs_from_hopper():
    one_tile, four_tiles = draw(20, 128, 128, outliers=True), draw(20, 512, 128, outliers=True)
    assert same_bits(FLASH2.forward(*one_tile).o, FA4_SM90.forward(*one_tile).o)
    assert not same_bits(FLASH2.forward(*four_tiles).lse, FA4_SM90.forward(*four_tiles).lse)
    q, k, v = four_tiles
    tiles = [slice(start, start + 128) for start in (384, 256, 128, 0)]
    turned = [torch.cat([x[:, tile] for tile in tiles], dim=1) for x in (k, v)]
    assert same_bits(FLASH2.forward(q, *turned).o, FA4_SM90.forward(q, k, v).o)


@pytest.mark.parametrize("options", FEATURES, ids=str)
def test_within_what_a_correct_kernel_may_err(options):
    q, k, v = draw(130, 257, 64, heads=4, heads_kv=2)
    mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
    truth = attention64(
        q,
        k,
        v,
        left=mask.left,
        right=mask.right_bound,
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        sink=options.get("learnable_sink"),
    )
    check(FLASH2.forward(q, k, v, **options), truth)


def test_always_rescales_and_never_emulates():
    out = FLASH2.forward(*draw(64, 700, 64, outliers=True))
    assert out.activity["rescales_done"] > 0
    assert out.activity["rescales_skipped"] == out.activity["emulated_exp2"] == 0


def test_refuses_wide_heads():
    with pytest.raises(Unsupported, match="between 1 and 256"):
        FLASH2.forward(*draw(2, 2, 264))


def test_exp2_is_mufu():
    x = torch.linspace(-20, 20, 1001)
    assert same_bits(FLASH2.exp2(x).y, FA4_SM90.exp2(x).y)
