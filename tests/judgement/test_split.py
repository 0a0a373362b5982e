"""The split of an error against the draws: every part is what was put in, heads apart."""

import numpy as np
import pytest
import torch

from fa4verify.judgement.split import split
from fa4verify.vocabulary import Output, Truth

RANDOM = np.random.Generator(np.random.Philox(2))
EXACT = RANDOM.standard_normal((2, 50, 3, 8))


def of(o):
    return Truth({"o": o})


def test_each_part_is_what_was_put_in():
    inputs, kernel = 0.02 * RANDOM.standard_normal(EXACT.shape), 0.003 * RANDOM.standard_normal(EXACT.shape)
    found = split(Output(o=torch.from_numpy(EXACT + inputs + kernel)), of(EXACT), of(EXACT + inputs))
    assert found["input_rmse"] == pytest.approx(np.sqrt(np.mean(inputs**2)), rel=1e-12)
    assert found["rmse_on_inputs"] == pytest.approx(np.sqrt(np.mean(kernel**2)), rel=1e-9)


def test_the_spread_is_that_of_heads():
    error = np.array([1.0, 2.0, 3.0])[:, None] * np.ones_like(EXACT)
    found = split(Output(o=torch.from_numpy(EXACT + error)), of(EXACT), of(EXACT))
    assert found["head_spread"] == pytest.approx(1.0 / 2.0)
    one = split(Output(o=torch.from_numpy(EXACT[:, :, :1])), of(EXACT[:, :, :1]), of(EXACT[:, :, :1]))
    assert "head_spread" not in one


def test_what_is_not_finite_or_not_there_is_left_out():
    got = EXACT.copy()
    got[0, 0, 0, 0] = np.nan
    assert split(Output(o=torch.from_numpy(got)), of(EXACT), of(EXACT))["rmse_on_inputs"] == 0.0
    assert split(Output(), of(EXACT), of(EXACT)) == {}
    assert split(Output(o=torch.from_numpy(got[:1])), of(EXACT), of(EXACT)) == {}
