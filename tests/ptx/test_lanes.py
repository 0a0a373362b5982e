"""Every lane operation of the machine against the oracle: through a program, on corner values and random ones.

The oracle is unlike: one lane, Python integers and fractions. Exhaustive where the operand is a 16-bit float; inputs
are those of tests/golden/opcode_inputs, so that a difference can also be asked of a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fa4verify.ptx.lanes import LANES
from tests.golden.opcode_inputs import raw
from tests.golden.opcode_list import OPCODES, Opcode
from tests.golden.opcode_program import THREADS, families_of, inputs

from . import oracle_approximations
from .oracle import answer, sequence
from .probes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names that no PTX has: what the reader makes of vectors of mov and the contraction of mul and add.
VECTORS = {
    "mov.b32.pack2": 0, "mov.b64.pack2": 1, "mov.b64.pack4": 2, "mov.b32.unpack2": 3, "mov.b64.unpack2": 4,
}  # fmt: skip
CONTRACTED = {
    "fms.rn.f32": "{{ .reg .b32 %t; mul.f32 %t, {a0}, {a1}; sub.f32 {d0}, %t, {a2}; }}",
    "fnma.rn.f32": "{{ .reg .b32 %t; mul.f32 %t, {a0}, {a1}; sub.f32 {d0}, {a2}, %t; }}",
}
_PAIRS = "{{ .reg .b64 %t<4>; " + " ".join(f"mov.b64 %t{i}, {{{{{{a{2 * i}}}, {{a{2 * i + 1}}}}}}};" for i in range(3))
_PAIRS += " mul.f32x2 %t3, %t0, %t1; SUM mov.b64 {{{d0}, {d1}}}, %t3; }}"
CONTRACTED_PAIRS = {
    "fms.rn.f32x2": _PAIRS.replace("SUM", "sub.f32x2 %t3, %t3, %t2;"),
    "fnma.rn.f32x2": _PAIRS.replace("SUM", "sub.f32x2 %t3, %t2, %t3;"),
}
BYTES = "mov.b16.pack2"
RANKS = "mapa.shared::cluster.u32"
EXTRA = [
    Opcode("mad.rn.f32", ("f32",), ("f32", "f32", "f32")),
    Opcode("selp.f64", ("b64",), ("b64", "b64", "pred")),
    Opcode("mov.f64", ("b64",), ("b64",)),
    *(Opcode(name, ("f32",), ("f32",) * 3, form) for name, form in CONTRACTED.items()),
    *(Opcode(name, ("f32",) * 2, ("f32",) * 6, form, sm=100) for name, form in CONTRACTED_PAIRS.items()),
]
BY_TEXT: dict[str, list[Opcode]] = {}
for _opcode in (*OPCODES, *EXTRA):
    if not _opcode.exchange and (not _opcode.label or _opcode.text == "lop3.b32" or _opcode.label == "3"):
        BY_TEXT.setdefault(_opcode.text, []).append(_opcode)
for _name, _number in VECTORS.items():
    BY_TEXT[_name] = [next(o for o in OPCODES if o.label == f"vector {_number}")]
ROWS = 2 * THREADS


def _chosen(opcode: Opcode) -> Iterator[list[np.ndarray]]:
    """Yield operands of each family: all of the small ones and all 16-bit floats, else a random choice of ROWS."""
    for family in families_of(opcode):
        operands, rows = inputs(opcode, family)
        if opcode.operands in (("f16",), ("bf16",)) or rows <= ROWS:
            yield operands
            continue
        places = raw(f"{opcode.name}/{family}/chosen", ROWS) % np.uint64(rows)
        yield [x[places.astype(np.int64)] for x in operands]


def test_every_lane_operation_has_an_oracle_and_a_program():
    """Nobody adds an operation to the machine without a second opinion."""
    assert set(LANES) - set(BY_TEXT) == {BYTES, RANKS}
    for name in set(LANES) & set(BY_TEXT):
        for opcode in BY_TEXT[name]:
            if "approx" not in name:
                sequence(opcode, tuple(1 for _ in opcode.operands))  # raises where there is none


@pytest.mark.parametrize("name", sorted(set(LANES) & set(BY_TEXT)))
def test_results_are_the_oracles(name):
    for opcode in BY_TEXT[name]:
        for operands in _chosen(opcode):
            got = run(opcode, operands)
            rows = zip(*(x.tolist() for x in operands), strict=True)
            for values, *results in zip(rows, *(x.tolist() for x in got), strict=True):
                if "approx" in name:
                    ok = oracle_approximations.is_allowed(name, values[0], results[0])
                    assert ok, f"{opcode.name} {[hex(x) for x in values]}: got {hex(results[0])}"
                    continue
                expected = sequence(opcode, values)
                assert tuple(results) == expected, (
                    f"{opcode.name} {[hex(x) for x in values]}: "
                    f"got {[hex(x) for x in results]}, want {[hex(x) for x in expected]}"
                )


def test_bytes_are_packed_low_first():
    form = "{{ .reg .b8 %b<2>; cvt.u8.u16 %b0, {a0}; cvt.u8.u16 %b1, {a1}; mov.b16 {d0}, {{%b0, %b1}}; }}"
    opcode = Opcode(BYTES, ("b16",), ("b16", "b16"), form)
    low, high = (raw(name, THREADS) & np.uint64(0xFFFF) for name in ("low", "high"))
    (got,) = run(opcode, [low, high])
    assert got.tolist() == ((low & np.uint64(255)) | (high & np.uint64(255)) << np.uint64(8)).tolist()


def test_contracted_forms_are_what_the_reader_makes_of_two_statements():
    """Without that the programs of CONTRACTED would test something else."""
    from .probes import kernel

    for name in CONTRACTED | CONTRACTED_PAIRS:
        assert kernel(BY_TEXT[name][0]).census()[name] == 1
    values = (0x3F800001, 0x3F800001, 0x3F800002)
    assert answer("fms.rn.f32", values) != answer("sub.f32", (*answer("mul.f32", values[:2]), values[2]))
