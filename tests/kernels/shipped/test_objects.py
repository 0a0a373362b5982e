"""The linker's own tools and the dynamic loader judge the ELF files that we write and rewrite."""

import ctypes
import os
import struct

import pytest

from fa4verify.kernels.shipped.objects import absolute_library, renamed, undefined_symbols


def relocatable(undefined, defined=("local",)):
    """Return a minimal ELF object, written here a second time: null section, .strtab, .symtab."""
    names = [*defined, *undefined]
    table = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    symbols = bytes(24)
    for name in names:
        at = table.index(b"\0" + name.encode() + b"\0") + 1
        section = 0 if name in undefined else 1
        symbols += struct.pack("<IBBHQQ", at, 0x10, 0, section, 0, 0)
    table_at, symbols_at = 64, 64 + len(table)
    sections_at = symbols_at + len(symbols)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, 3, 1)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, table_at, len(table), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, symbols_at, len(symbols), 1, 1, 8, 24)
    return header + table + symbols + sections


def loaded(image):
    descriptor = os.memfd_create("library")
    os.write(descriptor, image)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_the_loader_finds_every_absolute_symbol(count):
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    callbacks = {f"f{i}": kind(lambda x, i=i: 1000 * i + x) for i in range(count)}
    addresses = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in callbacks.items()}
    library = loaded(absolute_library(addresses, f"lib{count}.so"))
    assert [getattr(library, f"f{i}")(3) for i in range(count)] == [1000 * i + 3 for i in range(count)]
    with pytest.raises(AttributeError, match="undefined symbol"):
        library.missing  # noqa: B018


def test_two_libraries_stand_side_by_side():
    kind = ctypes.CFUNCTYPE(ctypes.c_int)
    one, two = kind(lambda: 1), kind(lambda: 2)
    libraries = [
        loaded(absolute_library({"f": ctypes.cast(f, ctypes.c_void_p).value}, f"lib{n}.so"))
        for n, f in (("one", one), ("two", two))
    ]
    assert [library.f() for library in libraries] == [1, 2]


def test_undefined_symbols_are_those_of_no_section():
    assert undefined_symbols(relocatable(("_cudaLaunch", "memcpy"))) == {"_cudaLaunch", "memcpy"}
    assert undefined_symbols(relocatable(())) == set()


def test_renaming_touches_only_what_is_named():
    before = relocatable(("_cudaLaunch", "Launch", "memcpy"))
    after = renamed(before, {"_cudaLaunch": "a_much_longer_name", "local": "never", "absent": "never"})
    assert undefined_symbols(after) == {"a_much_longer_name", "Launch", "memcpy"}
    assert renamed(before, {}) == before


def test_a_name_that_is_the_tail_of_another_survives():
    """Linkers share tails in string tables: `Launch` may lie inside `_cudaLaunch`."""
    image = relocatable(("_cudaLaunch", "Launch"))
    long = image[64:].index(b"_cudaLaunch\0")
    own, inside = (struct.pack("<IB", at, 0x10) for at in (long + len("_cudaLaunch") + 1, long + len("_cuda")))
    shared = image.replace(own, inside)
    assert shared != image
    assert undefined_symbols(shared) == {"_cudaLaunch", "Launch"}
    assert undefined_symbols(renamed(shared, {"_cudaLaunch": "other"})) == {"other", "Launch"}


@pytest.mark.parametrize("image", [b"", b"MZ" + bytes(80), b"\x7fELF\x01\x01\x01" + bytes(80)])
def test_other_files_are_refused(image):
    with pytest.raises(ValueError, match="ELF"):
        undefined_symbols(image)
