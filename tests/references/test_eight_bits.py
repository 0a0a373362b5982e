"""8-bit codes with descales, and float64 draws, against mpmath; the certificate holds for the former."""

import msgspec
import numpy as np
import pytest
import torch

from fa4verify import references
from fa4verify.references import mp
from fa4verify.vocabulary import Inputs, Quantisation

from .problems import attention_case

SCALE = 0.5


def inputs(dtype, blocks):
    """Draw codes of two KV heads and descales of 20 bits, and the numbers that they mean, with Python's own product."""
    generator = np.random.Generator(np.random.Philox(4))
    tensors, meant = {}, {}
    for name, tokens, heads in (("q", 3, 4), ("k", 130, 2), ("v", 130, 2)):
        codes = torch.from_numpy(2 * generator.standard_normal((1, tokens, heads, 4))).float().to(dtype)
        shape = (1, heads, -(-tokens // 128)) if blocks else (1, 2)
        descale = np.round(generator.uniform(0.3, 0.9, shape) * 2**20) / 2**20
        tensors |= {name: codes, f"{name}_descale": torch.from_numpy(descale).float()}
        values = codes.double().tolist()
        meant[name] = [
            [
                [
                    [x * (descale[0, h, t // 128] if blocks else descale[0, h * 2 // heads]) for x in head]
                    for h, head in enumerate(row)
                ]
                for t, row in enumerate(values[0])
            ]
        ]
    return Inputs(tensors), meant


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("blocks", [False, True])
def test_codes_with_descales_against_mpmath(dtype, blocks):
    given, meant = inputs(dtype, blocks)
    case = attention_case(dtype="e4m3", softmax_scale=SCALE, quantisation=Quantisation("block" if blocks else "head"))
    truth = references.solve(case, given)
    o, lse = mp.forward(meant["q"], meant["k"], meant["v"], softmax_scale=SCALE)
    for (b, h, i), exact in o.items():
        off = max(abs(float(x) - y) for x, y in zip(exact, truth.tensors["o"][b, i, h], strict=True))
        assert off < 1e-14
        assert abs(float(lse[b, h, i]) - truth.tensors["lse"][b, h, i]) < 1e-14
    assert 0 < truth.radius["o"] < 1e-14
    assert len(truth.sampled_rows) >= 3


def test_draws_are_read_before_any_rounding():
    given, _ = inputs(torch.float8_e4m3fn, False)
    generator = np.random.Generator(np.random.Philox(5))
    draws = {name: generator.standard_normal(tuple(given.tensors[name].shape)) for name in "qkv"}
    case = attention_case(dtype="e4m3", softmax_scale=SCALE, truth="draws")
    truth = references.solve(case, Inputs(given.tensors, draws))
    o, _ = mp.forward(*(draws[name].tolist() for name in "qkv"), softmax_scale=SCALE)
    assert max(abs(float(o[0, 1, 2][c]) - truth.tensors["o"][0, 2, 1, c]) for c in range(4)) < 1e-14
    assert truth.radius == {}
    rounded = references.solve(msgspec.structs.replace(case, truth="inputs"), Inputs(given.tensors, draws))
    assert np.abs(rounded.tensors["o"] - truth.tensors["o"]).max() > 0.1
