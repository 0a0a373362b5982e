"""The machine's operations, and what each column of a row of code means for them.

Contract: a program is an int64 array with one row an instruction and the columns below. Operands are *slots*: 128 bytes
a warp, 32 lanes of 32 bits; a 64-bit register takes two slots that follow each other (32 lanes of 64 bits). 8- and
16-bit registers live in the low bits of a slot, the rest zero. Immediates and special registers are slots too. A
predicate is an index into the warp's predicates: 32 lanes in one word.
Lane operations (add, fma, setp, cvt ...) come first, numbered by `lanes.py`, columns in `lane.py`; those here touch
memory, other lanes, other warps or time. -1 in a column: absent.
"""

from __future__ import annotations

from enum import IntEnum


class Column(IntEnum):
    """Columns of a row of code."""

    OP = 0
    GUARD = 1  # -1, or 2 * predicate + (1 where negated)
    D = 2  # slot (or predicate) of the result; of the destination's address for copies
    A = 3
    B = 4
    C = 5
    E = 6  # first entry of a list of slots in the pool
    F = 7
    G = 8
    IMM = 9
    LINE = 10  # of the PTX text


COLUMNS = len(Column)
FIRST_UNIT = 1024  # operations below are lane operations

SHARED_BASE = 1024  # shared-memory address of the dynamic part; static variables lie below
RANK_SHIFT = 24  # shared::cluster address = rank of the CTA in its cluster << RANK_SHIFT | address in that CTA
# Address of kernel parameters, as seen by the program: tensor maps are taken by address
PARAMETER_BASE = 0x7F00_0000_0000
LOCAL_BASE = 0x7E00_0000_0000


