"""Programs whose products and sums ptxas contracts in a way that tells rules apart, and what became of them.

Recorded from `nvdisasm` of what ptxas 13.4 (V13.4.59, November 2026) makes of them for sm_90a: multipliers of the
FFMAs, multipliers of the FMULs that stay, number of FADDs. P, Q, R multiply by 3, 5 and 7, so that the SASS shows which
product went where. sm_80 agrees in the counts; test_contraction.py repeats both where ptxas is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

P = "mul.f32 %r5, %r1, 0f40400000; "
Q = "mul.f32 %r6, %r2, 0f40A00000; "
R = "mul.f32 %r7, %r3, 0f40E00000; "
LOAD = "ld.global.b32 %r7, [%rd1+128]; "
FRESH = LOAD + "ld.global.b32 %r8, [%rd1+256]; mul.f32 %r6, %r7, %r8; "
# A block that ptxas does not merge with its neighbours.
ELSE, OTHER, END = (
    "@%p1 bra L; bar.sync 0; ",
    " st.global.b32 [%rd1+64], %r10; bar.sync 0; bra M; L: bar.sync 1; ",
    " M:",
)
ONLY = "@%p1 bra M; bar.sync 0; "
STORED = " st.global.b32 [%rd1+64], %r10; bar.sync 0; M:"
COUNTER = "add.s32 %r20, %r20, 1; mul.lo.s32 %r21, %r20, %r20; setp.lt.s32 %p2, %r21, %r9; @%p2 bra L;"


@dataclass(frozen=True)
class Case:
    """Statements on inputs %r1 ... %r4, outputs %r10 ... %r13; multipliers of what they become, 0 for no literal."""

    body: str
    fused: tuple[int, ...]
    products: tuple[int, ...] = ()
    sums: int = 0


CASES = {
    "product left of a sum": Case(P + "add.f32 %r10, %r5, %r3;", (3,)),
    "product right of a sum": Case(P + "add.f32 %r10, %r3, %r5;", (3,)),
    "product minus": Case(P + "sub.f32 %r10, %r5, %r3;", (3,)),
    "minus product": Case(P + "sub.f32 %r10, %r3, %r5;", (3,)),
    "the product asks for rounding": Case(P.replace("mul", "mul.rn") + "add.f32 %r10, %r5, %r3;", (), (3,), 1),
    "the sum asks for rounding": Case(P + "add.rn.f32 %r10, %r5, %r3;", (), (3,), 1),
    "two sums": Case(P + "add.f32 %r10, %r5, %r3; sub.f32 %r11, %r4, %r5;", (3, 3)),
    "three sums": Case(P + "add.f32 %r10, %r5, %r3; sub.f32 %r11, %r4, %r5; add.f32 %r12, %r5, %r2;", (3, 3, 3)),
    "a sum and a store": Case(P + "add.f32 %r10, %r5, %r3; st.global.b32 [%rd1+64], %r5;", (), (3,), 1),
    "a sum and a maximum": Case(P + "add.f32 %r10, %r5, %r3; max.f32 %r11, %r4, %r5;", (), (3,), 1),
    "a sum and a selection": Case(P + "add.f32 %r10, %r5, %r3; selp.f32 %r11, %r5, %r4, %p1;", (), (3,), 1),
    "a sum and a sum that rounds": Case(P + "add.f32 %r10, %r5, %r3; add.rn.f32 %r11, %r4, %r5;", (), (3,), 2),
    "a sum and a dead use": Case(P + "add.f32 %r10, %r5, %r3; max.f32 %r14, %r5, %r4;", (3,)),
    "with itself": Case(P + "add.f32 %r10, %r5, %r5;", (), (3,), 1),
    "with itself and another": Case(P + "add.f32 %r10, %r5, %r3; add.f32 %r11, %r5, %r5;", (), (3,), 2),
    "a negated factor": Case("neg.f32 %r7, %r1; mul.f32 %r5, %r7, 0f40400000; add.f32 %r10, %r5, %r3;", (3,)),
    "sums of sums": Case(P + "add.f32 %r6, %r5, %r3; mul.f32 %r7, %r6, 0f40A00000; add.f32 %r10, %r7, %r2;", (3, 5)),
    # Guards
    "a guarded product": Case("@%p1 " + P + "add.f32 %r10, %r5, %r3;", (), (3,), 1),
    "product and sum guarded alike": Case("@%p1 " + P + "@%p1 add.f32 %r10, %r5, %r3;", (), (3,), 1),
    "a guarded sum": Case(P + "@%p1 add.f32 %r10, %r5, %r3;", (3,)),
    "two sums, one guarded": Case(P + "add.f32 %r10, %r5, %r3; @%p1 add.f32 %r11, %r5, %r2;", (3, 3)),
    # Two products in one sum
    "two products": Case(P + Q + "add.f32 %r10, %r5, %r6;", (3,), (5,)),
    "two products, the later one left": Case(P + Q + "add.f32 %r10, %r6, %r5;", (5,), (3,)),
    "difference of two products": Case(Q + P + "sub.f32 %r10, %r6, %r5;", (5,), (3,)),
    "left is used twice": Case(P + Q + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r5, %r3;", (5,), (3,), 1),
    "right is used twice": Case(P + Q + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r6, %r3;", (3,), (5,), 1),
    "used before, alone": Case(P + Q + "add.f32 %r10, %r5, %r3; add.f32 %r11, %r5, %r6;", (5,), (3,), 1),
    "left is stored": Case(P + Q + "add.f32 %r10, %r5, %r6; st.global.b32 [%rd1+64], %r5;", (5,), (3,)),
    "sum and difference": Case(P + Q + "add.f32 %r10, %r5, %r6; sub.f32 %r11, %r5, %r6;", (3, 3), (5,)),
    "difference and sum": Case(P + Q + "sub.f32 %r10, %r5, %r6; add.f32 %r11, %r6, %r5;", (3, 3), (5,)),
    "both differences": Case(P + Q + "sub.f32 %r10, %r6, %r5; sub.f32 %r11, %r5, %r6;", (5, 5), (3,)),
    "both alone, after": Case(
        P + Q + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r5, %r3; add.f32 %r12, %r6, %r4;", (3, 3), (5,), 1
    ),
    "both alone, before": Case(
        P + Q + "add.f32 %r11, %r5, %r3; add.f32 %r12, %r6, %r4; add.f32 %r10, %r6, %r5;", (3, 5, 5), (3,)
    ),
    "three products in a ring": Case(
        P + Q + R + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r6, %r7; add.f32 %r12, %r7, %r5;", (3, 7, 7), (3, 5)
    ),
    "three products, one subtracted": Case(
        P + Q + R + "add.f32 %r10, %r5, %r6; sub.f32 %r11, %r7, %r6; add.f32 %r12, %r5, %r7;", (3, 3, 7), (5, 7)
    ),
    "fewer uses win": Case(
        P + Q + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r5, %r3; add.f32 %r12, %r5, %r4; add.f32 %r13, %r6, %r4;",
        (5, 5),
        (3,),
        2,
    ),
    "fewer uses that cannot be fused do not": Case(
        P + Q + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r5, %r3; add.f32 %r12, %r5, %r4; st.global.b32 [%rd1+64], %r6;",
        (3, 3, 3),
        (5,),
    ),
    "fewer uses that a third one wins do not": Case(
        P + Q + R + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r5, %r3; add.f32 %r12, %r5, %r4; add.f32 %r13, %r6, %r7;",
        (3, 3, 3, 7),
        (5,),
    ),
    "a shared right side": Case(P + Q + R + "add.f32 %r10, %r5, %r6; add.f32 %r11, %r7, %r6;", (3, 7), (5,)),
    "a shared left side": Case(P + Q + R + "add.f32 %r10, %r6, %r5; add.f32 %r11, %r6, %r7;", (3, 7), (5,)),
    # Blocks
    "the sum in another block": Case(P + ONLY + "add.f32 %r10, %r5, %r3;" + STORED, (3,)),
    "sums in two other blocks": Case(
        P + ELSE + "add.f32 %r10, %r5, %r3;" + OTHER + "sub.f32 %r10, %r5, %r4;" + END, (3, 3)
    ),
    "a sum here, a store there": Case(
        P + ELSE + "add.f32 %r10, %r5, %r3;" + OTHER + "st.global.b32 [%rd1+80], %r5;" + END, (), (3,), 1
    ),
    "what falls through comes first": Case(
        P + Q + ELSE + "add.f32 %r10, %r5, %r6;" + OTHER + "sub.f32 %r10, %r6, %r5;" + END, (3, 3), (5,)
    ),
    "not what the text has first": Case(
        P + Q + "bra K; L: bar.sync 1; add.f32 %r10, %r6, %r5; st.global.b32 [%rd1+68], %r10; bra M; "
        "K: @%p1 bra L; bar.sync 0; sub.f32 %r10, %r5, %r6; st.global.b32 [%rd1+64], %r10; bar.sync 0; M:",
        (3, 3),
        (5,),
    ),
    "products of two blocks": Case(P + ONLY + Q + "add.f32 %r10, %r6, %r5;" + STORED, (5,), (3,)),
    "one of two products": Case(
        "@%p1 bra L; bar.sync 0; " + P + "bra M; L: mul.f32 %r5, %r2, 0f40A00000; bar.sync 1; "
        "M: add.f32 %r10, %r5, %r3;",
        (),
        (3, 5),
        1,
    ),
    "on one of two paths": Case(
        ONLY + "mul.f32 %r8, %r1, 0f40400000; bar.sync 0; M: add.f32 %r10, %r8, %r3;", (3,)
    ),
    "fresh factors": Case(FRESH + "bar.sync 0; add.f32 %r10, %r6, %r3;", (0,)),
    "fresh factors, the sum in another block": Case(FRESH + ONLY + "add.f32 %r10, %r6, %r3;" + STORED, (), (0,), 1),
    "fresh factors, a sum here and one there": Case(
        FRESH + "add.f32 %r11, %r6, %r2; " + ONLY + "add.f32 %r10, %r6, %r3;" + STORED, (), (0,), 2
    ),
    "fresh factors on one of two paths": Case(
        ONLY + FRESH + "bar.sync 0; M: add.f32 %r10, %r6, %r3;", (), (0,), 1
    ),
    "a fresh factor squared": Case(
        LOAD + "mul.f32 %r6, %r7, %r7; " + ONLY + "add.f32 %r10, %r6, %r3;" + STORED, (), (0,), 1
    ),
    "a fresh factor and an immediate": Case(
        LOAD + "mul.f32 %r6, %r7, 0f40400000; " + ONLY + "add.f32 %r10, %r6, %r3;" + STORED, (3,)
    ),
    "a fresh factor and a parameter": Case(
        LOAD + "mul.f32 %r6, %r7, %r4; " + ONLY + "add.f32 %r10, %r6, %r3;" + STORED, (0,)
    ),
    "a fresh factor and a parameter, negated": Case(
        LOAD + "neg.f32 %r8, %r4; mul.f32 %r6, %r7, %r8; "
        + ONLY + "add.f32 %r10, %r6, %r3;" + STORED,
        (0,),
    ),
    "a fresh factor and a number from a parameter": Case(
        LOAD + "ex2.approx.ftz.f32 %r8, %r4; mul.f32 %r6, %r7, %r8; "
        + ONLY + "add.f32 %r10, %r6, %r3;" + STORED,
        (),
        (0,),
        1,
    ),
    "fresh factors out of a loop": Case(
        FRESH + "mov.b32 %r20, 0; L: add.f32 %r10, %r6, %r10; st.global.b32 [%rd1+64], %r10; " + COUNTER, (), (0,), 1
    ),
    "fresh factors over a block that becomes a guard": Case(
        FRESH + "@%p1 bra M; mul.f32 %r4, %r4, 0f40400000; M: add.f32 %r10, %r6, %r4;", (), (0, 3), 1
    ),
    "a register used again": Case(
        P + "add.f32 %r10, %r5, %r3; mul.f32 %r5, %r2, 0f40A00000; add.f32 %r11, %r5, %r4;", (3, 5)
    ),
    "a factor overwritten": Case(P + "add.f32 %r1, %r4, %r4; add.f32 %r10, %r5, %r1;", (3,), (), 1),
    "out of a loop": Case(
        P + "mov.b32 %r20, 0; L: add.f32 %r10, %r5, %r10; st.global.b32 [%rd1+64], %r10; " + COUNTER, (3,)
    ),
    "around a loop": Case(
        "mov.b32 %r20, 0; mov.b32 %r5, %r1; L: add.f32 %r10, %r5, %r3; st.global.b32 [%rd1+64], %r10; "
        "mul.f32 %r5, %r10, 0f40400000; " + COUNTER,
        (),
        (3,),
        1,
    ),
}  # fmt: skip
