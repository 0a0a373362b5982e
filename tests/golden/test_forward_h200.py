"""fa4-sm90 equals a real H200 in every bit of O and LSE, on every recorded problem.

Recording: forward_h200.json says device, driver, versions and date; record_forward.py made it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fa4verify

from .forward_cases import CASES, Recorded, draw

RECORDING = np.load(Path(__file__).with_name("forward_h200.npz"))
INFINITY_BITS = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000}


def _emulated(case: Recorded) -> tuple[np.ndarray, np.ndarray]:
    out = fa4verify.kernel("fa4-sm90").forward(**draw(case), **case.options)
    return out.o.view(torch.int16).numpy(), out.lse.numpy().view(np.uint32)


def _differing(got: np.ndarray, want: np.ndarray, dtype: str) -> int:
    """Return how many elements differ in bits; a NaN equals a NaN, whatever their payloads."""
    infinity = INFINITY_BITS[dtype]
    magnitude = np.uint32(2 ** (31 if dtype == "fp32" else 15) - 1)
    nan = [(bits.astype(np.uint32) & magnitude) > infinity for bits in (got, want)]
    return int(np.count_nonzero((got != want) & ~(nan[0] & nan[1])))


def test_the_recording_holds_every_case():
    assert {name.rsplit("/", 1)[0] for name in RECORDING.files} == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_bit(case: Recorded):
    o, lse = _emulated(case)
    want_o, want_lse = RECORDING[f"{case.name}/o"], RECORDING[f"{case.name}/lse"]
    assert o.shape == want_o.shape
    assert lse.shape == want_lse.shape
    differing = _differing(o, want_o, case.dtype), _differing(lse, want_lse, "fp32")
    assert differing == (0, 0), f"differing: O {differing[0]} of {o.size}, LSE {differing[1]} of {lse.size}"


def test_one_flipped_bit_is_seen():
    want = RECORDING[f"{CASES[0].name}/o"]
    got = want.copy()
    got[0, 7, 1, 3] ^= 1
    assert _differing(got, want, CASES[0].dtype) == 1
    assert _differing(np.array([0], np.int16), np.array([-0x8000], np.int16), "bf16") == 1, "-0 is not +0"
    assert _differing(np.array([0x7FC0], np.int16), np.array([0x7FFF], np.int16), "bf16") == 0, "NaN is NaN"
    assert _differing(np.array([0x7F80], np.int16), np.array([0x7FC0], np.int16), "bf16") == 1, "inf is not NaN"
