"""Named barriers, mbarriers and clusters: what they order, what misuse says, what a deadlock reports."""

import numpy as np
import pytest

from fa4verify.ptx.errors import BarrierMisuse, Deadlock, LimitReached
from fa4verify.ptx.launch import Limits, Schedule
from tests.ptx.launches import run

SCHEDULES = [
    Schedule(),
    Schedule(order="reversed"),
    *(Schedule(order="random", seed=seed, quantum=5) for seed in range(3)),
]
LEADER = "setp.ne.s32 %p9, %r2, 0;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_sync_and_arrive(schedule):
    """Warp 0 produces and arrives, warp 1 waits and consumes, eight times; the way back is another barrier."""
    out, _ = run(
        """
        mov.b32 %r5, dynamic;
        mov.b32 %r6, 0;
        mov.b32 %r9, 0;
        and.b32 %r20, %r2, 31;
        shl.b32 %r20, %r20, 2;
        add.s32 %r5, %r5, %r20;
        setp.lt.u32 %p1, %r2, 32;
    LOOP:
        @!%p1 bra CONSUME;
        mad.lo.s32 %r7, %r6, 1000, %r2;
        st.shared.b32 [%r5], %r7;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        bra NEXT;
    CONSUME:
        bar.sync 1, 64;
        ld.shared.b32 %r8, [%r5];
        add.s32 %r9, %r9, %r8;
        bar.arrive 2, 64;
    NEXT:
        add.s32 %r6, %r6, 1;
        setp.lt.s32 %p2, %r6, 8;
        @%p2 bra LOOP;
        st.global.b32 [%rd4], %r9;
        """,
        shared_bytes=128, schedule=schedule,
    )  # fmt: skip
    assert out[32:].tolist() == [28_000 + 8 * lane for lane in range(32)]


PIPELINE = """
    mov.b32 %r5, dynamic;
    add.s32 %r6, %r5, 8;
    setp.ne.s32 %p9, %r2, 0;
    @%p9 bra READY;
    mov.b32 %r10, 1;
    mov.b32 %r11, 32;
    mbarrier.init.shared.b64 [%r5], %r10;
    mbarrier.init.shared.b64 [%r6], %r11;
READY:
    bar.sync 0;
    mov.b32 %r7, 0;
    mov.b32 %r8, 0;
    mov.b32 %r9, 0;
    setp.ge.u32 %p1, %r2, 32;
LOOP:
    @%p1 bra CONSUME;
    xor.b32 %r12, %r7, 1;
EMPTY:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r6], %r12;
    @!%p2 bra EMPTY;
    @%p9 bra NEXT;
    mad.lo.s32 %r13, %r8, 7, 3;
    st.shared.b32 [%r5+64], %r13;
    mbarrier.arrive.shared.b64 _, [%r5];
    bra NEXT;
CONSUME:
FULL:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r5], %r7;
    @!%p3 bra FULL;
    ld.shared.b32 %r14, [%r5+64];
    mad.lo.s32 %r9, %r9, 3, %r14;
    mbarrier.arrive.shared.b64 _, [%r6];
NEXT:
    xor.b32 %r7, %r7, 1;
    add.s32 %r8, %r8, 1;
    setp.lt.s32 %p4, %r8, 6;
    @%p4 bra LOOP;
    st.global.b32 [%rd4], %r9;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_phases_of_mbarriers_order_a_pipeline_of_one_slot(schedule):
    """One producer, 32 consumers; parities flip six times."""
    out, statistics = run(PIPELINE, shared_bytes=128, schedule=schedule)
    expected = 0
    for i in range(6):
        expected = 3 * expected + 7 * i + 3
    assert set(out[32:].tolist()) == {expected}
    assert statistics.spins > 0


def test_a_deadlock_says_who_waits_on_what():
    """The consumers never release the slot: the report names the mbarrier, its parity, the counts, the line."""
    broken = PIPELINE.replace("mbarrier.arrive.shared.b64 _, [%r6];", "")
    with pytest.raises(Deadlock) as failure:
        run(broken, shared_bytes=128)
    text = str(failure.value)
    assert "CTA (0, 0, 0) warp 0: mbarrier 0x408, parity 0 (phase of parity 0: 32 of 32 arrivals missing" in text
    assert "warp 1: mbarrier 0x400, parity 1" in text
    assert "try_wait.parity.shared.b64 %p2, [%r6], %r12" in text


def test_a_try_wait_that_only_peeks_does_not_hold_the_program_up():
    out, _ = run(
        LEADER + """
        mov.b32 %r5, dynamic;
        @%p9 bra READY;
        mov.b32 %r10, 1;
        mbarrier.init.shared.b64 [%r5], %r10;
    READY:
        bar.sync 0;
        mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
        selp.b32 %r6, 1, 2, %p2;
        @!%p9 mbarrier.arrive.shared.b64 _, [%r5];
        bar.sync 0;
        mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0;
        selp.b32 %r7, 10, 20, %p3;
        add.s32 %r6, %r6, %r7;
        st.global.b32 [%rd4], %r6;
        """,
        threads=32, shared_bytes=64,
    )  # fmt: skip
    assert set(out.tolist()) == {12}


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r5];", r"no mbarrier at 0x400: it holds 0xf{16}"),
        ("mov.b32 %r6, 3; mbarrier.init.shared.b64 [%r5], %r6; mov.b32 %r7, 4;"
         "mbarrier.arrive.shared.b64 _, [%r5], %r7;",
         r"mbarrier at 0x400: 4 arrivals or counts where 3 are missing"),
        ("mov.b32 %r6, 0; mbarrier.init.shared.b64 [%r5], %r6;", r"0 arrivals or counts"),
        ("mov.b32 %r6, 1; mbarrier.init.shared.b64 [%r5], %r6; mov.b32 %r6, 1048576;"
         "mbarrier.arrive.expect_tx.shared.b64 _, [%r5], %r6;", r"1048576 bytes to come"),
        ("bar.sync 16;", "barrier 16"),
        ("bar.sync 1, 33;", "33 threads"),
        ("bar.arrive 1, 64; bar.sync 1, 96;", "96 threads, others said 64"),
    ],
)  # fmt: skip
def test_misuse(statements, message):
    with pytest.raises(BarrierMisuse, match=message):
        run(f"mov.b32 %r5, dynamic; setp.ne.s32 %p9, %r2, 0; {statements}".replace("mbarrier", "@!%p9 mbarrier"),
            threads=32, shared_bytes=64)  # fmt: skip


CLUSTER = """
    mov.u32 %r5, %cluster_ctarank;
    mov.b32 %r6, dynamic;
    shl.b32 %r7, %r2, 2;
    add.s32 %r8, %r6, %r7;
    add.s32 %r9, %r5, 1;
    rem.u32 %r9, %r9, %r1;
    mapa.shared::cluster.u32 %r10, %r8, %r9;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mad.lo.s32 %r11, %r5, 1000, %r2;
    st.shared::cluster.b32 [%r10], %r11;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ld.shared.b32 %r12, [%r8];
    st.global.b32 [%rd4], %r12;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_cluster_writes_into_its_neighbours_memory(size, schedule):
    out, _ = run(CLUSTER, grid=2 * size, n=size, cluster=size, shared_bytes=256, schedule=schedule)
    ranks = (np.arange(2 * size) % size + size - 1) % size
    assert out.reshape(2 * size, 64).tolist() == (1000 * ranks[:, None] + np.arange(64)).tolist()


