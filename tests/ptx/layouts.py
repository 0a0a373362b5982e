"""Matrices laid out in shared memory and fragments in registers, element by element, as the PTX ISA's tables say.

Written against the tables of canonical layouts: atoms of 8 rows (K-major) or 8 k (MN-major), inside an atom the chunk
of 16 bytes exchanged with its row's number. The package computes flat addresses and XORs their bits instead.
"""

from __future__ import annotations

import numpy as np

WIDTH = {0: 16, 1: 32, 2: 64, 3: 128}  # bytes of a row of the pattern, by log2 of its chunks


def exchanged(chunk, line, swizzle):
    """Chunk that a line (row of the atom, 0 ... 7) holds at the place of `chunk`."""
    return chunk ^ (line >> (3 - swizzle) if swizzle else 0)


def k_major(memory, start, codes, swizzle):
    """Place codes (rows, k); returns leading and stride offsets. Atoms follow each other along rows, then k."""
    size = codes.itemsize
    rows, length = codes.shape
    width = WIDTH[swizzle]
    atom = 8 * width
    along_k = rows // 8 * atom
    for row in range(rows):
        for k in range(length):
            byte = k * size
            atom_k, inside = divmod(byte, width)
            chunk = exchanged(inside // 16, row % 8, swizzle)
            at = start + atom_k * along_k + row // 8 * atom + row % 8 * width + chunk * 16 + inside % 16
            memory[at : at + size] = codes[row, k : k + 1].view(np.uint8)
    return along_k, atom


def mn_major(memory, start, codes, swizzle):
    """Place codes (rows, k) with rows contiguous; atoms follow each other along k, then rows."""
    size = codes.itemsize
    rows, length = codes.shape
    width = WIDTH[swizzle]
    atom = 8 * width
    along_rows = length // 8 * atom
    for row in range(rows):
        for k in range(length):
            byte = row * size
            atom_row, inside = divmod(byte, width)
            chunk = exchanged(inside // 16, k % 8, swizzle)
            at = start + atom_row * along_rows + k // 8 * atom + k % 8 * width + chunk * 16 + inside % 16
            memory[at : at + size] = codes[row, k : k + 1].view(np.uint8)
    if swizzle:
        return along_rows, atom
    return atom, along_rows  # without a pattern leading and stride change places


def wgmma_descriptor(start, leading, stride, swizzle):
    """64-bit descriptor of wgmma."""
    mode = {0: 0, 3: 1, 2: 2, 1: 3}[swizzle]
    return as_signed(mode << 62 | stride >> 4 << 32 | leading >> 4 << 16 | (start & 0x3FFFF) >> 4)


def tcgen05_descriptor(start, leading, stride, swizzle):
    """64-bit descriptor of tcgen05."""
    mode = {0: 0, 3: 2, 2: 4, 1: 6}[swizzle]
    return as_signed(mode << 61 | 1 << 46 | stride >> 4 << 32 | leading >> 4 << 16 | (start & 0x3FFFF) >> 4)


def as_signed(value):
    return int(np.uint64(value).astype(np.int64))


def d_fragment(register, lane):
    """Row and column, in a warp's 16 rows, of an accumulator: wgmma and mma.m16n8k16."""
    return lane // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (lane % 4) + register % 2


def a_fragment(register, lane, part, parts):
    """Row and k of code `part` (of 2 or 4) of a register of A."""
    return lane // 4 + 8 * (register % 2), parts * (lane % 4) + part + 4 * parts * (register // 2)


def b_fragment(register, lane, part, parts):
    """K and column of code `part` of a register of B of mma.m16n8k16 or k32."""
    return parts * (lane % 4) + part + 4 * parts * register, lane // 4