class Op(IntEnum):
    """Operations of the units. Addresses: slot A (or D) + IMM; shared ones 32 bits, global ones 64 bits."""

    # Control
    NOP = FIRST_UNIT  # F: which one was dropped or has no effect here (see Nop)
    BRANCH = FIRST_UNIT + 1  # IMM: row
    EXIT = FIRST_UNIT + 2
    TRAP = FIRST_UNIT + 3
    # Memory. E, B: slots and their number; F: bytes an element; C: bytes of the register | SIGNED
    LOAD_PARAMETER = FIRST_UNIT + 10  # A: -1, or slot (64 bits) of an address above PARAMETER_BASE
    LOAD_GLOBAL = FIRST_UNIT + 11
    STORE_GLOBAL = FIRST_UNIT + 12
    LOAD_SHARED = FIRST_UNIT + 13
    STORE_SHARED = FIRST_UNIT + 14
    LOAD_LOCAL = FIRST_UNIT + 15
    STORE_LOCAL = FIRST_UNIT + 16
    # D: old value or -1; A + IMM: address; B: operand; C: second operand of cas or -1; F: Atomic; G: bytes.
    # A vector is a row an element
    ATOMIC_GLOBAL = FIRST_UNIT + 17
    ATOMIC_SHARED = FIRST_UNIT + 18
    # Between lanes
    # D, A: value, B: lane or mask, C: clamp, G: slot of membermask, E: predicate or -1, F: Shuffle
    SHUFFLE = FIRST_UNIT + 30
    VOTE = FIRST_UNIT + 31  # D: slot, or predicate for all/any/uni; A: predicate; B: 1 where negated; F: Vote
    ELECT = FIRST_UNIT + 32  # D: slot of the leader or -1; A: predicate
    MATCH = FIRST_UNIT + 33  # D, A, F: 0 any, 1 all; G: bytes
    REDUX = FIRST_UNIT + 34  # D, A, F: Atomic
    ACTIVEMASK = FIRST_UNIT + 35  # D
    # Barriers
    BAR_SYNC = FIRST_UNIT + 50  # A: id, B: threads or -1 for all
    BAR_ARRIVE = FIRST_UNIT + 51
    BAR_WARP = FIRST_UNIT + 52  # A: mask
    MBARRIER_INIT = FIRST_UNIT + 53  # A + IMM: address, B: count
    MBARRIER_INVAL = FIRST_UNIT + 54
    MBARRIER_ARRIVE = FIRST_UNIT + 55  # B: count or -1 for 1
    MBARRIER_EXPECT_TX = FIRST_UNIT + 56  # B: bytes; F: 1 where it also arrives
    MBARRIER_TRY_WAIT = FIRST_UNIT + 57  # D: predicate, B: parity
    MBARRIER_ARRIVE_ASYNC = FIRST_UNIT + 58  # cp.async.mbarrier.arrive; F: 1 for .noinc
    CLUSTER_ARRIVE = FIRST_UNIT + 59
    CLUSTER_WAIT = FIRST_UNIT + 60
    # Asynchronous copies
    CP_ASYNC = FIRST_UNIT + 70  # D + IMM: shared, A + C: global, F: bytes, B: bytes to read or -1 (the rest is zeros)
    CP_COMMIT = FIRST_UNIT + 71
    CP_WAIT = FIRST_UNIT + 72  # IMM: groups that may stay pending; -1: none at all, committed or not
    BULK_LOAD = FIRST_UNIT + 73  # D + IMM: shared, A: global, B: bytes, C + G: mbarrier
    BULK_STORE = FIRST_UNIT + 74  # D + IMM: global, A: shared, B: bytes
    BULK_REDUCE = FIRST_UNIT + 75  # as BULK_STORE; F: Atomic, G: bytes an element
    BULK_SHARED = FIRST_UNIT + 76  # D + IMM: shared::cluster, A: shared, B: bytes, C + G: mbarrier (of the destination)
    # D + IMM: shared, A: map's address, C + G: mbarrier, E: coordinates, F: their number, B: multicast mask or -1
    TENSOR_LOAD = FIRST_UNIT + 77
    TENSOR_STORE = FIRST_UNIT + 78  # D + IMM: shared, A: map's address, E, F: coordinates
    TENSOR_REDUCE = FIRST_UNIT + 79  # as TENSOR_STORE; G: Atomic
    BULK_COMMIT = FIRST_UNIT + 80
    BULK_WAIT = FIRST_UNIT + 81  # IMM: groups that may stay pending; F: 1 for .read
    # Tensor cores
    # E: F / 2 accumulators [, 4 slots of A]; A: descriptor or -1; B: descriptor; C: predicate scale-d; F: N; IMM: below
    WGMMA = FIRST_UNIT + 100
    WGMMA_COMMIT = FIRST_UNIT + 101
    WGMMA_WAIT = FIRST_UNIT + 102  # IMM: groups that may stay pending
    MMA_SYNC = FIRST_UNIT + 103  # m16n8kK: E: 4 D, A, B, 4 C slots in the pool, F: K, IMM: MmaDtype
    LDMATRIX = FIRST_UNIT + 104  # A + IMM: address, E, F: slots and their number, B: 1 for .trans
    STMATRIX = FIRST_UNIT + 105
    TC_ALLOC = FIRST_UNIT + 110  # A + IMM: shared address that receives the TMEM address, B: columns, F: cta_group
    TC_DEALLOC = FIRST_UNIT + 111  # A: TMEM address, B: columns, F: cta_group
    TC_RELINQUISH = FIRST_UNIT + 112
    # D: TMEM address, A: descriptor or (IMM & TC_A_IN_TMEM) TMEM address + G, B: descriptor, C: instruction descriptor,
    # E: predicate, -1 never, -2 always accumulate; F: cta_group; IMM: flags | kind << 4 | (1 + first pool entry of
    # 4 * F slots whose bits name the lanes of D to leave alone, 0 where there are none) << TC_DISABLED_SHIFT
    TC_MMA = FIRST_UNIT + 113
    # A + IMM: TMEM address, E, F: slots and their number, G: TcShape; D: slot of the reduction of .red or -1, B: which
    TC_LD = FIRST_UNIT + 114
    TC_ST = FIRST_UNIT + 115
    TC_CP = FIRST_UNIT + 116  # A: TMEM address, B: descriptor, F: cta_group, G: shape
    TC_COMMIT = FIRST_UNIT + 117  # A + IMM: mbarrier, B: multicast mask or -1, F: cta_group
    TC_WAIT_LD = FIRST_UNIT + 118
    TC_WAIT_ST = FIRST_UNIT + 119
    # Clocks
    CLOCK = FIRST_UNIT + 130  # D, F: bytes


