"""Exchanges inside a warp against the oracle: every lane's result, for whole warps.

The machine takes a member mask only as the literal of all lanes (FA4 writes no other), and says so of the rest. The
oracle itself is held to an H200 with every mask by test_oracle_h200.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa4verify.ptx import PtxError
from tests.golden.opcode_list import OPCODES
from tests.golden.opcode_program import families_of, inputs

from . import oracle_exchange
from .probes import kernel, run

EXCHANGES = [opcode for opcode in OPCODES if opcode.exchange]
WHOLE = [replace(opcode, form=opcode.form.replace("@{take} ", "").replace("{m}", "-1")) for opcode in EXCHANGES]
# The machine has match.all without its predicate only.
WHOLE = [replace(o, form=o.form.replace("|{d1}", ""), results=("b32",)) if "match.all" in o.text else o for o in WHOLE]
WARPS = 32
ALL = 0xFFFFFFFF


@pytest.mark.parametrize("opcode", WHOLE, ids=lambda opcode: opcode.name)
def test_every_lane_gets_what_the_oracle_says(opcode):
    compared = 0
    for family in families_of(opcode):
        operands, _ = inputs(opcode, family)
        operands = [x[: 32 * WARPS] for x in operands]
        results = run(opcode, operands)
        for warp in range(0, len(operands[0]), 32):
            lanes = [tuple(int(x[warp + lane]) for x in operands[:-1]) for lane in range(32)]
            answers = oracle_exchange.answer(opcode.text, ALL, lanes, opcode.label == "not")
            expected = [one and one[: len(opcode.results)] for one in answers]
            got = list(zip(*(x[warp : warp + 32].tolist() for x in results), strict=True))
            assert got == expected, (family, lanes)
            compared += 1
    assert compared >= WARPS


@pytest.mark.parametrize("opcode", [o for o in EXCHANGES if "{m}" in o.form], ids=lambda opcode: opcode.name)
def test_a_mask_in_a_register_is_refused(opcode):
    with pytest.raises(PtxError, match="membermask of all 32 lanes"):
        kernel(opcode)


def test_a_shuffle_stays_inside_its_segment():
    """The published formula by hand: width 8, down by 3, lanes 5 to 7 of a segment keep their own."""
    clamp = (32 - 8) << 8 | 31
    sources = [oracle_exchange.shuffled("down", lane, 3, clamp) for lane in range(32)]
    assert [source for source, _ in sources[:8]] == [3, 4, 5, 6, 7, 5, 6, 7]
    assert [inside for _, inside in sources[8:16]] == [True] * 5 + [False] * 3
    assert all(source // 8 == lane // 8 for lane, (source, _) in enumerate(sources))
