"""The rule of contraction: against recorded SASS, against ptxas where it is installed, and for what must not change."""

import collections
import random
from fractions import Fraction

import pytest

from fa4verify import ptx
from fa4verify.ptx.dataflow import Dataflow
from fa4verify.ptx.errors import PtxError
from fa4verify.ptx.operations import Column, Op
from tests.ptx import sass
from tests.ptx.contraction_cases import CASES, P
from tests.ptx.texts import HEAD, entry, text

PARAMETERS = ".param .u64 out,\n" + ",\n".join(f".param .f32 x{i}" for i in range(1, 5)) + ",\n.param .u32 count"
START = (
    "ld.param.b64 %rd1, [out]; "
    + " ".join(f"ld.param.b32 %r{i}, [x{i}];" for i in range(1, 5))
    + " ld.param.b32 %r9, [count]; setp.gt.f32 %p1, %r1, %r2; mov.b32 %r5, %r2; "
    + " ".join(f"mov.b32 %r{i}, %r1;" for i in range(10, 14))
)
STOP = " ".join(f"st.global.b32 [%rd1+{4 * i}], %r{10 + i};" for i in range(4)) + " ret;"
FUSED = ("fma.rn.f32", "fms.rn.f32", "fnma.rn.f32")
MULTIPLIERS = {"0x40400000": 3, "0x40a00000": 5, "0x40e00000": 7}


def written(case, **options):
    return entry(f"{START}\n{case.body}\n{STOP}", PARAMETERS, **options)


def loaded(case, contract=True):
    return ptx.load(HEAD + written(case), contract=contract).program


def multipliers(program, opcodes):
    found = [one for one in program.instructions if one.opcode in opcodes]
    names = [{program.names.get(one.column(column)) for column in (Column.A, Column.B)} for one in found]
    return tuple(sorted(max(MULTIPLIERS.get(name, 0) for name in some) for some in names))


@pytest.mark.parametrize("name", CASES)
def test_products_go_where_ptxas_was_seen_to_put_them(name):
    case = CASES[name]
    program = loaded(case)
    sums = sum(one.opcode in ("add.f32", "sub.f32", "add.rn.f32") for one in program.instructions)
    assert (multipliers(program, FUSED), multipliers(program, ("mul.f32", "mul.rn.f32")), sums) == (
        case.fused,
        case.products,
        case.sums,
    )


# Contraction changes roundings and nothing else: without any rounding, both programs store the same numbers.


MEANINGS = {
    "mov": lambda x, _y, _z: x,
    "neg": lambda x, _y, _z: -x,
    "add": lambda x, y, _z: x + y,
    "sub": lambda x, y, _z: x - y,
    "mul": lambda x, y, _z: x * y,
    "ex2": lambda x, _y, _z: x * x - 3,  # any function
    "max": lambda x, y, _z: max(x, y),
    "fma": lambda x, y, z: x * y + z,
    "fms": lambda x, y, z: x * y - z,
    "fnma": lambda x, y, z: z - x * y,
    "setp": lambda x, y, _z: x < y,
    "setp.gt": lambda x, y, _z: x > y,
    "selp": lambda x, y, z: x if z else y,
}


def run(program, inputs):
    """Run on exact rationals; return every number stored, in order."""
    values = {slot: _constant(value) for slot, (value, _) in program.constants.items()}
    loads = iter(inputs)
    row, stored = 0, []
    for _ in range(10_000):
        one = program.instructions[row]
        d, a, b, c = (one.column(column) for column in (Column.D, Column.A, Column.B, Column.C))
        row += 1
        if one.guard >= 0 and bool(values.get(~(one.guard >> 1), False)) == bool(one.guard & 1):
            continue
        stem = one.opcode.strip("()").split(".")[0]
        if one.op == Op.EXIT:
            return stored
        if one.op == Op.BRANCH:
            row = one.target
        elif stem == "ld":
            values[program.pool[one.column(Column.E)]] = next(loads, Fraction(7, 3))
        elif stem == "st":
            stored.append(values[program.pool[one.column(Column.E)]])
        elif stem != "bar":
            x, y, z = (values.get(slot, Fraction(0)) for slot in (a, b, c))
            if stem == "selp":
                z = values[~(c >> 1)]
            result = MEANINGS["setp.gt" if one.opcode.startswith("setp.gt") else stem](x, y, z)
            values[~d if stem == "setp" else d] = result
    raise AssertionError("it does not end")


def _constant(bits):
    return Fraction({0x40400000: 3, 0x40A00000: 5, 0x40E00000: 7}.get(bits, bits))


# On the path around its product this one adds a number that nothing defines.
@pytest.mark.parametrize("name", [name for name in CASES if name != "on one of two paths"])
def test_without_rounding_contraction_changes_nothing(name):
    generator = random.Random(name)
    for _ in range(4):
        inputs = [Fraction(0), *(Fraction(generator.randint(-99, 99), 7) for _ in range(4)), Fraction(10)]
        plain, fused = (run(loaded(CASES[name], contract=contract), inputs) for contract in (False, True))
        assert len(plain) >= 4
        assert plain == fused