class Nop(IntEnum):
    """Instructions that order, hint or tune, and do nothing in a machine that executes in order."""

    FENCE = 0
    WGMMA_FENCE = 1
    TC_FENCE = 2
    SETMAXNREG = 3
    PREFETCH = 4
    GRID_DEPENDENCY = 5
    NANOSLEEP = 6
    DROPPED = 7  # an instruction that `races` deleted


class Atomic(IntEnum):
    """Operation and type of an atomic, a bulk reduction or redux."""

    ADD_U32 = 0
    ADD_S32 = 1
    ADD_F32 = 2
    ADD_U64 = 3
    MIN_S32 = 4
    MAX_S32 = 5
    MIN_U32 = 6
    MAX_U32 = 7
    AND_B32 = 8
    OR_B32 = 9
    XOR_B32 = 10
    EXCH_B32 = 11
    CAS_B32 = 12
    INC_U32 = 13
    ADD_F16X2 = 14
    ADD_BF16X2 = 15
    ADD_F64 = 16
    EXCH_B64 = 17
    CAS_B64 = 18
    ADD_FTZ_F32 = 19  # what atom and red in global memory do: subnormal operands and sums count as zeros


class Shuffle(IntEnum):
    """How shfl chooses its source."""

    IDX = 0
    UP = 1
    DOWN = 2
    BFLY = 3


class Vote(IntEnum):
    """What vote.sync answers."""

    BALLOT = 0
    ALL = 1
    ANY = 2
    UNI = 3


class MmaDtype(IntEnum):
    """Type of A and B; the accumulator is fp32."""

    BF16 = 0
    F16 = 1
    E4M3 = 2
    E5M2 = 3
    TF32 = 4


class TcShape(IntEnum):
    """Lanes and bits of tensor memory that one warp moves with one register of a lane."""

    S32X32B = 0
    S16X64B = 1
    S16X128B = 2
    S16X256B = 3
    S16X32BX2 = 4
    # Of tcgen05.cp
    S128X256B = 5
    S4X256B = 6
    S128X128B = 7
    S64X128B = 8
    S32X128B = 9


class TcReduction(IntEnum):
    """What tcgen05.ld.red makes of a lane's registers, as max.f32 and min.f32 do; + 2 for .abs, + 4 for .NaN."""

    MAX_F32 = 0
    MIN_F32 = 1


SIGNED = 256  # in column C of loads
# Column IMM of WGMMA: dtype of A | dtype of B << 4 | flags
WGMMA_A_SHARED, WGMMA_TRANSPOSE_A, WGMMA_TRANSPOSE_B, WGMMA_NEGATE_A, WGMMA_NEGATE_B = (1 << b for b in range(8, 13))
# Column IMM of TC_MMA: flag | kind << 4
TC_A_IN_TMEM = 1
TC_KIND_F16, TC_KIND_TF32, TC_KIND_F8F6F4 = range(3)
TC_KIND_SHIFT, TC_KIND_MASK = 4, 15
TC_DISABLED_SHIFT = 16


class Pending(IntEnum):
    """Fields of an asynchronous operation between its issue and its effect; X0 ... as its operation defines."""

    KIND = 0  # the Op
    ROW = 1  # row of code, for the columns that need no register
    WARP = 2
    GROUP = 3  # commit group (wgmma, bulk, cp.async), or the order of issue
    LANE = 4
    STATE = 5  # 0 free, 1 pending, 2 read done but writes not yet guaranteed
    X0 = 6
    X1 = 7
    X2 = 8
    X3 = 9
    X4 = 10
    X5 = 11
    X6 = 12
    X7 = 13
    X8 = 14
    X9 = 15


PENDING = len(Pending)
