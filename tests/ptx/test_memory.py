"""Loads, stores and atomics: widths, signs, vectors, spaces, and every bound."""

import numpy as np
import pytest

from fa4verify.ptx.errors import Misaligned, OutOfBounds
from tests.ptx.launches import run


@pytest.mark.parametrize(
    ("load", "read"),
    [
        ("ld.global.u8 %r6, [%rd6];", np.uint8),
        ("ld.global.s8 %r6, [%rd6];", np.int8),
        ("ld.global.u16 %r6, [%rd6];", np.uint16),
        ("ld.global.s16 %r6, [%rd6];", np.int16),
        ("ld.global.b32 %r6, [%rd6];", np.int32),
        ("ld.global.s8 %rs1, [%rd6]; cvt.s32.s16 %r6, %rs1;", np.int8),
        ("ld.global.u8 %rs1, [%rd6]; cvt.s32.s16 %r6, %rs1;", np.uint8),
        ("ld.global.s32 %rd7, [%rd6]; shr.s64 %rd7, %rd7, 1; cvt.u32.u64 %r6, %rd7; shl.b32 %r6, %r6, 1;", None),
    ],
)
def test_narrow_loads_extend_as_their_type_says(load, read):
    given = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    out, _ = run(f"mov.b64 %rd6, %rd5; {load} st.global.b32 [%rd4], %r6;", given=given)
    if read is None:  # the low bit is cut off on the way, and the sign comes from bit 31
        assert out.tolist() == (given & ~np.uint32(1)).tolist()
    else:
        width = np.dtype(read).itemsize
        values = given.view(read)[:: 4 // width]
        assert out.view(np.int32).tolist() == values.astype(np.int64).astype(np.int32).tolist()


def test_vectors_in_every_space():
    """Global to shared to local to global, four words a thread; neighbours exchange through shared memory."""
    given = np.random.default_rng(2).integers(0, 2**32, 256, dtype=np.uint32)
    out, _ = run(
        """
        mul.wide.s32 %rd6, %r4, 16;
        add.s64 %rd7, %rd2, %rd6;
        ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd7];
        mov.b32 %r5, dynamic;
        shl.b32 %r6, %r2, 4;
        add.s32 %r6, %r5, %r6;
        st.shared.v4.b32 [%r6], {%r13, %r12, %r11, %r10};
        bar.sync 0;
        xor.b32 %r7, %r2, 63;
        shl.b32 %r7, %r7, 4;
        add.s32 %r7, %r5, %r7;
        ld.shared.v2.b64 {%rd8, %rd9}, [%r7];
        add.s64 %rd10, %rd1, %rd6;
        st.global.v2.b64 [%rd10], {%rd8, %rd9};
        """,
        given=given, size=256, shared_bytes=1024,
    )  # fmt: skip
    assert out.tolist() == given[::-1].tolist()


def test_registers_and_shared_memory_start_poisoned():
    out, _ = run("mov.b32 %r5, dynamic; ld.shared.b32 %r6, [%r5]; st.global.b32 [%rd4], %r6;", shared_bytes=64)
    assert set(out.tolist()) == {0xFFFFFFFF}
    assert np.isnan(out.view(np.float32)).all()


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("ld.global.b32 %r6, [%rd5+256];", r"(?s)4 bytes at 0x[0-9a-f]+ lie outside of global memory: 4 bytes off"),
        ("st.global.b32 [%rd4+-4], %r2;", r"(?s)outside of global memory.*lane 0"),
        ("mov.b32 %r6, dynamic; st.shared.b32 [%r6+1024], %r2;", r"4 bytes at 0x800 lie outside of shared memory"),
        ("mov.b32 %r6, 0x1000400; ld.shared.b32 %r7, [%r6];", r"(?s)0x1000400 lie outside of shared.*ld.shared"),
    ],
)
def test_no_byte_outside_is_touched(statements, message):
    """Also of a CTA that the cluster does not have."""
    with pytest.raises(OutOfBounds, match=message):
        run(statements, shared_bytes=512)


def test_an_access_must_be_aligned():
    with pytest.raises(Misaligned, match=r"is not a multiple of 8"):
        run("ld.global.v2.b32 {%r6, %r7}, [%rd5];")


@pytest.mark.parametrize(
    ("name", "kind", "combine"),
    [
        ("add", "u32", lambda x: int(x.sum(dtype=np.uint64)) & 0xFFFFFFFF),
        ("min", "u32", lambda x: int(x.min())),
        ("max", "u32", lambda x: int(x.max())),
        ("min", "s32", lambda x: int(x.view(np.int32).min()) & 0xFFFFFFFF),
        ("max", "s32", lambda x: int(x.view(np.int32).max()) & 0xFFFFFFFF),
        ("and", "b32", lambda x: int(np.bitwise_and.reduce(x))),
        ("or", "b32", lambda x: int(np.bitwise_or.reduce(x))),
        ("xor", "b32", lambda x: int(np.bitwise_xor.reduce(x))),
    ],
)
def test_atomics_meet_in_one_word(name, kind, combine):
    given = np.random.default_rng(3).integers(0, 2**32, 128, dtype=np.uint32)
    given[0] = 0x80000000 if name == "max" else given[0]
    start = {"min": "0x7FFFFFFF" if kind == "s32" else "0xFFFFFFFF", "and": "0xFFFFFFFF"}.get(name, "0")
    start = "0x80000000" if (name, kind) == ("max", "s32") else start
    out, _ = run(
        f"""
        ld.global.b32 %r6, [%rd5];
        mov.b32 %r7, dynamic;
        setp.ne.s32 %p1, %r2, 0;
        @%p1 bra GO;
        mov.b32 %r8, {start};
        st.shared.b32 [%r7], %r8;
    GO:
        bar.sync 0;
        atom.shared.{name}.{kind} %r9, [%r7], %r6;
        bar.sync 0;
        ld.shared.b32 %r10, [%r7];
        st.global.b32 [%rd4], %r10;
        """,
        threads=128, given=given, shared_bytes=64,
    )  # fmt: skip
    assert set(out.tolist()) == {combine(given)}


def test_atomic_float_sums_are_made_lane_by_lane():
    """The old values are the partial sums, in lane order, each rounded once."""
    given = np.random.default_rng(4).standard_normal(32).astype(np.float32)
    out, _ = run(
        "ld.global.b32 %r6, [%rd5]; atom.global.add.f32 %r7, [%rd1+128], %r6; st.global.b32 [%rd4], %r7;",
        threads=32, given=given.view(np.uint32), size=33,
    )  # fmt: skip
    sums = [np.float32(0.0)]
    for x in given:
        sums.append(np.float32(sums[-1] + x))
    assert out.view(np.float32).tolist() == [float(x) for x in sums]


def test_compare_and_swap_gives_a_lock_to_one_lane():
    out, _ = run("""
        mov.b32 %r6, 0;
        add.s32 %r7, %r2, 1;
        atom.global.cas.b32 %r8, [%rd2+0], %r6, %r7;
        st.global.b32 [%rd4], %r8;
    """, given=np.zeros(64, np.uint32))  # fmt: skip
    assert out.tolist() == [0] + [1] * 63
