"""Forms of the tensor cores: mma.sync, ldmatrix and stmatrix, wgmma, tcgen05.

Contract: see `form.py`. PTX ISA 8.8, "Warp Level Matrix Instructions", "Asynchronous Warpgroup Level Matrix
Instructions", "TensorCore 5th Generation Family Instructions". Accumulators are fp32 throughout.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fa4verify.ptx.builder import Builder, flat
from fa4verify.ptx.errors import Unsupported
from fa4verify.ptx.form import Form, Reader, counted, exactly, literal
from fa4verify.ptx.operand import Address, Immediate, Operand, Vector
from fa4verify.ptx.operations import (
    TC_A_IN_TMEM,
    TC_DISABLED_SHIFT,
    TC_KIND_F8F6F4,
    TC_KIND_F16,
    TC_KIND_SHIFT,
    TC_KIND_TF32,
    WGMMA_A_SHARED,
    WGMMA_NEGATE_A,
    WGMMA_NEGATE_B,
    WGMMA_TRANSPOSE_A,
    WGMMA_TRANSPOSE_B,
    Column,
    MmaDtype,
    Op,
    TcReduction,
    TcShape,
)

if TYPE_CHECKING:
    from fa4verify.ptx.syntax import Statement

Match = re.Match[str]
D, A, B, C, E, F, G = Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G
DTYPES = {
    "bf16": MmaDtype.BF16,
    "f16": MmaDtype.F16,
    "e4m3": MmaDtype.E4M3,
    "e5m2": MmaDtype.E5M2,
    "tf32": MmaDtype.TF32,
}
K = {"bf16": 16, "f16": 16, "e4m3": 32, "e5m2": 32, "tf32": 8}  # of wgmma, 32 bytes of each row


def _vector(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = flat(operand) if isinstance(operand, Vector) or count == 1 else ()
    if len(elements) != count:
        raise Unsupported(f"expected {count} registers in braces")
    return elements


def _plain(op: Op) -> Reader:
    def read(b: Builder, s: Statement, _: Match) -> None:
        exactly(s, 0)
        b.emit(op)

    return read


# Warps


def _mma_sync(b: Builder, s: Statement, m: Match) -> None:
    result, a, right, addend = exactly(s, 4)
    if m["a"] != m["b"]:
        raise Unsupported("A and B of different types")
    of_a, k = (2 if m["k"] == "8" and m["a"] != "tf32" else 4), int(m["k"])
    if (m["a"], k) not in {("bf16", 8), ("bf16", 16), ("f16", 8), ("f16", 16), ("tf32", 8), ("e4m3", 32), ("e5m2", 32)}:
        raise Unsupported(f"K = {k} of {m['a']}")
    read = [b.read(one) for one in (*_vector(a, of_a), *_vector(right, of_a // 2), *_vector(addend, 4))]
    written = [b.write(one) for one in _vector(result, 4)]
    b.emit(Op.MMA_SYNC, {E: b.listed(written + read), F: k}, immediate=DTYPES[m["a"]])


def _ldmatrix(b: Builder, s: Statement, m: Match) -> None:
    result, address = exactly(s, 2)
    slot, offset = b.address(address, "shared")
    into = [b.write(one) for one in _vector(result, int(m["count"]))]
    b.emit(Op.LDMATRIX, {A: slot, E: b.listed(into), F: len(into), B: int(bool(m["trans"]))}, immediate=offset)


def _stmatrix(b: Builder, s: Statement, m: Match) -> None:
    address, value = exactly(s, 2)
    slot, offset = b.address(address, "shared")
    taken = [b.read(one) for one in _vector(value, int(m["count"]))]
    b.emit(Op.STMATRIX, {A: slot, E: b.listed(taken), F: len(taken), B: int(bool(m["trans"]))}, immediate=offset)


# Warpgroups


def _sign(operand: Operand | None) -> bool:
    """Whether a scale is -1."""
    value = literal(operand, "a scale of A or B")
    if value not in (1, -1):
        raise Unsupported(f"a scale of {value}")
    return value == -1


def _wgmma(b: Builder, s: Statement, m: Match) -> None:
    """Read D, A, B, scale-d, scale-a, scale-b [, transposes]; A in registers is never transposed."""
    n, dtype = int(m["n"]), m["a"]
    if K[dtype] != int(m["k"]) or n % 8 or not 8 <= n <= 256:
        raise Unsupported(f"the shape n{n}k{m['k']} of {dtype}")
    if len(s.operands) < 6:
        raise Unsupported(f"{len(s.operands)} operands")
    from_shared = not isinstance(s.operands[1], Vector)
    result, a, right, scale, scale_a, scale_b = s.operands[:6]
    transposed = exactly(s, (8 if from_shared else 7) if K[dtype] == 16 else 6)[6:]
    accumulators = _vector(result, n // 2)
    listed = [b.read(one) for one in accumulators] + ([] if from_shared else [b.read(one) for one in _vector(a, 4)])
    flags = WGMMA_A_SHARED if from_shared else 0
    flags |= (WGMMA_NEGATE_A if _sign(scale_a) else 0) | (WGMMA_NEGATE_B if _sign(scale_b) else 0)
    for bit, operand in zip((WGMMA_TRANSPOSE_B, WGMMA_TRANSPOSE_A), reversed(transposed), strict=False):
        if (value := literal(operand, "a transpose")) not in (0, 1):
            raise Unsupported(f"a transpose of {value}")
        flags |= bit * value
    named = {A: b.read(a, "b64") if from_shared else -1, B: b.read(right, "b64"), C: b.predicate_index(scale)}
    named |= {E: b.listed(listed), F: n}
    for one in accumulators:
        b.write(one)
    b.emit(Op.WGMMA, named, immediate=DTYPES[dtype] | DTYPES[m["b"]] << 4 | flags)


def _wgmma_wait(b: Builder, s: Statement, _: Match) -> None:
    b.emit(Op.WGMMA_WAIT, immediate=literal(exactly(s, 1)[0], "a number of groups"))


# Tensor memory

_SHAPES = {f"{shape.name[1:].lower()}": shape for shape in TcShape}
_REGISTERS = {TcShape.S32X32B: 1, TcShape.S16X64B: 1, TcShape.S16X128B: 2, TcShape.S16X256B: 4}  # of .x1
_KINDS = {"f16": TC_KIND_F16, "tf32": TC_KIND_TF32, "f8f6f4": TC_KIND_F8F6F4}


def _tensor_address(b: Builder, operand: Operand) -> tuple[int, int]:
    """Slot and offset of an address in tensor memory, which is a 32-bit number like one in shared memory."""
    if not isinstance(operand, Address) or operand.coordinates is not None:
        raise Unsupported("expected an address in tensor memory")
    return b.read(operand.base), operand.offset


def _tensor_elements(m: Match, operand: Operand) -> tuple[TcShape, tuple[Operand, ...]]:
    shape = _SHAPES[m["shape"]]
    return shape, _vector(operand, _REGISTERS[shape] * int(m["count"]))


def _tensor_load(b: Builder, s: Statement, m: Match) -> None:
    red = m.groupdict().get("how")
    result, *reduced, address = exactly(s, 3 if red else 2)
    slot, offset = _tensor_address(b, address)
    shape, elements = _tensor_elements(m, result)
    into = [b.write(one) for one in elements]
    named = {A: slot, E: b.listed(into), F: len(into), G: shape}
    if red:
        named |= {
            D: b.write(reduced[0]),
            B: TcReduction[f"{red.upper()}_F32"] + 2 * bool(m["abs"]) + 4 * bool(m["nan"]),
        }
    b.emit(Op.TC_LD, named, immediate=offset)


def _tensor_store(b: Builder, s: Statement, m: Match) -> None:
    address, value = exactly(s, 2)
    slot, offset = _tensor_address(b, address)
    shape, elements = _tensor_elements(m, value)
    taken = [b.read(one) for one in elements]
    b.emit(Op.TC_ST, {A: slot, E: b.listed(taken), F: len(taken), G: shape}, immediate=offset)


def _alloc(b: Builder, s: Statement, m: Match) -> None:
    address, columns = exactly(s, 2)
    slot, offset = b.address(address, "shared")
    b.emit(Op.TC_ALLOC, {A: slot, B: b.read(columns), F: int(m["group"])}, immediate=offset)


def _dealloc(b: Builder, s: Statement, m: Match) -> None:
    address, columns = exactly(s, 2)
    b.emit(Op.TC_DEALLOC, {A: b.read(address), B: b.read(columns), F: int(m["group"])})


def _relinquish(b: Builder, s: Statement, m: Match) -> None:
    exactly(s, 0)
    b.emit(Op.TC_RELINQUISH, {F: int(m["group"])})


def _mma(b: Builder, s: Statement, m: Match) -> None:
    """Read [D], A, B, descriptor [, {lanes of D to leave alone}], accumulate."""
    counted(s, 5, 6)
    target, a, right, descriptor, *others = s.operands
    disabled = -1
    if isinstance(others[0], Vector):
        disabled = b.listed([b.read(lanes) for lanes in _vector(others.pop(0), 4 * int(m["group"]))])
    if len(others) != 1:
        raise Unsupported("a scale of D")
    accumulate = others[0]
    to, offset = _tensor_address(b, target)
    if offset:
        raise Unsupported("an offset in D's address")
    named = {D: to, B: b.read(right, "b64"), C: b.read(descriptor), F: int(m["group"])}
    flags = 0
    if isinstance(a, Address):
        named[A], named[G] = _tensor_address(b, a)
        flags = TC_A_IN_TMEM
    else:
        named[A] = b.read(a, "b64")
    if isinstance(accumulate, Immediate):
        named[E] = -2 if accumulate.value else -1
    else:
        named[E] = b.predicate_index(accumulate)
    b.emit(Op.TC_MMA, named, immediate=flags | _KINDS[m["kind"]] << TC_KIND_SHIFT | disabled + 1 << TC_DISABLED_SHIFT)


def _copy(b: Builder, s: Statement, m: Match) -> None:
    address, descriptor = exactly(s, 2)
    slot, offset = _tensor_address(b, address)
    if offset:
        raise Unsupported("an offset in the address")
    b.emit(Op.TC_CP, {A: slot, B: b.read(descriptor, "b64"), F: int(m["group"]), G: _SHAPES[m["shape"]]})


def _commit(b: Builder, s: Statement, m: Match) -> None:
    operands = exactly(s, 2 if m["multicast"] else 1)
    slot, offset = b.address(operands[0], "shared")
    mask = b.read(operands[1], "b16") if m["multicast"] else -1
    b.emit(Op.TC_COMMIT, {A: slot, B: mask, F: int(m["group"])}, immediate=offset)


_SHARED = r"(?:\.shared(?:::cta)?)?"
_MATRIX = rf"\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?{_SHARED}\.b16"
_GROUP = r"\.cta_group::(?P<group>[12])"
_SHAPE = r"\.(?P<shape>32x32b|16x64b|16x128b|16x256b)\.x(?P<count>1|2|4|8|16|32|64|128)"

FORMS = (
    Form.of(
        r"mma\.sync\.aligned\.m16n8k(?P<k>8|16|32)\.row\.col\.f32\.(?P<a>bf16|f16|tf32|e4m3|e5m2)"
        r"\.(?P<b>bf16|f16|tf32|e4m3|e5m2)\.f32",
        _mma_sync,
    ),
    Form.of(rf"ldmatrix{_MATRIX}", _ldmatrix),
    Form.of(rf"stmatrix{_MATRIX}", _stmatrix),
    Form.of(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k(?P<k>\d+)\.f32\.(?P<a>bf16|f16|tf32|e4m3|e5m2)"
        r"\.(?P<b>bf16|f16|tf32|e4m3|e5m2)",
        _wgmma,
    ),
    Form.of(r"wgmma\.commit_group\.sync\.aligned", _plain(Op.WGMMA_COMMIT)),
    Form.of(r"wgmma\.wait_group\.sync\.aligned", _wgmma_wait),
    Form.of(rf"tcgen05\.alloc{_GROUP}\.sync\.aligned\.shared::cta\.b32", _alloc),
    Form.of(rf"tcgen05\.dealloc{_GROUP}\.sync\.aligned\.b32", _dealloc),
    Form.of(rf"tcgen05\.relinquish_alloc_permit{_GROUP}\.sync\.aligned", _relinquish),
    # The collector keeps A or B for the next MMA: a hint.
    Form.of(
        rf"tcgen05\.mma{_GROUP}\.kind::(?P<kind>f16|tf32|f8f6f4)(?:\.collector::a::(?:fill|use|lastuse|discard))?", _mma
    ),
    Form.of(rf"tcgen05\.ld\.sync\.aligned{_SHAPE}\.b32", _tensor_load),
    Form.of(
        r"tcgen05\.ld\.red\.sync\.aligned\.(?P<shape>32x32b)\.x(?P<count>2|4|8|16|32|64|128)\.(?P<how>min|max)"
        r"(?P<abs>\.abs)?(?P<nan>\.NaN)?\.f32",
        _tensor_load,
    ),
    Form.of(rf"tcgen05\.st\.sync\.aligned{_SHAPE}\.b32", _tensor_store),
    Form.of(r"tcgen05\.wait::ld\.sync\.aligned", _plain(Op.TC_WAIT_LD)),
    Form.of(r"tcgen05\.wait::st\.sync\.aligned", _plain(Op.TC_WAIT_ST)),
    Form.of(rf"tcgen05\.cp{_GROUP}\.(?P<shape>128x256b|4x256b|128x128b)", _copy),
    Form.of(
        rf"tcgen05\.commit{_GROUP}\.mbarrier::arrive::one\.shared::cluster(?P<multicast>\.multicast::cluster)?\.b64",
        _commit,
    ),
)