def test_a_factor_that_is_overwritten_before_the_sum_is_kept():
    # The loop's branch lies between product and sum, and %r1 changes there: the sum must see what it was.
    body = (
        P + "mov.b32 %r20, 0; L: add.f32 %r1, %r1, %r2; " + "add.s32 %r20, %r20, 1; setp.lt.s32 %p2, %r20, %r9; "
        "@%p2 bra L; add.f32 %r10, %r5, %r3;"
    )
    case = type(CASES["two sums"])(body, (3,))
    program = loaded(case)
    assert "(mov.b32)" in {one.opcode for one in program.instructions}
    inputs = [Fraction(0), Fraction(2), Fraction(3), Fraction(4), Fraction(5), Fraction(6)]
    assert run(program, inputs)[0] == 2 * 3 + 4
    assert run(loaded(case, contract=False), inputs)[0] == 2 * 3 + 4


def test_pairs_are_fused_like_single_numbers():
    body = "mul.f32x2 %rd3, %rd1, %rd2; sub.f32x2 %rd4, %rd3, %rd5; add.f32x2 %rd6, %rd5, %rd3; "
    body += "mul.rn.f32x2 %rd7, %rd1, %rd2; sub.f32x2 %rd8, %rd5, %rd7; "
    body += " ".join(f"st.global.b64 [%rd20], %rd{i};" for i in (4, 6, 8))
    census = ptx.load(text(body)).census()
    assert (census["fms.rn.f32x2"], census["fma.rn.f32x2"]) == (1, 1)
    assert (census["mul.f32x2"], census["mul.rn.f32x2"], census["sub.f32x2"]) == (0, 1, 1)


def test_a_half_of_a_pair_of_products_is_not_fused():
    body = "mul.f32x2 %rd3, %rd1, %rd2; mov.b64 {%r1, %r2}, %rd3; add.f32 %r3, %r1, %r4; st.global.b32 [%rd20], %r3;"
    assert ptx.load(text(body)).census()["add.f32"] == 1


def test_what_ptxas_does_with_a_negated_product_is_refused():
    with pytest.raises(PtxError, match="a product, negated, then added"):
        ptx.load(text(P + "neg.f32 %r6, %r5; add.f32 %r7, %r6, %r3; st.global.b32 [%rd1], %r7;"))


def test_a_contraction_without_an_operation_is_refused():
    body = "mul.ftz.f32 %r5, %r1, %r2; sub.ftz.f32 %r6, %r5, %r3; st.global.b32 [%rd1], %r6;"
    with pytest.raises(PtxError, match=r"fms\.rn\.ftz\.f32, which the machine does not have"):
        ptx.load(text(body))


def test_contraction_can_be_left_out():
    case = CASES["two sums"]
    assert loaded(case, contract=False).instructions != loaded(case).instructions
    assert multipliers(loaded(case, contract=False), FUSED) == ()


def test_branches_follow_their_targets():
    program = loaded(CASES["out of a loop"])
    (branch,) = (one for one in program.instructions if one.op == Op.BRANCH)
    assert program.instructions[branch.target].opcode == "fma.rn.f32"


@pytest.mark.parametrize("name", CASES)
def test_uses_of_the_contracted_program_are_all_defined(name):
    program = loaded(CASES[name])
    flow = Dataflow(program)
    given = {*program.constants, *program.specials.values()}
    for index, one in enumerate(program.instructions):
        for value in set(one.reads) - given:
            assert flow.reaching(index, value) != {-1}, program.names.get(value)


needs_ptxas = pytest.mark.skipif(sass.PTXAS is None or sass.NVDISASM is None, reason="no ptxas or nvdisasm here")


@needs_ptxas
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_80"])
def test_ptxas_still_does_what_was_recorded(architecture, tmp_path):
    names = {f"k{number}": name for number, name in enumerate(CASES)}
    whole = HEAD.replace("sm_90a", architecture)
    whole += "".join(written(CASES[name], name=label) for label, name in names.items()).replace(
        ".reg .b128 %rq<2>;", ""
    )
    found = sass.disassembled(whole, architecture, tmp_path)
    seen, recorded = {}, {}
    for label, name in names.items():
        count = sass.counts(found[label])
        seen[name] = (count["FFMA"], count["FMUL"], count["FADD"])
        recorded[name] = (len(CASES[name].fused), len(CASES[name].products), CASES[name].sums)
    assert seen == recorded
    if architecture == "sm_90a":
        fused = {name: collections.Counter() for name in CASES}
        for label, name in names.items():
            for opcode, _, operands in found[label]:
                if opcode == "FFMA":
                    literal = [abs(int(part)) for part in operands.split(", ") if part.strip().lstrip("-").isdigit()]
                    fused[name].update(literal or [0])
        assert {name: tuple(sorted(count.elements())) for name, count in fused.items()} == {
            name: case.fused for name, case in CASES.items()
        }
