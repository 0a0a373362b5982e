"""Every operation has a function that is linked when a kernel uses it, and only then."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fa4verify import ptx
from fa4verify.ptx import lane_functions, linkage, queue
from fa4verify.ptx.knobs import CALL
from fa4verify.ptx.lanes import FIRST_FUNCTION, LANES
from fa4verify.ptx.operations import Op
from fa4verify.ptx.units import Unit
from fa4verify.ptx.warp import _lane_family
from tests.ptx.launches import kernel, run


def linked(body):
    calls, units = linkage.link(kernel(body))
    return set(calls), {unit for unit in Unit if units[unit]}


def test_every_operation_and_lane_operation_has_a_function():
    assert {int(op) for op in Op} <= linkage.OPERATIONS
    assert {lane.number for lane in LANES.values()} <= linkage.OPERATIONS


def test_a_family_of_lane_functions_is_linked_for_exactly_its_entries():
    ranges = [linkage._CALLS[CALL(CALL.APPROXIMATIONS + i)][1] for i in range(4)]
    for index in range(len(lane_functions.ENTRIES)):
        assert [FIRST_FUNCTION + index in one for one in ranges].index(True) == _lane_family.py_func(index)
    assert sum(map(len, ranges)) == len(lane_functions.ENTRIES)


def test_the_queue_sends_each_operation_to_the_family_that_is_linked_for_it():
    asynchronous = linkage._COPY | linkage._BULK | linkage._TENSOR | linkage._WGMMA | linkage._TC
    for operation in asynchronous:
        family = queue._family.py_func(operation)
        for first in (CALL.FILL_COPY, CALL.EFFECT_COPY):
            assert operation in linkage._CALLS[CALL(first + family)][1], Op(operation).name


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        ("add.u32 %r10, %r4, 1;", set()),
        ("ex2.approx.ftz.f32 %r10, %r4;", {CALL.APPROXIMATIONS}),
        ("tanh.approx.f32 %r10, %r4;", {CALL.FLOATS}),
        ("cvt.rn.bf16x2.f32 %r10, %r4, %r4;", {CALL.CODES}),
        ("rem.u32 %r10, %r4, 7;", {CALL.INTEGERS}),
        ("shfl.sync.bfly.b32 %r10, %r4, 1, 31, -1;", {CALL.EXCHANGE}),
        ("vote.sync.any.pred %p1, %p2, -1;", {CALL.COLLECT}),
        ("bar.sync 0;", {CALL.BARRIER, CALL.LAND}),
        ("atom.global.add.u32 %r10, [%rd4], 1;", {CALL.ATOMIC}),
        ("cp.async.commit_group;", {CALL.ISSUE, CALL.LAND}),
    ],
)
def test_a_kernel_links_what_it_uses(body, needed):
    always = {CALL.STRAIGHT, CALL.RUN, CALL.FINISH, CALL.MEMORY}  # the kernel's head loads its parameters
    assert linked(body) == (always | needed, set())


def test_an_operation_without_a_function_is_refused():
    strange = kernel("add.u32 %r10, %r4, 1;")
    instructions = list(strange.program.instructions)
    instructions[3] = replace(instructions[3], op=max(Op) + 1)
    strange = ptx.Kernel(replace(strange.program, instructions=tuple(instructions)))
    with pytest.raises(ValueError, match=re.escape(f"operations that the machine does not have: [{max(Op) + 1}]")):
        run(strange)


@pytest.mark.parametrize("opcode", ["max.ftz.f32", "min.ftz.f32"])
def test_a_maximum_of_three_that_the_machine_lacks_is_an_error_of_the_text(opcode):
    with pytest.raises(ptx.PtxError, match=opcode):
        kernel(f"{opcode} %r10, %r4, %r4, %r4;")


def test_a_maximum_of_three():
    out, _ = run(
        "cvt.rn.f32.u32 %r10, %r4; max.f32 %r11, %r10, 0f41200000, 0f40A00000; cvt.rzi.u32.f32 %r12, %r11;"
        "st.global.b32 [%rd4], %r12;",
        threads=32,
    )
    np.testing.assert_array_equal(out, np.maximum(np.arange(32), 10))
