"""FA4's own PTX, executed here, equals a real H200 in every bit: forwards, backwards, features.

Recordings: forward_h200, backward_h200 and features_h200 say device, driver, versions and date. A few of each run
always; all of them with `-m exhaustive` (four minutes of compiling the first time, kept on disk from then on).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fa4verify
from fa4verify import kernels

from . import backward_cases, feature_cases, forward_cases
from .test_backward_h200 import NAMES as BACKWARD
from .test_backward_h200 import _bits, _differing
from .test_forward_h200 import RECORDING as FORWARD
from .test_forward_h200 import _differing as _different_bits

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_90a") is not None, reason=str(kernels.availability("fa4@sm_90a"))
)
FEATURES = json.loads(Path(__file__).with_name("features_h200.json").read_text())
FINGERPRINTS = np.load(Path(__file__).with_name("features_h200.npz"))

ALWAYS = {
    "bf16-d64-s384x384-h2_2-outlier",
    "fp16-d128-s384x384-h2_2-normal-causal",
    "bf16-d64-s300x300-h2_2-nonfinite-causal",
    "bf16-d128-s320x320-h1_1-outlier",
    "varlen bf16 d128 causal",
    "paged 16 decode",
}


def _some(names):
    """Mark all but a few as exhaustive."""
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.exhaustive, id=name) for name in names]


@pytest.mark.parametrize("name", _some(case.name for case in forward_cases.CASES))
def test_forward(name):
    (case,) = (case for case in forward_cases.CASES if case.name == name)
    out = fa4verify.kernel("fa4@sm_90a").forward(**forward_cases.draw(case), **case.options)
    differing = (
        _different_bits(_bits(out.o), FORWARD[f"{name}/o"], case.dtype),
        _different_bits(_bits(out.lse).view(np.uint32), FORWARD[f"{name}/lse"], "fp32"),
    )
    assert differing == (0, 0), f"differing: O {differing[0]} of {out.o.numel()}, LSE {differing[1]}"


@pytest.mark.parametrize("name", _some(BACKWARD))
def test_backward(name):
    (case,) = (case for case in backward_cases.CASES if case.name == name.removesuffix("+dlse"))
    tensors = backward_cases.draw(case)
    dout, dlse = tensors.pop("dout"), tensors.pop("dlse")
    q, k, v = (tensors.pop(tensor) for tensor in "qkv")
    kernel, options = fa4verify.kernel("fa4@sm_90a"), case.options | tensors
    forward = kernel.forward(q, k, v, **options)
    given = dlse if name.endswith("+dlse") else None
    out = kernel.backward(dout, q, k, v, forward.o, forward.lse, dlse=given, **options)
    found = {"o": forward.o, "lse": forward.lse, "dq": out.dq, "dk": out.dk, "dv": out.dv, "dsink": out.dsink}
    differing = _differing(name, {tensor: _bits(x) for tensor, x in found.items() if x is not None})
    assert not any(differing.values()), f"rows that differ: {differing}"


@pytest.mark.parametrize("name", _some(FEATURES["crc32"]))
def test_feature(name):
    differing = _feature(name)
    assert not any(differing.values()), f"blocks that differ: {differing}"


def _feature(name):
    """Return for each recorded tensor how many of its blocks have other bits."""
    (case,) = (case for case in feature_cases.CASES if case.name == name)
    kernel = fa4verify.kernel("fa4@sm_90a")
    with kernel.interface():
        outputs = feature_cases.launch(case, feature_cases.draw(case))
    recorded = {
        file.rsplit("/", 1)[1]: FINGERPRINTS[file] for file in FINGERPRINTS.files if file.startswith(f"{name}/")
    }
    assert recorded, "nothing was recorded"
    return {
        tensor: int(np.count_nonzero(feature_cases.fingerprint(tensor, feature_cases.bits(outputs[tensor])) != blocks))
        for tensor, blocks in recorded.items()
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(FEATURES["refused"]))
def test_what_an_h200_refuses_is_refused(name):
    (case,) = (case for case in feature_cases.CASES if case.name == name)
    kernel = fa4verify.kernel("fa4@sm_90a")
    with pytest.raises(kernels.Unsupported), kernel.interface():
        feature_cases.launch(case, feature_cases.draw(case))


def test_one_other_input_is_seen():
    case = next(case for case in forward_cases.CASES if case.name == "fp16-d128-s384x384-h2_2-normal-causal")
    tensors = forward_cases.draw(case)
    tensors["v"][0, 200, 1, 7] += 1
    out = fa4verify.kernel("fa4@sm_90a").forward(**tensors, **case.options)
    assert 100 < _different_bits(_bits(out.o), FORWARD[f"{case.name}/o"], case.dtype) < 200
    assert _different_bits(_bits(out.lse).view(np.uint32), FORWARD[f"{case.name}/lse"], "fp32") == 0