def lame(statement):
    """Return the cluster's kernel with its first such statement in CTA 0 alone."""
    return CLUSTER.replace(statement, f"setp.eq.s32 %p1, %r5, 0; @%p1 {statement}", 1)


def test_a_cluster_waits_for_a_warp_that_never_arrives():
    hung = CLUSTER.replace("    barrier.cluster", """
        setp.ne.s32 %p2, %r5, 1;
        @%p2 bra GO;
        bar.sync 1, 96;
    GO:
        barrier.cluster""", 1)  # fmt: skip
    with pytest.raises(Deadlock, match=r"(?s)the cluster's barrier, 2 warps have arrived.*barrier 1, 64 of 96 threads"):
        run(hung, grid=2, n=2, cluster=2, shared_bytes=256)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("barrier.cluster.arrive.aligned;", "wait without an arrive"),
        ("barrier.cluster.wait.aligned;", "arrive twice without a wait"),
    ],
)
def test_arrivals_and_waits_at_the_clusters_barrier_alternate(statement, message):
    with pytest.raises(BarrierMisuse, match=message):
        run(lame(statement), grid=2, n=2, cluster=2, shared_bytes=256)


def test_warps_that_have_ended_are_not_waited_for():
    out, _ = run("setp.ge.u32 %p1, %r2, 32; @%p1 bra END; bar.sync 0; st.global.b32 [%rd4], %r2; END:")
    assert out[:32].tolist() == list(range(32))


def test_limits():
    endless = "L: add.s32 %r5, %r5, 1; bra L;"
    with pytest.raises(LimitReached, match="the limit is 100000"):
        run(endless, threads=32, limits=Limits(steps=100_000))
    with pytest.raises(LimitReached, match=r"no end after 0\.05 s"):
        run(endless, threads=32, limits=Limits(seconds=0.05))
