"""The 128-byte descriptor of a tensor that TMA copies boxes of, as CuTe's host code writes it.

Contract: `read_map` (compiled) and `decode` read one, `encode` writes one. What they do not know they refuse:
`read_map` answers with element_bytes 0.
The layout is no public interface. Found by compiling host code for tensors whose shapes, strides, boxes, element types
and patterns were varied one at a time (nvidia-cutlass-dsl 4.8.1, November 2026). Little-endian 32-bit words:

    0, 1   global address                         8 ... 12  sizes - 1, innermost first
    2      flags, below                           13        box[0] - 1 in the top byte; the rest 0
    3 ... 6  strides / 16, low words, 2nd dim. on  14        box[1] - 1 ... box[4] - 1, one a byte
    7      their bits 32 ... 35, 4 a stride        16 ...    not written

Flags: bit 1 set; 4-6 rank - 1; 7-10 element type; 13-14 log2 of the pattern's chunks; bits 17 on: hints for L2. Others
(conversion to TF32, NaN fill, interleaving ...) did not occur in FA4 and are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from numba import njit

from fa4verify.ptx.inner import inner
from fa4verify.ptx.raw import load_i64, load_u8, load_u32

MAX_RANK = 5
MAP_BYTES = 128
# Type in the flags, as observed: unsigned and signed integers share one, and so do one-byte floats with bytes.
ELEMENT_TYPES = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "f64": 9, "bf16": 10}
F32 = ELEMENT_TYPES["f32"]
_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2}
_BYTES_OF_TYPE = tuple({ELEMENT_TYPES[name]: size for name, size in _BYTES.items()}.get(i, 0) for i in range(16))
_MARK = 0x2
_KNOWN = 0x2 | 0x7 << 4 | 0xF << 7 | 0x3 << 13 | 0x7FFF << 17
ADDRESS = (1 << 57) - 1  # what a GPU has of an address; sums beyond wrap


@dataclass(frozen=True)
class TensorMap:
    """A tensor, innermost dimension first; `strides` in bytes, without the innermost, which is dense."""

    address: int
    element: str  # a key of ELEMENT_TYPES
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0  # log2 of the 16-byte chunks that the pattern exchanges: 1, 2, 3 for 32, 64, 128 bytes


def encode(tensor: TensorMap) -> bytes:
    """Write a descriptor; ValueError for what it cannot hold."""
    rank = len(tensor.sizes)
    if not 1 <= rank <= MAX_RANK or len(tensor.strides) != rank - 1 or len(tensor.box) != rank:
        raise ValueError(f"sizes {tensor.sizes}, strides {tensor.strides} and box {tensor.box} do not fit")
    if any(stride % 16 or not 0 <= stride < 1 << 40 for stride in tensor.strides):
        raise ValueError(f"strides {tensor.strides}: expected multiples of 16 below 2^40")
    if tensor.address % 16 or tensor.element not in ELEMENT_TYPES or not all(1 <= b <= 256 for b in tensor.box):
        raise ValueError(f"address {tensor.address:#x}, element {tensor.element!r} or box {tensor.box}")
    strides = [stride >> 4 for stride in tensor.strides] + [0] * (MAX_RANK - rank)
    sizes = [size - 1 for size in tensor.sizes] + [0] * (MAX_RANK - rank)
    box = [size - 1 for size in tensor.box] + [0] * (MAX_RANK - rank)
    flags = _MARK | (rank - 1) << 4 | ELEMENT_TYPES[tensor.element] << 7 | tensor.swizzle << 13
    high = sum(stride >> 32 << 4 * i for i, stride in enumerate(strides))
    words = [flags, *(stride & 0xFFFFFFFF for stride in strides), high, *sizes, box[0] << 24]
    words.append(sum(b << 8 * i for i, b in enumerate(box[1:])))
    return struct.pack("<Q13I", tensor.address, *words).ljust(MAP_BYTES, b"\0")


class Box(NamedTuple):
    """A descriptor as compiled code reads it; absent dimensions have size and box 1, stride 0."""

    element_bytes: int  # 0: refused
    element_type: int
    rank: int
    swizzle: int
    address: int
    sizes: tuple[int, int, int, int, int]
    strides: tuple[int, int, int, int, int]
    box: tuple[int, int, int, int, int]


@inner
def _stride(at, i):  # type: ignore[no-untyped-def]
    high = (load_u32(at + 28) >> (4 * i)) & 15
    return (int(load_u32(at + 12 + 4 * i)) | (int(high) << 32)) << 4


@njit(cache=True)
def read_map(at):  # type: ignore[no-untyped-def]
    """Read the descriptor at an address of this process."""
    flags = int(load_u32(at + 8))
    rank = ((flags >> 4) & 7) + 1
    element_type = (flags >> 7) & 15
    element_bytes = _BYTES_OF_TYPE[element_type]
    if flags & ~_KNOWN or flags & _MARK == 0 or rank > MAX_RANK or int(load_u32(at + 52)) & 0xFFFFFF:
        element_bytes = 0
    return Box(
        element_bytes, element_type, rank, (flags >> 13) & 3, load_i64(at) & ADDRESS,
        (
            int(load_u32(at + 32)) + 1, int(load_u32(at + 36)) + 1, int(load_u32(at + 40)) + 1,
            int(load_u32(at + 44)) + 1, int(load_u32(at + 48)) + 1,
        ),
        (element_bytes, _stride(at, 0), _stride(at, 1), _stride(at, 2), _stride(at, 3)),
        (
            int(load_u8(at + 55)) + 1, int(load_u8(at + 56)) + 1, int(load_u8(at + 57)) + 1, int(load_u8(at + 58)) + 1,
            int(load_u8(at + 59)) + 1,
        ),
    )  # fmt: skip


def decode(data: bytes) -> TensorMap:
    """Read a descriptor; ValueError for one that this machine refuses."""
    import ctypes

    held = ctypes.create_string_buffer(data, MAP_BYTES)
    read = read_map(ctypes.addressof(held))
    if read.element_bytes == 0:
        raise ValueError(f"tensor map with flags {struct.unpack_from('<I', data, 8)[0]:#x}: not known")
    name = next(name for name, number in ELEMENT_TYPES.items() if number == read.element_type)
    rank = read.rank
    return TensorMap(read.address, name, read.sizes[:rank], read.strides[1:rank], read.box[:rank], read.swizzle)
