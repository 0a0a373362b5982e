"""Answers against the floor: the checksums of the H200's recording, and one wrong bit among eight million."""

import json
from pathlib import Path

import numpy as np
import pytest

from fa4verify.arithmetic import exhaust
from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.arithmetic.mufu import ex2_array

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "mufu_h200.json").read_text())["functions"]
BLOCK = 1 << 23


@pytest.mark.parametrize(("name", "block"), [("ex2", 385), ("rcp", 130), ("lg2", 126), ("tanh", 126)])
def test_checksums_are_those_that_the_device_recorded(name, block):
    found = exhaust.compare(name, block * BLOCK, exhaust.model(name, block * BLOCK, BLOCK))
    assert (found.unlike, found.first) == (0, None)
    assert f"{found.checksum:016x}" == RECORDED[name]["checksums"][block]


@pytest.mark.parametrize("degree", exhaust.DEGREES)
def test_the_emulation_is_the_scalar_form(degree):
    first = 0xC0000000 - 2**15
    x = np.arange(first, first + 2**16, dtype=np.uint32).view(np.float32)
    want = ex2_emulation_array(x, POLY_EX2[degree], ftz=True)
    assert np.array_equal(exhaust.model(f"ex2_emulation_{degree}", first, 2**16), want.view(np.uint32))


def test_one_bit_is_found_and_named():
    first = 0x3F800000
    answers = exhaust.model("ex2", first, 4096)
    answers[77] ^= 1
    found = exhaust.compare("ex2", first, answers)
    ours = int(ex2_array(np.array([first + 77], np.uint32).view(np.float32)).view(np.uint32)[0])
    assert (found.unlike, found.first) == (1, (first + 77, ours ^ 1, ours))


def test_a_nan_is_a_nan_and_nothing_else_is():
    first = 0x7F800000
    answers = exhaust.model("lg2", first, 16)
    answers[5] = 0xFFC12345
    assert exhaust.compare("lg2", first, answers).unlike == 0
    answers[5] = 0x7F800000
    assert exhaust.compare("lg2", first, answers).unlike == 1
