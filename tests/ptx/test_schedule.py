"""What a schedule shows: races between warps and CTAs, spins on memory, asynchronous operations nobody waits for."""

import numpy as np
import pytest

from fa4verify.ptx.errors import Deadlock, PendingAtExit
from fa4verify.ptx.launch import Schedule
from tests.ptx.launches import run

# Every CTA waits until the one `%r1` further has stored its flag, then stores its own.
CHAIN = """
    mov.u32 %r30, %nctaid.x;
    add.s32 %r5, %r3, %r1;
    mul.wide.s32 %rd6, %r5, 4;
    add.s64 %rd6, %rd2, %rd6;
    setp.lt.s32 %p2, %r5, 0;
    @%p2 bra GO;
    setp.ge.s32 %p3, %r5, %r30;
    @%p3 bra GO;
SPIN:
    ld.global.acquire.gpu.b32 %r6, [%rd6];
    setp.eq.s32 %p1, %r6, 0;
    @%p1 bra SPIN;
GO:
    bar.sync 0;
    setp.ne.s32 %p4, %r2, 0;
    @%p4 bra END;
    mul.wide.s32 %rd7, %r3, 4;
    add.s64 %rd8, %rd2, %rd7;
    mov.b32 %r7, 1;
    atom.global.add.u32 %r8, [%rd1], %r7;
    add.s64 %rd9, %rd1, %rd7;
    st.global.b32 [%rd9+4], %r8;
    red.release.gpu.global.add.s32 [%rd8], %r7;
END:
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_spin_on_memory_waits_for_ctas_that_have_not_started(step, workers):
    """Forward, each CTA finds its flag set; backward, all must be resident before the first can go on."""
    out, _ = run(
        CHAIN, threads=32, grid=20, n=step & 0xFFFFFFFF, given=np.zeros(20, np.uint32), size=21, workers=workers
    )
    order = out[1:].tolist()
    assert order == (list(range(20)) if step < 0 else list(range(19, -1, -1)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_flag_that_nobody_sets_is_a_deadlock(workers):
    """In CTA 3 alone, so that the others end: with several workers, whoever holds it must notice."""
    lame = """
        setp.eq.s32 %p5, %r3, 3;
        @!%p5 bra END;
    SPIN:
        ld.global.acquire.gpu.b32 %r6, [%rd2];
        setp.eq.s32 %p1, %r6, 0;
        @%p1 bra SPIN;
    END:
    """
    with pytest.raises(Deadlock, match=r"CTA \(3, 0, 0\) warp 0: a change of global memory at 0x"):
        run(lame, threads=32, grid=8, given=np.zeros(8, np.uint32), workers=workers)


def test_a_race_between_warps_shows_in_the_order():
    """Eight warps store their number to one word, without a barrier."""
    race = "mov.b32 %r5, dynamic; shr.u32 %r6, %r2, 5; st.shared.b32 [%r5], %r6; st.global.b32 [%rd1], %r6;"
    seen = {
        order: int(run(race, threads=256, shared_bytes=64, schedule=Schedule(order=order))[0][0])
        for order in ("fixed", "reversed")
    }
    assert seen == {"fixed": 7, "reversed": 0}


def test_a_race_between_ctas_shows_in_the_order():
    race = "st.global.b32 [%rd1], %r3;"
    assert run(race, grid=9)[0][0] == 8
    assert run(race, grid=9, schedule=Schedule(order="reversed"))[0][0] == 0
    seen = {int(run(race, grid=9, schedule=Schedule(order="random", seed=s))[0][0]) for s in range(8)}
    assert len(seen) > 2


def test_random_is_the_same_again_for_the_same_seed():
    race = "atom.global.exch.b32 %r5, [%rd1], %r4; st.global.b32 [%rd4+4], %r5;"
    first, again, other = (
        run(race, grid=9, size=9 * 64 + 1, schedule=Schedule(order="random", seed=s, quantum=3))[0] for s in (1, 1, 2)
    )
    assert first.tolist() == again.tolist() != other.tolist()


COPY = """
    mov.b32 %r5, dynamic;
    shl.b32 %r6, %r2, 4;
    add.s32 %r6, %r5, %r6;
    mul.wide.s32 %rd6, %r2, 16;
    add.s64 %rd7, %rd2, %rd6;
    cp.async.cg.shared.global [%r6], [%rd7], 16;
    cp.async.commit_group;
    WAIT
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r6];
    add.s64 %rd8, %rd1, %rd6;
    st.global.v4.b32 [%rd8], {%r10, %r11, %r12, %r13};
