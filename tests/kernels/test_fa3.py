"""fa3: the scalar model in 8 bits with every kind of scale; fa4-sm90 in 16; what 13 bits do to long rows."""

import numpy as np
import pytest
import torch

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.fa3 import FA3
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90

from .scalar_model import F, Model, same_bits
from .test_fa4_sm90 import BF16, FP16, draw

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SINK = torch.tensor([1.5])


def scales(*shape, seed=0):
    """Positive float32 numbers without structure."""
    generator = np.random.Generator(np.random.Philox(100 + seed))
    return torch.from_numpy((0.2 + generator.random(shape)).astype(np.float32))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"learnable_sink": SINK}], ids=str)
def test_16_bits_at_head_dim_128_are_fa4s_on_hopper(dtype, options):
    q, k, v = draw(20, 300, 128, dtype=dtype, outliers=True)
    ours, theirs = FA3.forward(q, k, v, **options), FA4_SM90.forward(q, k, v, **options)
    assert same_bits(ours.o, theirs.o)
    assert same_bits(ours.lse, theirs.lse)


@pytest.mark.parametrize(
    ("dtype", "options", "model"),
    [
        (E4M3, {}, {"offset": 8.0}),
        (E5M2, {"p_offset": 3.0}, {"offset": 3.0}),
        (E4M3, {"softcap": 5.0}, {"softcap": 5.0, "offset": 8.0}),
        (E4M3, {"learnable_sink": SINK}, {"sink": 1.5, "offset": 8.0}),
    ],
    ids=str,
)
def test_bits_of_the_scalar_model_with_descales(dtype, options, model):
    q, k, v = (x.to(dtype) for x in draw(3, 200, 48, dv=32, scale=2.0, dtype=FP16))
    of_q, of_k, of_v = (scales(1, 1, seed=i) for i in range(3))
    found = FA3.forward(q, k, v, q_descale=of_q, k_descale=of_k, v_descale=of_v, **options)
    descales = {"qk_descale": F(of_q.item()) * F(of_k.item()), "v_descale": F(of_v.item())}
    o, lse = Model(128, 128, **descales, **model)(q[0, :, 0], k[0, :, 0], v[0, :, 0])
    assert same_bits(found.o[0, :, 0], o)
    assert same_bits(found.lse[0, 0], torch.from_numpy(lse))


@pytest.mark.parametrize(("seqlen_q", "causal", "rows"), [(131, False, [0, 127, 128, 130]), (4, True, [0, 1, 2, 3])])
def test_bits_of_the_scalar_model_with_scales_of_blocks(seqlen_q, causal, rows):
    """Without a mask a row does not know its index, so that the model needs only some of them."""
    q, k, v = (x.to(E4M3) for x in draw(seqlen_q, 300, 32, scale=2.0, dtype=FP16))
    of_q, of_k, of_v = scales(1, 1, -(-seqlen_q // 128)), scales(1, 1, 3, seed=1), scales(1, 1, 3, seed=2)
    found = FA3.forward(q, k, v, causal=causal, q_descale=of_q, k_descale=of_k, v_descale=of_v)
    of_rows = np.repeat(of_q[0, 0].numpy(), 128)[rows]
    blocks = (of_rows, of_k[0, 0].numpy(), of_v[0, 0].numpy())
    model = Model(128, 128, right=0 if causal else None, offset=8.0, blocks=blocks)
    o, lse = model(q[0, rows, 0], k[0, :, 0], v[0, :, 0])
    assert same_bits(found.o[0, rows, 0], o)
    assert same_bits(found.lse[0, 0, rows], torch.from_numpy(lse))


def test_equal_scales_of_blocks_that_are_powers_of_two_change_no_bit():
    q, k, v = (x.to(E4M3) for x in draw(140, 300, 32, dtype=FP16))
    whole = {f"{name}_descale": torch.full((1, 1), 0.25) for name in "qkv"}
    blocks = {f"{name}_descale": torch.full((1, 1, 2 if name == "q" else 3), 0.25) for name in "qkv"}
    one, other = FA3.forward(q, k, v, **whole), FA3.forward(q, k, v, **blocks)
    assert same_bits(one.o, other.o)
    assert same_bits(one.lse, other.lse)


def test_what_13_bits_do_to_long_rows():
    """V > 0, so that nothing cancels: the cut toward zero is a bias that grows with the number of keys."""
    loss = {}
    for keys in (1024, 4096):
        q, k, v = (x.to(E4M3) for x in draw(4, keys, 32, scale=0.5, dtype=FP16))
        v = (v.float().abs() + 0.5).to(E4M3)
        runs = {bits: FA3.forward(q, k, v, accumulator_bits=bits, o_dtype="fp32").o for bits in (13, 18, 25)}
        loss |= {(keys, bits): float((out / runs[25]).mean()) - 1 for bits, out in runs.items()}
    assert loss[1024, 13] < -5e-3
    assert loss[4096, 13] < 3 * loss[1024, 13]
    assert loss[4096, 13] < 10 * loss[4096, 18] < 0


def test_what_it_refuses():
    q, k, v = (x.to(E4M3) for x in draw(3, 200, 32, dtype=FP16))
    one = torch.ones(1, 1)
    with pytest.raises(Unsupported, match="q_descale must be float32"):
        FA3.forward(q, k, v, q_descale=torch.ones(2, 1))
    with pytest.raises(Unsupported, match="for q, k and v together"):
        FA3.forward(q, k, v, q_descale=one, k_descale=torch.ones(1, 1, 2), v_descale=one)
    with pytest.raises(Unsupported, match="only supported for FP8 inputs"):
        FA3.forward(q.half(), k.half(), v.half(), q_descale=one)
    with pytest.raises(ValueError, match="accumulator_bits 30"):
        FA3.forward(q, k, v, accumulator_bits=30)
    with pytest.raises(ValueError, match="o_dtype 'bf16'"):
        FA3.forward(q, k, v, o_dtype="bf16")
