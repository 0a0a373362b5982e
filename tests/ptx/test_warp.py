"""Divergence and reconvergence of a warp, against loops over threads in Python."""

import numpy as np
import pytest

from fa4verify.ptx.errors import DivergentWarp, Trapped
from fa4verify.ptx.launch import Schedule
from tests.ptx.launches import run


def test_lanes_leave_a_loop_one_by_one_and_meet_behind_it():
    """Turns differ by lane; the shuffle behind the loop needs all of them."""
    out, statistics = run("""
        and.b32 %r5, %r2, 7;
        mov.b32 %r6, 0;
    LOOP:
        setp.ge.s32 %p1, %r6, %r5;
        @%p1 bra DONE;
        add.s32 %r6, %r6, 1;
        bra LOOP;
    DONE:
        shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
        mad.lo.s32 %r8, %r7, 100, %r6;
        st.global.b32 [%rd4], %r8;
    """)
    turns = np.arange(64) & 7
    assert out.tolist() == (turns + 100 * turns[np.arange(64) ^ 1]).tolist()
    assert statistics.divergent_steps > 0


def collatz(start):
    """Count the steps of the Collatz sequence down to 1."""
    steps = 0
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps += 1
    return steps


@pytest.mark.parametrize("quantum", [1, 7, 20_000])
def test_branches_within_a_loop_whose_length_depends_on_the_data(quantum):
    """Both sides of the branch run with other lanes each turn; preemption anywhere changes nothing."""
    out, _ = run(
        """
        add.s32 %r5, %r4, 1;
        mov.b32 %r6, 0;
    LOOP:
        setp.eq.s32 %p1, %r5, 1;
        @%p1 bra DONE;
        and.b32 %r7, %r5, 1;
        setp.eq.s32 %p2, %r7, 0;
        @%p2 bra EVEN;
        mad.lo.s32 %r5, %r5, 3, 1;
        bra NEXT;
    EVEN:
        shr.u32 %r5, %r5, 1;
    NEXT:
        add.s32 %r6, %r6, 1;
        bra LOOP;
    DONE:
        st.global.b32 [%rd4], %r6;
        """,
        grid=3,
        schedule=Schedule(quantum=quantum),
    )
    assert out.tolist() == [collatz(i + 1) for i in range(3 * 64)]


def test_lanes_that_come_from_below_are_waited_for():
    """The odd lanes' code lies behind the instruction that needs them: the even lanes must not run it alone."""
    out, _ = run("""
        and.b32 %r5, %r2, 1;
        setp.eq.s32 %p1, %r5, 1;
        mov.b32 %r6, 5;
        @%p1 bra FAR;
    MEET:
        shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
        st.global.b32 [%rd4], %r7;
        bra END;
    FAR:
        mov.b32 %r6, 9;
        bra MEET;
    END:
    """)
    assert out.tolist() == [9, 5] * 32


def test_a_part_of_the_warp_ends_and_the_rest_goes_on():
    """Members that have ended are not waited for."""
    out, _ = run("""
        setp.lt.u32 %p1, %r2, 10;
        @%p1 bra END;
        shfl.sync.idx.b32 %r7, %r2, 20, 31, -1;
        st.global.b32 [%rd4], %r7;
    END:
    """)
    assert out.tolist() == [0] * 10 + [20] * 22 + [52] * 32


def test_guards_leave_the_other_lanes_alone():
    out, _ = run("""
        mov.b32 %r6, 1;
        setp.gt.u32 %p1, %r2, 30;
        @%p1 add.s32 %r6, %r6, 6;
        @!%p1 add.s32 %r6, %r6, %r2;
        st.global.b32 [%rd4], %r6;
    """)
    assert out.tolist() == [i + 1 if i <= 30 else 7 for i in range(64)]


def test_a_block_that_does_not_fill_its_last_warp():
    out, statistics = run("activemask.b32 %r5; st.global.b32 [%rd4], %r5;", threads=40)
    assert out.tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8
    assert statistics.divergent_steps > 0


def test_an_instruction_of_the_whole_warp_under_a_guard_that_splits_it():
    """The other lanes will never come: that is a fault at once, naming line and lanes."""
    with pytest.raises(DivergentWarp, match=r"0xffff0000 are missing"):
        run("setp.lt.u32 %p1, %r2, 16; @%p1 bar.sync 0;", threads=32)


def test_lanes_that_wait_for_each_other_in_different_places():
    with pytest.raises(DivergentWarp, match=r"bar\.warp\.sync"):
        run("""
            setp.lt.u32 %p1, %r2, 16;
            @%p1 bra LOW;
            bar.warp.sync -1;
            bra END;
        LOW:
            bar.warp.sync -1;
        END:
        """, threads=32)  # fmt: skip


def test_trap_names_its_line_and_lane():
    with pytest.raises(Trapped, match=r"(?s)line \d+: .*trap.*warp 1, lane 5"):
        run("setp.eq.s32 %p1, %r2, 37; @!%p1 bra END; trap; END:")


def test_steps_and_lanes_are_counted():
    """Nine rows of the head but for loads of parameters are rows too: 9 + 2 + ret, two warps."""
    _, statistics = run("setp.lt.u32 %p1, %r2, 8; @%p1 add.s32 %r5, %r2, 1;")
    assert statistics.steps == 2 * 12
    assert statistics.lane_steps == 2 * 11 * 32 + 8
