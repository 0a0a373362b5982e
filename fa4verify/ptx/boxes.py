"""One box of a tensor, between global and shared memory: the work of TMA, by address.

Contract: `copy_box` answers OK, or what it met first, with an address and a size in `report`: the map, shared memory,
global memory. Elements outside the tensor are zeros in shared memory and are left alone in global memory; elements
inside it must lie in the caller's memory.
A row of the box (its innermost dimension) follows the last one in shared memory. The pattern exchanges 16-byte chunks:
bits 4 ... of the address are XORed with bits 7 ...; rows are as wide as the pattern.
Numbers: PTX ISA, "Tensor: tiled mode", "Swizzling modes"; CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from fa4verify.ptx.atomics import update
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import Atomic
from fa4verify.ptx.raw import (
    copy_bytes,
    load_i64,
    load_u32,
    load_u64,
    store_i64,
    store_u64,
)
from fa4verify.ptx.tensor_map import ADDRESS, F32, read_map

OK, WRONG_MAP, OUTSIDE_SHARED, OUTSIDE_GLOBAL = range(4)
LOAD, STORE, ADD = range(3)
_ADD_F32 = int(Atomic.ADD_F32)
_CHUNK = 16
_LINE = 128  # bytes within which the pattern exchanges; shared addresses are multiples of it


@inner
def _report(report, kind, address, size):  # type: ignore[no-untyped-def]
    store_i64(report, address)
    store_i64(report + 8, size)
    return kind


@inner
def _in_memory(memory, ranges, address, size):  # type: ignore[no-untyped-def]
    for i in range(ranges):
        offset = address - load_i64(memory + 16 * i)
        if offset >= 0 and offset + size <= load_i64(memory + 16 * i + 8):
            return True
    return False


@inner
def _move(direction, shared, element, size):  # type: ignore[no-untyped-def]
    """Move `size` bytes, at most a chunk, or add its floats to global memory."""
    if direction == ADD:
        for i in range(0, size, 4):
            update(_ADD_F32, element + i, load_u32(shared + i), 0)
    elif size == _CHUNK:
        to, source = (shared, element) if direction == LOAD else (element, shared)
        store_u64(to, load_u64(source))
        store_u64(to + 8, load_u64(source + 8))
    elif direction == LOAD:
        copy_bytes(shared, element, size)
    else:
        copy_bytes(element, shared, size)


@inner
def box_bytes(tensor):  # type: ignore[no-untyped-def]
    """Bytes of a box in shared memory."""
    count = tensor.element_bytes
    for i in range(tensor.rank):
        count *= tensor.box[i]
    return count


@by_address
def copy_box(place, rank, coordinates, shared, size, offset, memory, ranges, direction, report):  # type: ignore[no-untyped-def]
    """Copy or add one box.

    place: address of the map; rank: of the instruction; coordinates: address of 5 int64. shared, size, offset: the
    CTA's shared memory, its bytes, where the box starts. memory, ranges: State.memory. On OK, report[0] is the box's
    bytes.
    """
    tensor = read_map(place)
    width = tensor.box[0] * tensor.element_bytes
    swizzle = tensor.swizzle
    if tensor.element_bytes == 0 or tensor.rank != rank or width % _CHUNK or (swizzle and width != _CHUNK << swizzle):
        return _report(report, WRONG_MAP, load_u32(place + 8), rank)
    if direction == ADD and tensor.element_type != F32:
        return _report(report, WRONG_MAP, load_u32(place + 8), rank)
    total = box_bytes(tensor)
    if offset + (total + _LINE - 1) // _LINE * _LINE > size:
        return _report(report, OUTSIDE_SHARED, offset, total)
    first = load_i64(coordinates)
    element_bytes = tensor.element_bytes
    for row in range(total // width):
        rest = row
        inside = True
        line = tensor.address
        for i in range(1, rank):
            p = load_i64(coordinates + 8 * i) + rest % tensor.box[i]
            rest //= tensor.box[i]
            inside = inside and p >= 0 and p < tensor.sizes[i]
            line += p * tensor.strides[i]
        line &= ADDRESS  # FA4's packed sequences start their tensor before the memory, far enough to wrap
        low, high = max(first, 0), min(first + tensor.box[0], tensor.sizes[0])  # elements of this row in the tensor
        if not inside or low >= high:
            low = high = first
        elif not _in_memory(memory, ranges, line + low * element_bytes, (high - low) * element_bytes):
            return _report(report, OUTSIDE_GLOBAL, line + low * element_bytes, (high - low) * element_bytes)
        begin, end = (low - first) * element_bytes, (high - first) * element_bytes
        line += first * element_bytes
        for at in range(0, width, _CHUNK):
            place_in_shared = offset + row * width + at
            place_in_shared ^= ((place_in_shared >> 7) & ((1 << swizzle) - 1)) << 4
            chunk = shared + place_in_shared
            start, stop = max(at, begin), min(at + _CHUNK, end)
            if direction == LOAD and stop - start < _CHUNK:
                store_u64(chunk, 0)
                store_u64(chunk + 8, 0)
            if start < stop:
                _move(direction, chunk + start - at, line + start, stop - start)
    return _report(report, OK, total, 0)
