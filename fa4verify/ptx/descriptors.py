"""Descriptors of matrices in shared memory, the addresses they stand for, and the gathering of codes.

Contract: `wgmma_matrix` and `tcgen05_matrix` read a 64-bit descriptor into a Matrix; its `swizzle` is -1 where this
machine does not take it. `gather_left` and `gather_right` copy the codes of one instruction, 32 bytes of k a row, into
a worker's stage; they return -1, or the address of the first 16 bytes that lie outside the CTA's shared memory.
A matrix is a set of 16-byte chunks. K-major, a chunk holds codes of successive k of one row (m or n); MN-major, of
successive rows of one k. The 128-, 64- and 32-byte patterns exchange chunks: bits 4.. of the address in shared memory
are XORed with bits 7..; so start addresses need not lie on the pattern's 1024 bytes.
Numbers: PTX ISA, "Matrix descriptor" of wgmma and "Shared memory descriptor" of tcgen05, "Canonical layouts".
Not covered, and refused: base offsets, the 128-byte pattern of 32-byte atoms, absolute leading offsets (tcgen05).
"""

from __future__ import annotations

from typing import NamedTuple

from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.inner import inner
from fa4verify.ptx.raw import (
    copy_bytes,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from fa4verify.ptx.stage import PANEL_BYTES, ROW_BYTES


class Matrix(NamedTuple):
    """A matrix in shared memory: bytes, and log2 of the chunks that the pattern exchanges (0 none ... 3)."""

    start: int
    leading: int
    stride: int
    swizzle: int


@inner
def _matrix(descriptor, swizzle):  # type: ignore[no-untyped-def]
    return Matrix(
        (descriptor & 0x3FFF) << 4, ((descriptor >> 16) & 0x3FFF) << 4, ((descriptor >> 32) & 0x3FFF) << 4, swizzle
    )


@inner
def wgmma_matrix(descriptor):  # type: ignore[no-untyped-def]
    """Read a descriptor of wgmma: bits 62, 63 are 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes."""
    mode = (descriptor >> 62) & 3
    return _matrix(descriptor, -1 if (descriptor >> 49) & 7 else (4 - mode) & 3)


@inner
def tcgen05_matrix(descriptor):  # type: ignore[no-untyped-def]
    """Read a descriptor of tcgen05: bits 61 ... 63 are 0 none, 2 128 bytes, 4 64 bytes, 6 32 bytes; version 1."""
    mode = (descriptor >> 61) & 7
    other = (descriptor >> 46) & 0x7FFF  # version, base offset, absolute offset, zeros
    return _matrix(descriptor, -1 if mode & 1 or other != 1 else (4 - mode // 2) & 3)


@inner
def chunk_along_k(matrix, row, chunk):  # type: ignore[no-untyped-def]
    """Address of a K-major matrix's 16 bytes of a row, from byte 16 * chunk of k on."""
    if matrix.swizzle == 0:
        return matrix.start + (row >> 3) * matrix.stride + (row & 7) * 16 + chunk * matrix.leading
    address = matrix.start + (row >> 3) * matrix.stride + ((row & 7) << (4 + matrix.swizzle)) + chunk * 16
    return address ^ (((address >> 7) & ((1 << matrix.swizzle) - 1)) << 4)


@inner
def chunk_along_rows(matrix, k, chunk):  # type: ignore[no-untyped-def]
    """Address of an MN-major matrix's 16 bytes of one k, from byte 16 * chunk of its rows on."""
    if matrix.swizzle == 0:
        return matrix.start + chunk * matrix.stride + (k >> 3) * matrix.leading + (k & 7) * 16
    inside = chunk & ((1 << matrix.swizzle) - 1)
    address = matrix.start + (chunk >> matrix.swizzle) * matrix.leading + (k >> 3) * matrix.stride
    address += ((k & 7) << (4 + matrix.swizzle)) + inside * 16
    return address ^ (((address >> 7) & ((1 << matrix.swizzle) - 1)) << 4)


@by_address
def gather_left(base, size, start, leading, stride, swizzle, transposed, first, rows, code_bytes, out):  # type: ignore[no-untyped-def]
    """Copy `rows` rows from row `first` on to `out` (rows, ROW_BYTES); base, size: the CTA's shared memory."""
    matrix = Matrix(start, leading, stride, swizzle)
    if not transposed:
        for row in range(rows):
            for chunk in range(ROW_BYTES // 16):
                address = chunk_along_k(matrix, first + row, chunk)
                if address + 16 > size:
                    return address
                to = out + row * ROW_BYTES + chunk * 16
                store_u64(to, load_u64(base + address))
                store_u64(to + 8, load_u64(base + address + 8))
        return -1
    codes = 16 // code_bytes
    for k in range(ROW_BYTES // code_bytes):
        for chunk in range(rows // codes):
            address = chunk_along_rows(matrix, k, first // codes + chunk)
            if address + 16 > size:
                return address
            to = out + chunk * codes * ROW_BYTES + k * code_bytes
            for i in range(codes):
                if code_bytes == 2:
                    store_u16(to + i * ROW_BYTES, load_u16(base + address + 2 * i))
                else:
                    store_u8(to + i * ROW_BYTES, load_u8(base + address + i))
    return -1


@by_address
def gather_right(base, size, start, leading, stride, swizzle, transposed, first, rows, code_bytes, out):  # type: ignore[no-untyped-def]
    """Copy `rows` rows (n) of a matrix to rows `first` on of `out`, in panels as operands.decode_right reads them."""
    matrix = Matrix(start, leading, stride, swizzle)
    if not transposed:
        for row in range(rows):
            to = out + (first + row) // LANES * PANEL_BYTES + (first + row) % LANES * 4
            for chunk in range(ROW_BYTES // 16):
                address = chunk_along_k(matrix, row, chunk)
                if address + 16 > size:
                    return address
                for word in range(4):
                    store_u32(to + (4 * chunk + word) * 4 * LANES, load_u32(base + address + 4 * word))
        return -1
    codes = 16 // code_bytes
    for chunk in range(rows // codes):
        n = first + chunk * codes
        to = out + n // LANES * PANEL_BYTES + n % LANES * code_bytes
        for k in range(ROW_BYTES // code_bytes):
            address = chunk_along_rows(matrix, k, chunk)
            if address + 16 > size:
                return address
            copy_bytes(to + k * LANES * code_bytes, base + address, 16)
    return -1
