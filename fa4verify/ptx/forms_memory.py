"""Forms of loads, stores, atomics and asynchronous copies.

Contract: see `form.py`. PTX ISA 8.8, "Data Movement and Conversion Instructions". Caching hints and memory orders mean
nothing in a machine without caches that executes in order; they are accepted by name. Generic addresses are not: a load
or store must name its space.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fa4verify.ptx.builder import Builder, flat
from fa4verify.ptx.errors import Unsupported
from fa4verify.ptx.form import Form, Reader, counted, exactly, literal
from fa4verify.ptx.operand import BITS, Address, Ignored, Operand, Register
from fa4verify.ptx.operations import SIGNED, Atomic, Column, Op

if TYPE_CHECKING:
    from fa4verify.ptx.syntax import Statement

Match = re.Match[str]
D, A, B, C, E, F, G = Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G


# Loads and stores


def _space(m: Match) -> str:
    return "shared" if m["space"].startswith("shared") else m["space"]


def _width(elements: tuple[Operand, ...], kind: str) -> int:
    """Bytes of the registers of a load or store, all in one or all in two slots."""
    bits = {element.bits for element in elements if isinstance(element, Register)} or {BITS[kind]}
    if len({max(one, 32) for one in bits}) > 1:
        raise Unsupported("registers of 64 bits beside narrower ones")
    return max(bits) // 8


def _elements(m: Match, operand: Operand) -> tuple[Operand, ...]:
    elements = flat(operand)
    if len(elements) != int(m["vector"] or 1):
        raise Unsupported(f"{len(elements)} elements where the opcode says {m['vector'] or 1}")
    return elements


def _load(b: Builder, s: Statement, m: Match) -> None:
    result, address = _hinted(s, m, 2)
    kind, space = m["type"], _space(m)
    elements = _elements(m, result)
    slot, offset = b.address(address, space)
    size = _width(elements, kind)
    if kind[0] == "f" and size * 8 != BITS[kind]:
        raise Unsupported(f"a register wider than {kind}")
    register = f"b{size * 8}"
    into = [b.write(one, register if isinstance(one, Ignored) else kind, wider=True) for one in elements]
    named = {A: slot, E: b.listed(into), B: len(into), F: BITS[kind] // 8, C: size | (SIGNED if kind[0] == "s" else 0)}
    if space == "param" and slot < 0:
        _within_parameter(b, address, len(into) * BITS[kind] // 8)
    b.emit(
        {"param": Op.LOAD_PARAMETER, "global": Op.LOAD_GLOBAL, "shared": Op.LOAD_SHARED, "local": Op.LOAD_LOCAL}[space],
        named,
        immediate=offset,
    )


def _within_parameter(b: Builder, operand: Operand, size: int) -> None:
    assert isinstance(operand, Address)
    place = b.places[getattr(operand.base, "name", "")]
    if not 0 <= operand.offset <= place.size - size:
        raise Unsupported(f"{size} bytes at {operand.offset} of a parameter of {place.size}")


def _store(b: Builder, s: Statement, m: Match) -> None:
    address, value = _hinted(s, m, 2)
    kind, space = m["type"], _space(m)
    elements = _elements(m, value)
    slot, offset = b.address(address, space)
    size = _width(elements, kind)
    register = f"b{size * 8}" if size == 8 else kind
    taken = [b.read(one, kind if isinstance(one, Register) else register, wider=True) for one in elements]
    named = {A: slot, E: b.listed(taken), B: len(taken), F: BITS[kind] // 8, C: size}
    b.emit(
        {"global": Op.STORE_GLOBAL, "shared": Op.STORE_SHARED, "local": Op.STORE_LOCAL}[space], named, immediate=offset
    )


def _hinted(s: Statement, m: Match, operands: int) -> tuple[Operand, ...]:
    """Operands without the cache policy that `.L2::cache_hint` adds behind them."""
    return exactly(s, operands + bool(m["hint"]))[:operands]


# Atomics

_ATOMICS = {name.lower().replace("_", "."): Atomic[name] for name in Atomic.__members__}
_SAME = {"add.b64": "add.u64", "add.s64": "add.u64", "exch.u32": "exch.b32"}
_BYTES = {kind: bits // 8 for kind, bits in BITS.items()}


def _which(m: Match) -> Atomic:
    name = f"{m['how']}.{m['type']}"
    name = _SAME.get(name, name)
    if name not in _ATOMICS:
        raise Unsupported(f"no atomic {name}")
    return _ATOMICS[name]


def _atomic(b: Builder, s: Statement, m: Match) -> None:
    returns = m["stem"] == "atom"
    which, kind = _which(m), m["type"]
    second = which in (Atomic.CAS_B32, Atomic.CAS_B64)
    operands = list(_hinted(s, m, 2 + returns + second))
    olds = _elements(m, operands.pop(0)) if returns else ()
    address, values = operands[0], _elements(m, operands[1])
    op = Op.ATOMIC_SHARED if _space(m) == "shared" else Op.ATOMIC_GLOBAL
    for index, value in enumerate(values):
        slot, offset = b.address(address, _space(m))
        named = {A: slot, B: b.read(value, kind), F: which, G: _BYTES[kind]}
        if second:
            named[C] = b.read(operands[2], kind)
        if returns and not isinstance(olds[index], Ignored):
            named[D] = b.write(olds[index], kind)
        b.emit(op, named, immediate=offset + index * _BYTES[kind])


# Copies of threads


def _copy(b: Builder, s: Statement, m: Match) -> None:
    operands = counted(s, 3 + bool(m["hint"]), 4 + bool(m["hint"]))
    present = [one for one in operands if one is not None][: -1 if m["hint"] else None]
    size = literal(present[2], "a size")
    if size not in ((16,) if m["cache"] == "cg" else (4, 8, 16)):
        raise Unsupported(f"a copy of {size} bytes")
    to, offset = b.address(present[0], "shared")
    origin, origin_offset = b.address(present[1], "global")
    named = {D: to, A: origin, C: origin_offset, F: size}
    if len(present) == 4:
        if isinstance(present[3], Register) and present[3].kind == "pred":
            raise Unsupported("a predicate that makes the copy ignore its source")
        named[B] = b.read(present[3])
    b.emit(Op.CP_ASYNC, named, immediate=offset)


def _wait(op: Op) -> Reader:
    def read(b: Builder, s: Statement, m: Match) -> None:
        groups = literal(exactly(s, 1)[0], "a number of groups")
        b.emit(op, {F: int(bool(m.groupdict().get("read")))} if op is Op.BULK_WAIT else {}, immediate=groups)

    return read


def _plain(op: Op, immediate: int = 0) -> Reader:
    def read(b: Builder, s: Statement, _: Match) -> None:
        exactly(s, 0)
        b.emit(op, immediate=immediate)

    return read


# Bulk copies


def _bulk_load(b: Builder, s: Statement, m: Match) -> None:
    target, source, size, barrier = _hinted(s, m, 4)
    to, offset = b.address(target, "shared")
    shared = m["source"].startswith("shared")
    origin = b.settled(source, "shared" if shared else "global")
    at, at_offset = b.address(barrier, "shared")
    named = {D: to, A: origin, B: b.read(size), C: at, G: at_offset}
    b.emit(Op.BULK_SHARED if shared else Op.BULK_LOAD, named, immediate=offset)


def _bulk_store(b: Builder, s: Statement, m: Match) -> None:
    target, source, size = _hinted(s, m, 3)
    to, offset = b.address(target, "global")
    named = {D: to, A: b.settled(source, "shared"), B: b.read(size)}
    if how := m.groupdict().get("how"):
        kind = m["type"]
        if how == "add" and kind in ("f16", "bf16"):
            raise Unsupported("a bulk reduction of 16-bit elements")
        b.emit(Op.BULK_REDUCE, named | {F: _which(m), G: _BYTES[kind]}, immediate=offset)
    else:
        b.emit(Op.BULK_STORE, named, immediate=offset)


def _tensor(b: Builder, operand: Operand, m: Match) -> dict[Column, int]:
    """Columns of `[map, {coordinates}]`."""
    if not isinstance(operand, Address) or operand.coordinates is None or operand.offset:
        raise Unsupported("expected a tensor map and its coordinates")
    coordinates = operand.coordinates.elements
    if len(coordinates) != int(m["rank"]):
        raise Unsupported(f"{len(coordinates)} coordinates for a tensor of rank {m['rank']}")
    listed = b.listed([b.read(one) for one in coordinates])
    return {A: b.read(operand.base, "b64"), E: listed, F: len(coordinates)}


def _tensor_load(b: Builder, s: Statement, m: Match) -> None:
    operands = list(_hinted(s, m, 3 + bool(m["multicast"])))
    to, offset = b.address(operands[0], "shared")
    at, at_offset = b.address(operands[2], "shared")
    named = {D: to, C: at, G: at_offset} | _tensor(b, operands[1], m)
    if m["multicast"]:
        named[B] = b.read(operands[3], "b16")
    b.emit(Op.TENSOR_LOAD, named, immediate=offset)


def _tensor_store(b: Builder, s: Statement, m: Match) -> None:
    tensor, source = _hinted(s, m, 2)
    at, offset = b.address(source, "shared")
    named = {D: at} | _tensor(b, tensor, m)
    if m.groupdict().get("how"):
        # The elements' type is the tensor map's; the row says which sum only by name.
        b.emit(Op.TENSOR_REDUCE, named | {G: Atomic.ADD_F32}, immediate=offset)
    else:
        b.emit(Op.TENSOR_STORE, named, immediate=offset)


_CACHE = r"""(?:\.L1::(?:evict_normal|evict_unchanged|evict_first|evict_last|no_allocate))?
             (?:\.L2::evict_(?:normal|first|last))?(?P<hint>\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"""
_HINT = r"(?P<hint>\.L2::cache_hint)?"
_SCOPE = r"\.(?:cta|cluster|gpu|sys)"
_TYPE = r"\.(?P<type>[bus](?:8|16|32|64)|f32|f64)"
_ORDER = rf"(?:\.weak|\.volatile|\.relaxed{_SCOPE}|\.%s{_SCOPE})?"
_VECTOR = r"(?:\.v(?P<vector>[248]))?"
_CTA = r"shared(?:::cta)?"
_ANY = r"shared(?:::cta|::cluster)?"
_COMPLETE = r"\.mbarrier::complete_tx::bytes"

FORMS = (
    Form.of(
        rf"ld{_ORDER % 'acquire'}\.(?P<space>param(?:::entry)?|global|{_ANY}|local){_ORDER % 'acquire'}"
        rf"(?:\.(?:ca|cg|cs|lu|cv))?(?:\.nc)?{_CACHE}{_VECTOR}{_TYPE}",
        _load,
    ),
    Form.of(
        rf"st{_ORDER % 'release'}\.(?P<space>global|{_ANY}|local){_ORDER % 'release'}(?:\.(?:wb|cg|cs|wt))?"
        rf"{_CACHE}{_VECTOR}{_TYPE}",
        _store,
    ),
    Form.of(
        rf"(?P<stem>atom|red)(?:\.(?:relaxed|acquire|release|acq_rel))?(?:{_SCOPE})?\.(?P<space>global|{_ANY})"
        rf"\.(?P<how>add|min|max|and|or|xor|exch|cas|inc)(?:\.noftz)?{_HINT}{_VECTOR}"
        r"\.(?P<type>[bus]32|[bus]64|f32|f64|f16x2|bf16x2)",
        _atomic,
    ),
    Form.of(rf"cp\.async\.(?P<cache>ca|cg)\.{_CTA}\.global{_HINT}(?:\.L2::(?:64|128|256)B)?", _copy),
    Form.of(r"cp\.async\.commit_group", _plain(Op.CP_COMMIT)),
    Form.of(r"cp\.async\.wait_group", _wait(Op.CP_WAIT)),
    Form.of(r"cp\.async\.wait_all", _plain(Op.CP_WAIT, -1)),
    Form.of(rf"cp\.async\.bulk\.shared::(?:cta|cluster)\.(?P<source>global|shared::cta){_COMPLETE}{_HINT}", _bulk_load),
    Form.of(rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{_HINT}", _bulk_store),
    Form.of(
        rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{_HINT}\.(?P<how>add|min|max|and|or|xor)"
        r"\.(?P<type>[bus](?:32|64)|f32|f64)",
        _bulk_store,
    ),
    Form.of(
        rf"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.shared::(?:cta|cluster)\.global(?:\.tile)?{_COMPLETE}"
        rf"(?P<multicast>\.multicast::cluster)?(?:\.cta_group::[12])?{_HINT}(?:\.cta_group::[12])?",
        _tensor_load,
    ),
    Form.of(
        rf"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group{_HINT}", _tensor_store
    ),
    Form.of(
        rf"cp\.reduce\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta\.(?P<how>add)(?:\.tile)?\.bulk_group{_HINT}",
        _tensor_store,
    ),
    Form.of(r"cp\.async\.bulk\.commit_group", _plain(Op.BULK_COMMIT)),
    Form.of(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?", _wait(Op.BULK_WAIT)),
)