"""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wait", ["cp.async.wait_group 0;", "cp.async.wait_all;", "cp.async.wait_group 1;", ""])
def test_cp_async_lands_when_it_is_waited_for(wait, late):
    """Late, what is read too early is poison; eagerly nobody notices."""
    given = np.arange(256, dtype=np.uint32)
    out, statistics = run(
        COPY.replace("WAIT", wait), given=given, size=256, shared_bytes=1024, schedule=Schedule(late=late)
    )
    waited = wait in ("cp.async.wait_group 0;", "cp.async.wait_all;")
    assert (out == given).all() == (waited or not late)
    assert statistics.unwaited == (64 if late and not waited else 0)
    if late and not waited:
        assert set(out.tolist()) == {0xFFFFFFFF}


BULK = """
    mov.b32 %r5, dynamic;
    setp.ne.s32 %p9, %r2, 0;
    @%p9 bra READY;
    mov.b32 %r10, 1;
    mbarrier.init.shared.b64 [%r5], %r10;
    mov.b32 %r11, 256;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r5], %r11;
    add.s32 %r12, %r5, 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%rd2], %r11, [%r5];
READY:
    bar.sync 0;
WAIT
    shl.b32 %r6, %r2, 2;
    add.s32 %r6, %r5, %r6;
    ld.shared.b32 %r7, [%r6+64];
    st.global.b32 [%rd4], %r7;
"""
UNTIL = "L: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0; @!%p1 bra L;"


@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
def test_a_bulk_copy_lands_when_its_mbarrier_is_waited_for(order):
    for late in (False, True):
        out, _ = run(BULK.replace("WAIT", UNTIL), shared_bytes=512, schedule=Schedule(order=order, late=late))
        assert out.tolist() == list(range(64))


def test_a_bulk_copy_that_nobody_waits_for():
    out, _ = run(BULK.replace("WAIT", ""), shared_bytes=512)
    assert out.tolist() == list(range(64))
    with pytest.raises(PendingAtExit, match=r"(?s)BULK_LOAD was still pending.*cp.async.bulk.shared::cluster"):
        run(BULK.replace("WAIT", ""), shared_bytes=512, schedule=Schedule(late=True))


STORE = """
    mov.b32 %r5, dynamic;
    shl.b32 %r6, %r2, 2;
    add.s32 %r6, %r5, %r6;
    st.shared.b32 [%r6], %r2;
    bar.sync 0;
    setp.ne.s32 %p9, %r2, 0;
    @%p9 bra READY;
    mov.b32 %r11, 256;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r5], %r11;
    cp.async.bulk.commit_group;
    WAIT
READY:
    bar.sync 0;
    mov.b32 %r7, 77;
    st.shared.b32 [%r6], %r7;
"""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "wait", ["cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 1;", ""]
)
def test_a_bulk_store_reads_shared_memory_when_it_is_waited_for(wait, late):
    """Overwritten before: the store takes the new values."""
    out, statistics = run(STORE.replace("WAIT", wait), shared_bytes=512, schedule=Schedule(late=late))
    in_time = wait.endswith(" 0;") or not late
    assert out.tolist() == (list(range(64)) if in_time else [77] * 64)
    assert statistics.unwaited == int(not in_time)


def test_workers_run_the_whole_grid_between_them():
    body = """
        mov.b32 %r6, 0; mov.b32 %r7, %r4;
    L:  mad.lo.s32 %r7, %r7, 1664525, 1013904223; add.s32 %r6, %r6, 1; setp.lt.s32 %p1, %r6, 50; @%p1 bra L;
        st.global.b32 [%rd4], %r7;
    """
    one, first = run(body, grid=33)
    two, second = run(body, grid=33, workers=2)
    assert one.tolist() == two.tolist()
    assert (first.steps, first.ctas) == (second.steps, second.ctas)
    assert second.ctas == 33


@pytest.mark.parametrize("schedule", [Schedule(order="reversed"), Schedule(late=True)])
def test_threads_have_no_order(schedule):
    with pytest.raises(ValueError, match="several workers only run the fixed order"):
        run("", schedule=schedule, workers=2)
