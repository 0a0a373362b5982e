"""The oracle itself is right: it gives what an H200 gave, at every sample of the recording.

Recording: tests/golden/opcodes_h200.json says device, driver, date; record_opcodes.py made it. Samples are eight rows
of each family of each instruction. Once, the oracle was compared with 150 rows of each family of the 790 instructions
that it knows, and with every row of the exchanges: no difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden.opcode_list import OPCODES
from tests.golden.opcode_program import UNTOUCHED, families_of, inputs

from . import oracle_approximations, oracle_exchange
from .oracle import sequence

RECORDING = json.loads((Path(__file__).parents[1] / "golden" / "opcodes_h200.json").read_text())["recorded"]
LANES = [opcode for opcode in OPCODES if opcode.sm <= 90 and not opcode.exchange]
EXCHANGES = [opcode for opcode in OPCODES if opcode.exchange]
# Approximations that the machine does not have and the oracle therefore leaves alone.
NO_ORACLE = {
    *(f"{name}.approx{ftz}.f32" for name in ("div", "sqrt", "rsqrt", "sin", "cos") for ftz in ("", ".ftz")),
    *("div.full.f32", "div.full.ftz.f32", "rcp.approx.f32", "lg2.approx.f32"),
    *("ex2.approx.f16", "tanh.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.bf16"),
}


def _samples(opcode, family):
    operands, rows = inputs(opcode, family)
    texts = RECORDING[opcode.name][family][-1].split()
    places = sorted({rows * k // 8 for k in range(8)})
    for row, text in zip(places, texts, strict=True):
        yield tuple(int(x[row]) for x in operands), int(text, 16)


def test_the_recording_holds_every_instruction_of_the_device():
    assert {opcode.name for opcode in (*LANES, *EXCHANGES)} <= set(RECORDING)
    for opcode in (*LANES, *EXCHANGES):
        assert tuple(RECORDING[opcode.name]) == families_of(opcode)


def test_every_sample_of_the_device_is_the_oracles():
    wrong, compared = [], 0
    for opcode in LANES:
        if opcode.name in NO_ORACLE:
            continue
        for family in families_of(opcode):
            for values, device in _samples(opcode, family):
                compared += 1
                if "approx" in opcode.text:
                    if not oracle_approximations.is_allowed(opcode.text, values[0], device):
                        wrong.append((opcode.name, family, [hex(x) for x in values], hex(device)))
                elif sequence(opcode, values)[0] != device:
                    wrong.append((opcode.name, family, [hex(x) for x in values], hex(device)))
    assert not wrong, f"{len(wrong)} of {compared}: {wrong[:5]}"
    assert compared > 16_000


@pytest.mark.parametrize("name", sorted(NO_ORACLE))
def test_what_the_oracle_leaves_alone_it_says(name):
    opcode = next(opcode for opcode in LANES if opcode.name == name)
    with pytest.raises(NotImplementedError):
        sequence(opcode, (0x3F800000,) * len(opcode.operands))


@pytest.mark.parametrize("opcode", EXCHANGES, ids=lambda opcode: opcode.name)
def test_exchanges_of_the_device_are_the_oracles(opcode):
    for family in families_of(opcode):
        operands, rows = inputs(opcode, family)
        texts = RECORDING[opcode.name][family][-1].split()
        for row, text in zip(sorted({rows * k // 8 for k in range(8)}), texts, strict=True):
            warp = row - row % 32
            lanes = [tuple(int(x[warp + lane]) for x in operands[:-1]) for lane in range(32)]
            mask = int(operands[-1][warp]) if "{take}" in opcode.form else 0xFFFFFFFF
            expected = oracle_exchange.answer(opcode.text, mask, lanes, opcode.label == "not")[row % 32]
            untouched = 0 if opcode.results[0] == "pred" else UNTOUCHED
            assert int(text, 16) == (untouched if expected is None else expected[0]), (family, row)


def test_the_samples_can_tell():
    """A rounding mode, a flush or a NaN rule that is wrong differs at some sample."""
    by_name = {opcode.name: opcode for opcode in LANES}
    for name, other in (
        ("add.rm.f32", "add.rn.f32"),
        ("max.f32", "max.NaN.f32"),
        ("setp.lt.f32", "setp.ltu.f32"),
        ("cvt.rn.bf16.f32", "cvt.rz.bf16.f32"),
        ("shr.s32", "shr.u32"),
        ("mul.hi.s32", "mul.hi.u32"),
        ("dp2a.lo.u32.s32", "dp2a.lo.u32.u32"),
    ):
        opcode = by_name[name]
        different = 0
        for family in families_of(opcode):
            for values, device in _samples(opcode, family):
                different += sequence(by_name[other], values)[0] != device
        assert different, (name, other)


def test_decode_and_encode_are_inverse():
    from .oracle_numbers import FORMATS, decode, encode

    for name in ("f16", "bf16", "e4m3", "e5m2"):
        form = FORMATS[name]
        for code in range(0, 1 << form.bits, 1 if form.bits == 8 else 7):
            value = decode(code, form)
            back = encode(value, form, zero_negative=bool(code & form.sign))
            assert back == (form.nan if value == "nan" else code), (name, hex(code))
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    for code in range(0, 1 << 16, 7):
        value = decode(code, FORMATS["f16"])
        if not isinstance(value, str):
            assert float(value) == numbers[code]
