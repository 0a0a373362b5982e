"""Every compiled kernel of a folder reads, and has the instructions that ptxas makes of it.

Set FA4VERIFY_PTX to a folder of PTX files (`CUTE_DSL_KEEP_PTX=1` leaves them, so does a compile cache); without it
the tests are skipped. With flash-attn-4 4.0.0b36 and nvidia-cutlass-dsl 4.8.1, 171 texts for sm_80, sm_90a, sm_100a,
sm_103a and sm_120a were read (November 2026).
"""

import os
from pathlib import Path

import pytest

from fa4verify import ptx
from fa4verify.ptx.kernel import entries
from fa4verify.ptx.operations import FIRST_UNIT
from tests.ptx import sass

FOLDER = os.environ.get("FA4VERIFY_PTX", "")
TEXTS = sorted(Path(FOLDER).rglob("*.ptx")) if FOLDER else []
if not TEXTS:
    pytest.skip("FA4VERIFY_PTX names no folder of PTX files", allow_module_level=True)

SCALAR_PAIRS = ("sm_80", "sm_90a", "sm_120a")  # where ptxas makes two instructions of one on a pair


def kernels(path):
    text = path.read_text()
    return [ptx.load(text, entry=name) for name in entries(text)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_text_reads(path):
    for kernel in kernels(path):
        assert len(kernel.code) > 10
        assert kernel.image.shape == (kernel.program.slots, 32)
        used = set(kernel.program.pool) | {value for one in kernel.program.instructions for value in one.reads}
        assert max(used) < kernel.program.slots
        assert all(one.op < FIRST_UNIT or one.opcode[0] != "(" for one in kernel.program.instructions[:-1])


def expected(kernel):
    """Count the SASS opcodes that the program asks for."""
    census = kernel.census()

    def count(*stems, kind):
        return sum(n for opcode, n in census.items() if opcode.split(".")[0] in stems and opcode.endswith(kind))

    products, sums, fused = ("mul",), ("add", "sub"), ("fma", "fms", "fnma")
    counts = {"FMUL": count(*products, kind=".f32"), "FADD": count(*sums, kind=".f32")}
    counts["FFMA"] = count(*fused, kind=".f32") + census["fma.rn.f32.bf16"] + census["fma.rn.f32.f16"]
    for name, stems in (("FMUL", products), ("FADD", sums), ("FFMA", fused)):
        pairs = count(*stems, kind="f32x2")
        if kernel.target in SCALAR_PAIRS:
            counts[name] += 2 * pairs
        else:
            counts[name + "2"] = pairs
    counts["FMUL"] += 2 * census["ex2.approx.f32"]  # scales subnormal arguments and results
    counts["FMNMX"] = count("max", "min", kind=".f32")
    counts["MUFU"] = sum(n for opcode, n in census.items() if ".approx." in opcode)
    counts["HGMMA"] = sum(n for opcode, n in census.items() if opcode.startswith("wgmma.mma"))
    counts["HMMA"] = sum(n for opcode, n in census.items() if opcode.startswith("mma.sync"))
    counts["UTCHMMA"] = sum(n for opcode, n in census.items() if opcode.startswith("tcgen05.mma"))
    return counts


@pytest.mark.skipif(sass.PTXAS is None or sass.NVDISASM is None, reason="no ptxas or nvdisasm here")
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_ptxas_makes_the_same_instructions(path, tmp_path):
    found = kernels(path)
    listing = sass.disassembled(path.read_text(), found[0].target, tmp_path)
    for kernel in found:
        seen, wanted = sass.counts(listing[kernel.name]), expected(kernel)
        census = kernel.census()
        have = {name: seen[name] for name in wanted}
        have["FMNMX"] += 2 * seen["FMNMX3"]
        have["FFMA"] += seen["FHFMA"]
        # A division is a reciprocal, five FFMAs and a slow path; one of integers, or what finds the cluster's index on
        # sm_100, goes through floating point.
        divides = sum(census[opcode] for opcode in ("div.rn.f32", "rcp.rn.f32", "sqrt.rn.f32"))
        converts = seen["I2F"] + seen["I2FP"] + seen["F2I"]
        loose = (("FFMA", "FADD", "MUFU") if divides else ()) + (("FMUL", "MUFU") if converts else ())
        for name in loose:
            assert have.pop(name) >= wanted.pop(name), (kernel.name, name)
        assert have == wanted, kernel.name
