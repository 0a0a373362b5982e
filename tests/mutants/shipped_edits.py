"""The edits of shipped.py, kernel by kernel: FA4's forward for Hopper and Blackwell, its backward for Hopper.

Contract: an `Entry` says in words what is changed and how; `silent` says why no bit changes where none does. `noticed`
is the exception of the machine, or "" where the budgets fail. Counts (`of`) are those of flash-attn-4 4.0.0b36.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .ptx_edits import Edit


@dataclass(frozen=True)
class Entry:
    """One mutant: words, edit, schedule (of shipped.SCHEDULES), the fault that stops it, or why nothing changes."""

    about: str
    edit: Edit
    schedule: str = "fixed"
    fault: str = ""
    silent: str = ""
    case: str = ""


sm90 = partial(Edit, "flash_fwd_sm90")
sm100 = partial(Edit, "flash_fwd_sm100")
backward = partial(Edit, "flash_bwd_sm90")
preprocess = partial(Edit, "flash_bwd_preprocess")
postprocess = partial(Edit, "flash_bwd_postprocess")

# FA4 asks first whether it would have to wait (TRY), and then waits in a loop; DONE and PASSED come true at once.
WAIT = "mbarrier.try_wait.parity.shared.b64 P1, [%r], %r, 10000000;"
DONE = r"setp.eq.b32 P1, \2, \2;"
TRY = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [*], *;"
PASSED = r"setp.eq.b32 \1, 0, 0;"
ARRIVE = "mbarrier.arrive.shared.b64 %rd, [*], %r;"
LN2 = "mul.f32 %r, %r, 0f3F317218;"
SCALE = "ld.param.b32 %r, [*_param_9];"
SCALED_SUM = r"fma.rn.f32 %r, %r, %r, %r; add.f32 %r, \1, %r;"
PACK = "cvt.rn.bf16x2.f32 %r, %r, %r;"
MASKED = "selp.f32 %r, 0fFF800000, %r, %p;"
SCALE_D = "setp.ne.b32 p, %r, 0;"
COEFFICIENT = (
    "2^-27 f^3 or 2^-26 f^2 of P, below an ulp of P: the row sum rounds it away, LSE twice; "
    "FA4's ex2_emulation itself is compared bit by bit by its micro-kernel"
)
RCP, LG2 = "rcp.approx.ftz.f32 %r, %r;", "lg2.approx.ftz.f32 %r, %r;"

SM90 = {
    "ln2-ulp": Entry("ln 2 of the LSE is one ulp too large", sm90(LN2, r"mul.f32 \1, \2, 0f3F317219;", of=2)),
    "scale-ulp": Entry(
        "softmax_scale * log2 e of the unmasked iterations is one ulp too large",
        sm90(SCALE, r"ld.param.b32 \1, [\2_param_9]; add.s32 \1, \1, 1;", nth=1, of=3),
    ),
    "row-sum-swapped": Entry(
        "two keys of a row sum change places",
        sm90(SCALED_SUM, r"fma.rn.f32 \1, \2, \3, \6; add.f32 \5, \1, \4;", nth=2, of=4),
    ),
    "row-sum-unfused": Entry(
        "the old row sum is rescaled and rounded before it is added",
        sm90(SCALED_SUM, r"mul.rn.f32 \1, \2, \3; add.rn.f32 \1, \1, \4; add.f32 \5, \1, \6;", nth=2, of=4),
    ),
    "lse-unfused": Entry(
        "max * scale is rounded before log2 of the sum is added",
        sm90(
            "fma.rn.f32 %r, %r, %r, %r; mul.f32 %r, \\1, 0f3F317218;",
            r"mul.rn.f32 \1, \2, \3; add.rn.f32 \1, \1, \4; mul.f32 \5, \1, 0f3F317218;",
            of=2,
        ),
    ),
    "pack-swapped": Entry("two keys of P change places", sm90(PACK, r"cvt.rn.bf16x2.f32 \1, \3, \2;", of=112)),
    "max-forgets": Entry(
        "a row maximum leaves one key out", sm90("max.f32 %r, %r, %r;", r"max.f32 \1, \2, \2;", of=202)
    ),
    "rescale-skipped": Entry("one accumulator of O is not rescaled", sm90(r"mul.f32 %r, \1, %r;", nth=32, of=64)),
    "shuffle-lane": Entry(
        "a row maximum is taken over the lanes of another row",
        sm90("shfl.sync.bfly.b32 %r, %r, 2, 31, -1;", r"shfl.sync.bfly.b32 \1, \2, 4, 31, -1;", of=8),
    ),
    "mask-off-by-one": Entry(
        "the causal mask of the first tile hides the diagonal of one row in two",
        sm90("add.s32 %r, %r, 1; min.s32 %r, \\1, %r;", r"add.s32 \1, \2, 0; min.s32 \3, \1, \4;"),
    ),
    "mask-zero": Entry(
        "one masked score is 0 instead of -inf", sm90(MASKED, r"selp.f32 \1, 0f00000000, \2, \3;", of=124)
    ),
    "mask-finite": Entry(
        "one masked score is the lowest finite float32 instead of -inf",
        sm90(MASKED, r"selp.f32 \1, 0fFF7FFFFF, \2, \3;", of=124),
        silent="exp2 of both is 0 in a row that sees a key of the tile; in a row that sees none, what it adds is "
        "rescaled by 0 with the next tile",
    ),
    "rcp-of-part": Entry(
        "the reciprocal is of a quarter of the row sum",
        sm90(
            "selp.f32 %r, %r, 0f3F800000, %p; rcp.approx.ftz.f32 %r, \\1;",
            r"mul.f32 \1, \2, 0f3E800000; rcp.approx.ftz.f32 \4, \1;",
            of=2,
        ),
    ),
    "lg2-plus-ulp": Entry(
        "log2 is taken of the next float32", sm90(LG2, r"add.s32 \1, \2, 1; lg2.approx.ftz.f32 \1, \1;", of=2)
    ),
    "rcp-plus-ulp": Entry(
        "the reciprocal of the row sum is the next float32",
        sm90(RCP, r"rcp.approx.ftz.f32 \1, \2; add.s32 \1, \1, 1;", of=2),
        silent="O is rounded to bf16: of 6400 elements, one in 2^16 crosses a midpoint",
    ),
    "descriptor": Entry(
        "the second step of Q K^T reads the third 16 channels of K",
        sm90("add.s64 %rd, %rd, 4611686293305360386; mov", r"add.s64 \1, \2, 4611686293305360388; mov"),
    ),
    "scale-d": Entry(
        "the first step of Q K^T adds to what the registers hold", sm90(SCALE_D, r"setp.eq.b32 p, \1, 0;", of=36)
    ),
    "scale-d-off": Entry(
        "the second step of Q K^T forgets the first", sm90(SCALE_D, r"setp.eq.b32 p, \1, 0;", nth=1, of=36)
    ),
    "tx-bytes": Entry(
        "16 bytes more of Q are expected than come", sm90("mov.b32 %r, 24576;", r"mov.b32 \1, 24592;"), fault="Deadlock"
    ),
    "wait-q": Entry("nobody waits for Q", sm90(WAIT, DONE, nth=7, of=14), schedule="late", fault="PendingAtExit"),
    "wait-k": Entry("nobody waits for the first K", sm90(TRY, PASSED, of=6), schedule="late", fault="BarrierMisuse"),
    "wait-v": Entry(
        "nobody waits for the last V", sm90(TRY, PASSED, nth=5, of=6), schedule="late", fault="PendingAtExit"
    ),
    "wait-k-free": Entry(
        "K's stage is filled again before it is free",
        sm90(WAIT, DONE, nth=2, of=14),
        schedule="late",
        fault="BarrierMisuse",
    ),
    "wait-scores": Entry(
        "nobody waits for the first scores", sm90("wgmma.wait_group.sync.aligned 0;", of=4), schedule="late"
    ),
    "wait-output": Entry(
        "nobody waits for the last P V",
        sm90("wgmma.wait_group.sync.aligned 0;", nth=3, of=4),
        schedule="late",
        fault="PendingAtExit",
    ),
    "wait-store": Entry(
        "the CTA ends while O is read from shared memory",
        sm90("cp.async.bulk.wait_group.read 0;"),
        schedule="late",
        silent="the machine lets a CTA end before its stores, and lands them then",
    ),
    "arrive-k": Entry("nobody frees the first stage of K", sm90(ARRIVE, of=7), fault="Deadlock"),
    "arrive-v": Entry("nobody frees the last stage of V", sm90(ARRIVE, nth=6, of=7), fault="Deadlock"),
    "barrier-init": Entry(
        "nobody waits until the mbarriers are initialised", sm90("bar.sync 0;"), schedule="late", fault="BarrierMisuse"
    ),
    "barrier-arrive": Entry(
        "the storing warp is not told that O is there", sm90("bar.arrive 1, 416;"), fault="Deadlock"
    ),
    "barrier-store": Entry("O is stored before it is there", sm90("bar.sync 1, 416;"), schedule="late"),
    "barrier-order": Entry(
        "the warp groups need not take turns",
        sm90("bar.sync %r, 256;", of=2),
        schedule="late",
        silent="turns only make the groups' tensor-core work alternate; no data depends on them",
    ),
}
SM100 = {
    "p3-ulp": Entry(
        "p3 is one ulp too large",
        sm100("mov.b32 %r, 0f3D9DF09D;", r"mov.b32 \1, 0f3D9DF09E;", nth=1, of=3),
        silent=COEFFICIENT,
    ),
    "p3-1024-ulp": Entry(
        "p3 is 1024 ulp too large", sm100("mov.b32 %r, 0f3D9DF09D;", r"mov.b32 \1, 0f3D9DF49D;", nth=2, of=3)
    ),
    "p2-ulp": Entry(
        "p2 is one ulp too large",
        sm100("mov.b32 %r, 0f3E6906A4;", r"mov.b32 \1, 0f3E6906A5;", nth=1, of=3),
        silent=COEFFICIENT,
    ),
    "p2-256-ulp": Entry(
        "p2 is 256 ulp too large", sm100("mov.b32 %r, 0f3E6906A4;", r"mov.b32 \1, 0f3E6907A4;", nth=2, of=3)
    ),
    "p1-ulp": Entry(
        "p1 is one ulp too large", sm100("mov.b32 %r, 0f3F31F519;", r"mov.b32 \1, 0f3F31F51A;", nth=1, of=3)
    ),
    "magic-ulp": Entry(
        "1.5 * 2^23 of the floor is 1.5 * 2^23 + 1",
        sm100("mov.b32 %r, 0f4B400000;", r"mov.b32 \1, 0f4B400001;", nth=2, of=3),
    ),
    "floor-nearest": Entry(
        "one exponent is rounded to nearest instead of down",
        sm100("add.rm.f32x2 %rd, %rd, %rd;", r"add.rn.f32x2 \1, \2, \3;", nth=16, of=24),
    ),
    "clamp-dropped": Entry(
        "one exponent is not clamped at -127", sm100("max.f32 %r, %r, 0fC2FE0000;", r"mov.b32 \1, \2;", of=48)
    ),
    "clamp-ulp": Entry(
        "one exponent is clamped one ulp above -127",
        sm100("max.f32 %r, %r, 0fC2FE0000;", r"max.f32 \1, \2, 0fC2FDFFFF;", of=48),
        silent="exp2 of a masked score is 2^-127 * 2^-16 = 9e-44 instead of 0: lost in the row sum and in bf16",
    ),
    "tau-ulp": Entry(
        "the rescale threshold is 8 less an ulp",
        sm100("setp.ge.f32 %p, %r, 0fC1000000;", r"setp.ge.f32 \1, \2, 0fC0FFFFFF;", nth=1, of=2),
        case="sm100-stairs",
    ),
    "tau-strict": Entry(
        "a rise of exactly 8 rescales",
        sm100("setp.ge.f32 %p, %r, 0fC1000000;", r"setp.gt.f32 \1, \2, 0fC1000000;", nth=1, of=2),
        case="sm100-stairs",
    ),
    "old-max-forgotten": Entry(
        "a rise below the threshold is taken for the new maximum",
        sm100(
            "selp.f32 %r, %r, %r, %p; selp.f32 %r, 0f3F800000, %r, \\4;",
            r"mov.b32 \1, \3; selp.f32 \5, 0f3F800000, \6, \4;",
            nth=1,
            of=2,
        ),
    ),
    "rescale-skipped": Entry(
        "two accumulators of O are not rescaled", sm100("mul.rn.f32x2 %rd, %rd, %rd;", r"mov.b64 \1, \2;", of=128)
    ),
    "rescale-never": Entry(
        "no warp of the first half rescales O",
        sm100("setp.lt.f32 %p, %r, 0f3F800000;", r"setp.lt.f32 \1, \2, 0f00000000;", of=2),
    ),
    "row-sum-swapped": Entry(
        "the partial row sums are paired otherwise",
        sm100(
            "add.rn.f32x2 %rd, %rd, %rd; add.rn.f32x2 %rd, %rd, %rd; add.rn.f32x2 %rd, \\1, \\4;",
            r"add.rn.f32x2 \1, \2, \5; add.rn.f32x2 \4, \3, \6; add.rn.f32x2 \7, \1, \4;",
            nth=2,
            of=3,
        ),
    ),
    "ln2-ulp": Entry("ln 2 of the LSE is one ulp too large", sm100(LN2, r"mul.f32 \1, \2, 0f3F317219;", of=2)),
    "pack-swapped": Entry(
        "two keys of P change places", sm100(PACK, r"cvt.rn.bf16x2.f32 \1, \3, \2;", nth=128, of=256)
    ),
    "max-forgets": Entry(
        "a row maximum leaves two keys out", sm100("max.f32 %r, %r, %r, %r;", r"mov.b32 \1, \2;", of=185)
    ),
    "scale-d": Entry(
        "the first step of Q K^T adds to what tensor memory holds",
        sm100("fa_fwd_qk_mma_idesc, 0;", "fa_fwd_qk_mma_idesc, 1;", nth=2, of=4),
    ),
    "lse-one-row-more": Entry(
        "the LSE of the row behind the last is stored",
        sm100("setp.le.s32 %p, %r, %r;", r"setp.lt.s32 \1, \2, \3;", nth=1, of=2),
        fault="OutOfBounds",
    ),
    "wait-scores": Entry(
        "nobody waits for the first scores",
        sm100(WAIT, DONE, nth=30, of=42),
    ),
    "wait-p": Entry("the last P V does not wait for P", sm100(WAIT, DONE, nth=27, of=42)),
    "wait-p-tail": Entry(
        "the last P V does not wait for the last quarter of P",
        sm100("mbarrier.try_wait.parity.shared::cta.b64 P1, [%r], %r, 10000000;", DONE, nth=2, of=4),
        schedule="interleaved",
        silent="it is stored while the first three quarters are multiplied; tcgen05.st is not late on the machine",
    ),
    "arrive-p": Entry("nobody is told that P is there", sm100(ARRIVE, nth=2, of=22), fault="Deadlock"),
    "commit": Entry("nobody is told that the scores are there", sm100("tcgen05.commit*;", of=12), fault="Deadlock"),
    "barrier-correction": Entry(
        "O is rescaled by a factor that may not be there", sm100("bar.sync %r, 64;", nth=2, of=6), fault="Deadlock"
    ),
    "wait-store": Entry(
        "the CTA ends while O is read from shared memory",
        sm100("cp.async.bulk.wait_group.read 0;"),
        silent="the machine lets a CTA end before its stores, and lands them then",
    ),
    "tx-bytes": Entry(
        "16 bytes less of K are expected than come",
        sm100("mov.b32 %r, 16384;", r"mov.b32 \1, 16368;", of=7),
        fault="Deadlock",
    ),
    "wait-st": Entry(
        "nobody waits until the first P is in tensor memory",
        sm100("tcgen05.wait::st.sync.aligned;", of=8),
        silent="the machine stores to tensor memory at once, late too",
    ),
}
SM90_BACKWARD = {
    "log2e-ulp": Entry(
        "log2 e that scales the LSE is one ulp too large",
        preprocess("mul.f32 %r, %r, 0f3FB8AA3B;", r"mul.f32 \1, \2, 0f3FB8AA3C;"),
        case="sm90-backward-deep",
    ),
    "delta-shuffle": Entry(
        "delta of one row in four adds the lanes of another row",
        preprocess("shfl.sync.bfly.b32 %r, %r, 4, 31, -1;", r"shfl.sync.bfly.b32 \1, \2, 8, 31, -1;", of=4),
    ),
    "delta-dropped": Entry(
        "one register of dP is not reduced by delta",
        backward("sub.f32 %r, %r, %r; mul.f32 %r, %r, \\1;", r"mov.b32 \1, \2; mul.f32 \4, \5, \1;", of=64),
    ),
    "mask-ge": Entry(
        "one key behind the diagonal is visible",
        backward("setp.gt.s32 %p, %r, 0; selp.f32", r"setp.ge.s32 \1, \2, 0; selp.f32", nth=1, of=2),
    ),
    "p-pack-swapped": Entry("two keys of P change places", backward(PACK, r"cvt.rn.bf16x2.f32 \1, \3, \2;", of=96)),
    "p-truncated": Entry(
        "two elements of P are truncated",
        backward(
            PACK, r"and.b32 \1, \3, -65536; shr.u32 \1, \1, 16; and.b32 \2, \2, -65536; or.b32 \1, \1, \2;", of=96
        ),
    ),
    "lse-other-row": Entry(
        "P of one register reads the LSE of another row",
        backward("shfl.sync.idx.b32 %r, %r, %r, 31, -1;", r"shfl.sync.idx.b32 \1, \2, 0, 31, -1;", nth=2, of=64),
    ),
    "dq-scale-ulp": Entry(
        "dQ's scale is one ulp too large",
        postprocess("ld.param.b32 %r, [*_param_2];", r"ld.param.b32 \1, [\2_param_2]; add.s32 \1, \1, 1;"),
    ),
    "dq-unscaled": Entry(
        "one register of dQ is not scaled", postprocess("mul.f32 %r, %r, %r;", r"mov.b32 \1, \3;", of=32)
    ),
    "dk-unscaled": Entry(
        "one register of dK is not scaled", backward("mul.f32 %r, %r, %r;", r"mov.b32 \1, \3;", nth=128, of=160)
    ),
    "ds-stale": Entry("dS is read before all of it is there", backward("bar.sync 5, 256;"), schedule="late"),
    "dq-stale": Entry("dQ is added before it is there", backward("bar.sync 6, 160;")),
    "dq-turn": Entry(
        "a CTA does not wait for its turn to add to dQ",
        backward("setp.ne.b32 %p, %r, %r; @\\1 bra $L; $L:", r"setp.ne.b32 \1, \2, \2; @\1 bra \4; \5:"),
        schedule="reversed",
    ),
    "dq-turn-not-passed": Entry(
        "a CTA does not pass its turn to add to dQ on",
        backward("red.release.gpu.global.add.s32 [%rd], %r;"),
        fault="Deadlock",
    ),
    "dq-wait": Entry(
        "the turn to add to dQ is passed on before the sum is in memory",
        backward("cp.async.bulk.wait_group 0;"),
        schedule="late",
    ),
    "wait-q": Entry("nobody waits for Q", backward(TRY, PASSED, of=2), schedule="late", fault="PendingAtExit"),
    "wait-do": Entry("nobody waits for dO", backward(TRY, PASSED, nth=1, of=2), schedule="late", fault="PendingAtExit"),
    "wait-products": Entry(
        "nobody waits for the last dK",
        backward("wgmma.wait_group.sync.aligned 0;", nth=1, of=2),
        schedule="late",
        fault="PendingAtExit",
    ),
    "wait-copies": Entry("nobody waits for the copies of dQ", postprocess("cp.async.wait_group 0;"), schedule="late"),
    "tx-bytes": Entry(
        "16 bytes more of Q are expected than come",
        backward("mov.b32 %r, 33280;", r"mov.b32 \1, 33296;", of=2),
        fault="Deadlock",
    ),
}
