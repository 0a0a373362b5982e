"""Blocks, order, liveness and reaching definitions of programs small enough to read."""

import itertools
import random

from fa4verify import ptx
from fa4verify.ptx.dataflow import Dataflow
from fa4verify.ptx.operations import Op
from tests.ptx.texts import text

DIAMOND = """mov.b32 %r1, 1;
@%p1 bra LEFT;
mov.b32 %r1, 2;
bra END;
LEFT: @%p2 mov.b32 %r1, 3;
END: st.global.b32 [%rd1], %r1;
ret;"""


def flow_of(body):
    return Dataflow(ptx.load(text(body), contract=False).program)


def named(flow, name):
    return next(value for value, one in flow.program.names.items() if one == name)


def test_blocks_and_their_neighbours():
    flow = flow_of(DIAMOND)
    assert flow.blocks == (range(2), range(2, 4), range(4, 5), range(5, 7), range(7, 8))
    assert flow.successors == ((1, 2), (3,), (3,), (), ())
    assert flow.predecessors == ((), (0,), (0,), (1, 2), ())
    assert flow.block_of == (0, 0, 1, 1, 2, 3, 3, 4)


def test_what_falls_through_comes_before_what_is_branched_to_and_joins_come_last():
    assert flow_of(DIAMOND).order == (0, 1, 2, 3, 4)
    swapped = "bra K; LEFT: add.s32 %r1, %r1, 1; bra END; K: @%p1 bra LEFT; add.s32 %r1, %r1, 2; END: ret;"
    flow = flow_of(swapped)
    text_order = [flow.blocks[block].start for block in flow.order]
    assert text_order == [0, 3, 4, 1, 5, 6]


def test_a_guarded_definition_adds_to_what_came_before():
    flow = flow_of(DIAMOND)
    assert flow.reaching(5, named(flow, "%r1")) == {0, 2, 4}
    assert flow.reaching(4, named(flow, "%p2")) == {-1}
    assert flow.definitions[named(flow, "%r1")] == [0, 2, 4]
    assert flow.uses[named(flow, "%r1")] == [5]


def test_a_loop_reaches_itself():
    flow = flow_of("mov.b32 %r1, 0; L: add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, 9; @%p1 bra L;")
    assert flow.reaching(1, named(flow, "%r1")) == {0, 1}
    assert flow.reaching(2, named(flow, "%r1")) == {1}


def test_live_is_what_an_effect_needs():
    flow = flow_of(
        "mov.b32 %r1, 1; mov.b32 %r2, 2; add.s32 %r3, %r1, 1; add.s32 %r4, %r2, 1; st.global.b32 [%rd1], %r3;"
    )
    assert flow.live == {0, 2, 4, 5}


def test_reaching_definitions_are_those_that_some_path_ends_with():
    """Against an enumeration of paths: every walk through random programs, and what it last wrote."""
    generator = random.Random(0)
    for _ in range(30):
        lines = []
        for number in range(8):
            statement = generator.choice(
                [
                    f"mov.b32 %r1, {number};",
                    f"@%p1 mov.b32 %r1, {number};",
                    "st.global.b32 [%rd1], %r1;",
                    f"bra L{generator.randrange(8)};",
                    f"@%p1 bra L{generator.randrange(8)};",
                    "@%p1 ret;",
                ]
            )
            lines.append(f"L{number}: {statement}")
        flow = flow_of("\n".join(lines))
        instructions = flow.program.instructions
        value = next((one for one, name in flow.program.names.items() if name == "%r1"), None)
        found = {index: set() for index in range(len(instructions))}
        states, seen = [(0, -1)], set()
        while states:
            index, last = state = states.pop()
            if state in seen or index == len(instructions):
                continue
            seen.add(state)
            found[index].add(last)
            one = instructions[index]
            after = [index] if value in one.writes else [last]
            if one.guard >= 0:
                after.append(last)
            goes = [one.target] if one.op == Op.BRANCH else [] if one.op == Op.EXIT else [index + 1]
            if one.guard >= 0:
                goes.append(index + 1)
            states += itertools.product(goes, after)
        for index, one in enumerate(instructions):
            if value is not None and value in one.reads and found[index]:
                assert flow.reaching(index, value) >= found[index]
                reachable = {at for at in flow.reaching(index, value) if at < 0 or found[at]}
                assert reachable == found[index]
