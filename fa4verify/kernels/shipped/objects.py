"""The two ELF files between FA4's compiled host code and us: its relocatable object, and a library of addresses.

Contract: `undefined_symbols` lists what an object takes from elsewhere; `renamed` lets it take them under other names;
`absolute_library` is a shared object without code or data, whose dynamic symbols are absolute addresses (SHN_ABS), so
that a linker finds ctypes callbacks by name. Renaming is needed because FA4 loads the real CUDA runtime with
RTLD_GLOBAL, and LLVM's JITLink asks the process before the libraries it is given. Giving the object absolute symbols
instead of a library does not work: JITLink (nvidia-cutlass-dsl 4.8.1) knows no SHN_ABS in a relocatable file.

64-bit little-endian ELF only (x86-64, AArch64); anything else is refused. glibc honours SHN_ABS from 2.28 on, which the
DSL needs as well. Source: ELF-64 Object File Format, version 1.5; `man elf`.
"""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_IDENT = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)  # 64 bits, little-endian, version 1, System V
MACHINES = {"x86_64": 62, "aarch64": 183}

_SHT_SYMTAB = 2
_SHN_UNDEF, _SHN_ABS = 0, 0xFFF1
_GLOBAL_FUNCTION = (1 << 4) | 2
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_READ_WRITE = 6


class _Symbol(NamedTuple):
    """One undefined symbol: its name, where its entry lies, and where the header of its string table lies."""

    name: str
    entry: int
    strings_header: int


def undefined_symbols(object_file: bytes) -> frozenset[str]:
    """Return the names that a relocatable object takes from elsewhere.

    Raises
    ------
    ValueError
        Not a 64-bit little-endian ELF file.
    """
    return frozenset(symbol.name for symbol in _undefined(object_file) if symbol.name)


def renamed(object_file: bytes, names: Mapping[str, str]) -> bytes:
    """Return the object with undefined symbols under new names; the old string tables stay where they are."""
    patched = bytearray(object_file)
    symbols = [symbol for symbol in _undefined(object_file) if symbol.name in names]
    for header in {symbol.strings_header for symbol in symbols}:
        offset, size = _SECTION.unpack_from(object_file, header)[4:6]
        table = bytearray(object_file[offset : offset + size])
        for symbol in symbols:
            if symbol.strings_header == header:
                struct.pack_into("<I", patched, symbol.entry, len(table))
                table += names[symbol.name].encode() + b"\0"
        struct.pack_into("<QQ", patched, header + 24, len(patched), len(table))
        patched += table
    return bytes(patched)


def _undefined(object_file: bytes) -> Iterator[_Symbol]:
    if object_file[:6] != _IDENT[:6]:
        raise ValueError("not a 64-bit little-endian ELF file")
    *_, sections, _, _, _, _, entry_size, count, _ = _HEADER.unpack_from(object_file)
    for index in range(count):
        header = sections + index * entry_size
        _, kind, _, _, offset, size, link, *_ = _SECTION.unpack_from(object_file, header)
        if kind != _SHT_SYMTAB:
            continue
        strings_header = sections + link * entry_size
        strings = _SECTION.unpack_from(object_file, strings_header)[4]
        for entry in range(offset + _SYMBOL.size, offset + size, _SYMBOL.size):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(object_file, entry)
            if section == _SHN_UNDEF:
                start = strings + name
                end = object_file.index(b"\0", start)
                yield _Symbol(object_file[start:end].decode(), entry, strings_header)


def absolute_library(addresses: Mapping[str, int], soname: str) -> bytes:
    """Return a shared object whose dynamic symbols are these addresses."""
    strings = bytearray(b"\0")
    symbols = bytearray(_SYMBOL.size)
    for name, address in addresses.items():
        symbols += _SYMBOL.pack(len(strings), _GLOBAL_FUNCTION, 0, _SHN_ABS, address, 0)
        strings += name.encode() + b"\0"
    soname_at = len(strings)
    strings += soname.encode() + b"\0"
    # One bucket, and every symbol chained to the next.
    chain = [0, *(index + 1 for index in range(1, len(addresses))), *([0] if addresses else [])]
    buckets = struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if addresses else 0, *chain)

    hash_at = _HEADER.size + 3 * _PROGRAM.size
    symbols_at = _aligned(hash_at + len(buckets))
    strings_at = symbols_at + len(symbols)
    dynamic_at = _aligned(strings_at + len(strings))
    tags = (
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, _SYMBOL.size),
        (_DT_SONAME, soname_at),
        (_DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    end = dynamic_at + len(dynamic)
    machine = MACHINES[platform.machine()]
    header = _HEADER.pack(
        _IDENT, 3, machine, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _PROGRAM.size, 3, _SECTION.size, 0, 0
    )
    segments = (
        _PROGRAM.pack(_PT_LOAD, _READ_WRITE, 0, 0, 0, end, end, 0x10000),
        _PROGRAM.pack(_PT_DYNAMIC, _READ_WRITE, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
        _PROGRAM.pack(_PT_GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),
    )
    image = bytearray(end)
    parts = (
        (0, header + b"".join(segments)),
        (hash_at, buckets),
        (symbols_at, symbols),
        (strings_at, strings),
        (dynamic_at, dynamic),
    )
    for at, part in parts:
        image[at : at + len(part)] = part
    return bytes(image)


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
