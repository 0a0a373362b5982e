"""The machine gives an H200's bits: every recorded instruction and sequence that it can run, on every recorded input.

Recording: tests/golden/opcodes_h200.json, CRC-32 of all results of each family of inputs. An instruction that the
machine refuses is not compared, but LEAST keeps count, so that none is lost unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa4verify.ptx import PtxError
from fa4verify.ptx.lanes import LANES
from tests.golden.opcode_list import OPCODES
from tests.golden.opcode_program import families_of, fingerprint, program
from tests.golden.opcode_units import UNITS

from .probes import answers, kernel

RECORDING = json.loads((Path(__file__).parents[1] / "golden" / "opcodes_h200.json").read_text())["recorded"]
RECORDED = [opcode for part in (OPCODES, *UNITS.values()) for opcode in part if opcode.name in RECORDING]
LEAST = 416  # instructions and sequences that the machine runs


def _runs(opcode):
    try:
        kernel(opcode)
    except PtxError:
        return False
    return True


RUN = [opcode for opcode in RECORDED if _runs(opcode)]


def test_the_machine_runs_most_of_the_recording():
    assert len(RECORDED) == len(RECORDING)
    assert len(RUN) >= LEAST
    # An instruction with an entry among the lane operations must run in its plain form.
    plain = [opcode for opcode in RECORDED if opcode.text in LANES and not opcode.label]
    assert {opcode.name for opcode in plain} <= {opcode.name for opcode in RUN}


@pytest.mark.parametrize("opcode", RUN, ids=lambda opcode: opcode.name)
def test_results_are_the_devices(opcode):
    for family in families_of(opcode):
        got = fingerprint(answers(opcode, family))
        assert got == RECORDING[opcode.name][family], f"{family}\n{program(opcode)}"
