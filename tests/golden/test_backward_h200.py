"""fa4-sm90 equals a real H200 in every bit of O, LSE and all gradients, each chained from its own forward.

Recording: backward_h200.json says device, driver, versions and date; record_backward.py made it, with
deterministic=True, each case three times with equal bits. Kept are fingerprints: CRC-32 of every row.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import fa4verify
from fa4verify.kernels.emulated import backward_launch, fa4_sm90

from .backward_cases import CASES, draw, fingerprint

if TYPE_CHECKING:
    from .forward_cases import Recorded

RECORDING = np.load(Path(__file__).with_name("backward_h200.npz"))
NAMES = sorted({name.rsplit("/", 1)[0] for name in RECORDING.files})
BY_NAME = {case.name: case for case in CASES}


def _bits(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32).numpy()


def _emulated(case: Recorded, use_dlse: bool) -> dict[str, np.ndarray]:
    tensors = draw(case)
    dout, dlse = tensors.pop("dout"), tensors.pop("dlse")
    q, k, v = (tensors.pop(name) for name in "qkv")
    kernel = fa4verify.kernel("fa4-sm90")
    options = case.options | tensors
    forward = kernel.forward(q, k, v, **options)
    out = kernel.backward(dout, q, k, v, forward.o, forward.lse, dlse=dlse if use_dlse else None, **options)
    outputs = {"o": forward.o, "lse": forward.lse, "dq": out.dq, "dk": out.dk, "dv": out.dv, "dsink": out.dsink}
    return {name: _bits(tensor) for name, tensor in outputs.items() if tensor is not None}


def _differing(name: str, got: dict[str, np.ndarray]) -> dict[str, int]:
    """Return how many rows of each recorded tensor differ in bits (elements of LSE and dsink)."""
    recorded = [file.rsplit("/", 1)[1] for file in RECORDING.files if file.rsplit("/", 1)[0] == name]
    return {
        tensor: int(np.count_nonzero(fingerprint(got[tensor]) != RECORDING[f"{name}/{tensor}"])) for tensor in recorded
    }


def test_the_recording_holds_every_case():
    assert {name.removesuffix("+dlse") for name in NAMES} == set(BY_NAME)
    for name in NAMES:
        tensors = {file.rsplit("/", 1)[1] for file in RECORDING.files if file.rsplit("/", 1)[0] == name}
        least = {"dq", "dk"} if name.endswith("+dlse") else {"o", "lse", "dq", "dk", "dv"}
        assert least <= tensors


@pytest.mark.parametrize("name", NAMES)
def test_every_bit(name: str):
    got = _emulated(BY_NAME[name.removesuffix("+dlse")], name.endswith("+dlse"))
    differing = _differing(name, got)
    assert not any(differing.values()), f"rows that differ: {differing}"


def test_one_flipped_bit_is_seen():
    name = NAMES[0]
    got = _emulated(BY_NAME[name], use_dlse=False)
    assert not any(_differing(name, got).values())
    got["dk"][0, 7, 0, 3] ^= 1
    assert _differing(name, got) == {tensor: int(tensor == "dk") for tensor in got}


def test_another_order_or_tile_is_seen(monkeypatch):
    """Adding to dQ the other way round changes 4 and 1 elements here, partials of 64 keys 11 and 8: both are proved."""
    names = ["bf16-d128-s1100x1100-h1_1-outlier", "fp16-d64-s320x320-h1_1-outlier-causal"]
    turns, setup = backward_launch.dq_turns, fa4_sm90.backward_setup
    with monkeypatch.context() as patch:
        patch.setattr(
            backward_launch,
            "dq_turns",
            lambda met, *, descending, **rest: turns(met, descending=not descending, **rest),
        )
        reversed_order = [_differing(name, _emulated(BY_NAME[name], False)) for name in names]
    with monkeypatch.context() as patch:
        patch.setattr(fa4_sm90, "backward_setup", lambda *args, **rest: replace(setup(*args, **rest), tile_n=64))
        narrow = [_differing(name, _emulated(BY_NAME[name], False)) for name in names]
    assert all(differing["dq"] > 0 for differing in reversed_order + narrow)
    assert not any(differing["dk"] or differing["dv"] for differing in reversed_order + narrow)
