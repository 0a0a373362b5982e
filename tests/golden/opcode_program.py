"""A PTX kernel around one instruction of opcode_list: thread i reads element i of every operand, writes every result.

Contract: `program(opcode)` gives text whose parameters are pointers, operands first, then the lane masks of exchanges,
then results; elements of 64-bit kinds take 8 bytes, all others 4. Blocks have THREADS threads and the grid as many as
the elements need, so arrays must be padded to THREADS. Results that an exchange leaves alone keep UNTOUCHED.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from .opcode_inputs import BITS, draw, families, raw

if TYPE_CHECKING:
    import numpy.typing as npt

    from .opcode_list import Opcode

THREADS = 128
SHARED = 2048  # bytes of dynamic shared memory, for opcode_units
UNTOUCHED = 0xDEAD  # fits 16 bits
HEAD = ".version 8.8\n.target sm_{sm}a\n.address_size 64\n\n"


def _register(letter: str, i: int, kind: str) -> str:
    size = BITS[kind]
    return f"%{'p' if size == 1 else {16: 'h', 32: 'r', 64: 'l'}[size]}{letter}{i}"


def _declare(registers: list[tuple[str, str]]) -> list[str]:
    types = {"p": "pred", "h": "b16", "r": "b32", "l": "b64"}
    return [f".reg .{types[name[1]]} {name};" for name, _ in registers]


def _address(parameter: str, size: int) -> list[str]:
    return [f"ld.param.b64 %base, [{parameter}];", f"add.s64 %base, %base, %offset{8 if size == 64 else 4};"]


def _load(name: str, kind: str, parameter: str) -> list[str]:
    size, lines = BITS[kind], _address(parameter, BITS[kind])
    if size == 64:
        return [*lines, f"ld.global.b64 {name}, [%base];"]
    if size == 32:
        return [*lines, f"ld.global.b32 {name}, [%base];"]
    narrow = f"setp.ne.b32 {name}, %word, 0;" if size == 1 else f"cvt.u16.u32 {name}, %word;"
    return [*lines, "ld.global.b32 %word, [%base];", narrow]


def _store(name: str, kind: str, parameter: str) -> list[str]:
    size, lines = BITS[kind], _address(parameter, BITS[kind])
    if size in (32, 64):
        return [*lines, f"st.global.b{size} [%base], {name};"]
    widen = f"selp.b32 %word, 1, 0, {name};" if size == 1 else f"cvt.u32.u16 %word, {name};"
    return [*lines, widen, "st.global.b32 [%base], %word;"]


def program(opcode: Opcode, sm: int = 90) -> str:
    """Return the text of the kernel `probe`."""
    operands = [(_register("a", i, kind), kind) for i, kind in enumerate(opcode.operands)]
    results = [(_register("d", i, kind), kind) for i, kind in enumerate(opcode.results)]
    masks = [("%rm", "b32")] if opcode.exchange else []
    inputs = [*operands, *masks]
    parameters = [f"in{i}" for i in range(len(inputs))] + [f"out{i}" for i in range(len(results))]
    names = {f"a{i}": name for i, (name, _) in enumerate(operands)}
    names |= {f"d{i}": name for i, (name, _) in enumerate(results)} | {"m": "%rm", "take": "%ptake"}
    body = [
        "mov.u32 %thread, %tid.x;",
        "mov.u32 %block, %ctaid.x;",
        f"mad.lo.s32 %index, %block, {THREADS}, %thread;",
        "mul.wide.u32 %offset4, %index, 4;",
        "mul.wide.u32 %offset8, %index, 8;",
    ]
    for i, (name, kind) in enumerate(inputs):
        body += _load(name, kind, f"in{i}")
    body += ["and.b32 %lane, %thread, 31;"]
    if opcode.exchange:
        body += ["shr.u32 %bit, %rm, %lane;", "and.b32 %bit, %bit, 1;"]
        body += ["setp.ne.b32 %ptake, %bit, 0;"]
        for name, kind in results:
            body += [f"setp.ne.b32 {name}, 0, 0;" if kind == "pred" else f"mov.b{BITS[kind]} {name}, {UNTOUCHED};"]
    body += [opcode.statement.format(**names)]
    for i, (name, kind) in enumerate(results):
        body += _store(name, kind, f"out{i}")
    declarations = [
        *_declare([*inputs, *results]),
        ".reg .pred %ptake;",
        ".reg .b32 %thread, %block, %index, %word, %lane, %bit;",
        ".reg .b64 %offset4, %offset8, %base;",
    ]
    cell = ".extern .shared .align 1024 .b8 cell[];\n\n" if "cell" in opcode.statement else ""
    head = HEAD.format(sm=max(sm, opcode.sm)) + cell + ".visible .entry probe(\n"
    head += ",\n".join(f"\t.param .u64 {name}" for name in parameters) + f"\n)\n.reqntid {THREADS}\n{{\n"
    return head + "".join(f"\t{line}\n" for line in [*declarations, *body, "ret;"]) + "}\n"


def inputs(opcode: Opcode, family: str) -> tuple[list[npt.NDArray[np.uint64]], int]:
    """Return the operands of a family in whole blocks, an exchange's masks last, and the rows that count."""
    operands = draw(opcode.operands, family)
    rows = len(operands[0])
    if rows == 0:
        raise ValueError(f"{opcode.name}: no rows in {family}")
    padded = -(-rows // THREADS) * THREADS
    operands = [np.resize(x, padded) for x in operands]
    if opcode.exchange:
        masks = raw(f"{opcode.name}/{family}/mask", padded // 32) & np.uint64(0xFFFFFFFF)
        masks = np.where(np.arange(padded // 32) % 4 == 0, np.uint64(0xFFFFFFFF), masks)
        operands.append(np.repeat(masks, 32))
        rows = padded
    return operands, rows


def families_of(opcode: Opcode) -> tuple[str, ...]:
    """Return the families that are recorded for an instruction."""
    if opcode.only:
        return opcode.only
    if not opcode.exchange:
        return families(opcode.operands, opcode.extra)
    return tuple(dict.fromkeys(("edges", "random", *opcode.extra)))


def stored(values: npt.NDArray[np.uint64], kind: str) -> npt.NDArray[np.uint32 | np.uint64]:
    """Return values as the kernel reads and writes them: 8 bytes for 64-bit kinds, else 4."""
    return np.ascontiguousarray(values, "<u8" if BITS[kind] == 64 else "<u4")


def fingerprint(results: list[npt.NDArray[np.uint64]]) -> list[str]:
    """Return the CRC-32 of each result, and of the first one eight samples spread over its rows."""
    crc = [f"{zlib.crc32(np.ascontiguousarray(x, '<u8').tobytes()):08x}" for x in results]
    rows = len(results[0])
    return [*crc, " ".join(f"{int(results[0][i]):x}" for i in sorted({rows * k // 8 for k in range(8)}))]
