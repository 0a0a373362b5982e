"""fa4-sm90 equals an H200 in every bit on 250 random problems (fuzz_cases.py), and refuses those that crash FA4.

fuzz_h200.json holds fingerprints of what the device gave, not the bits; record_fuzz.py made it.
"""

import json
from pathlib import Path

import pytest

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90

from .fuzz_cases import digest, fuzz_case

RECORDING = json.loads(Path(__file__).with_name("fuzz_h200.json").read_text())
RECORDED = [int(i) for i in RECORDING["recorded"]]
PARTS = 10


def emulated(i):
    tensors, options = fuzz_case(i)
    out = FA4_SM90.forward(*tensors, **options)
    return [digest(out.o), digest(out.lse)]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_bit(part):
    differing = [i for i in RECORDED[part::PARTS] if emulated(i) != RECORDING["recorded"][str(i)]]
    assert not differing, f"cases that differ from the recording: {differing}"


def test_it_can_fail():
    i = RECORDED[0]
    tensors, options = fuzz_case(i)
    tensors[0] = tensors[0] * 1.01
    assert digest(FA4_SM90.forward(*tensors, **options).o) != RECORDING["recorded"][str(i)][0]


@pytest.mark.parametrize("i", RECORDING["crashed"])
def test_what_crashes_fa4_is_refused(i):
    tensors, options = fuzz_case(int(i))
    with pytest.raises(Unsupported, match="shared memory"):
        FA4_SM90.forward(*tensors, **options)
