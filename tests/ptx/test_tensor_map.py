"""Descriptors of tensors against what CuTe's host code wrote, and there and back."""

from __future__ import annotations

import struct

import pytest

from fa4verify.ptx.tensor_map import TensorMap, decode, encode

ADDRESS = 0x7F0123456000
# Written by nvidia-cutlass-dsl 4.8.1 (sm_90a) for tensors of 256 x 96 (x 5 (x 7)) elements, dense, and boxes of 16 rows
# as wide as the pattern: element, swizzle, rank, flags, strides, box. Bits 18 and 21 of the flags are hints for L2.
WRITTEN = [
    ("bf16", 0, 2, 0x00040512, (0x20, 0, 0, 0), 8),
    ("bf16", 1, 2, 0x00042512, (0x20, 0, 0, 0), 16),
    ("bf16", 2, 2, 0x00044512, (0x20, 0, 0, 0), 32),
    ("bf16", 3, 2, 0x00046512, (0x20, 0, 0, 0), 64),
    ("bf16", 3, 3, 0x00246522, (0x20, 0xC00, 0, 0), 64),
    ("bf16", 3, 4, 0x00246532, (0x20, 0xC00, 0x3C00, 0), 64),
    ("f16", 3, 2, 0x00046312, (0x20, 0, 0, 0), 64),
    ("f32", 0, 2, 0x00040392, (0x40, 0, 0, 0), 4),
    ("f32", 2, 2, 0x00044392, (0x40, 0, 0, 0), 16),
    ("u32", 3, 2, 0x00046112, (0x40, 0, 0, 0), 32),
    ("u8", 3, 2, 0x00046012, (0x10, 0, 0, 0), 128),
    ("u16", 3, 2, 0x00046092, (0x20, 0, 0, 0), 64),
    ("u64", 3, 2, 0x00246212, (0x80, 0, 0, 0), 16),
    ("f64", 3, 2, 0x00246492, (0x80, 0, 0, 0), 16),
]
HINTS = 0x00240000


def as_written(rank, flags, strides, width):
    sizes = [255, 95, 4, 6][:rank] + [0] * (5 - rank)
    words = [flags, *strides, 0, *sizes, (width - 1) << 24, 15]
    return struct.pack("<Q13I", ADDRESS, *words) + b"\xd6" * 68  # what follows is left as it was


@pytest.mark.parametrize(("element", "swizzle", "rank", "flags", "strides", "width"), WRITTEN)
def test_what_cute_writes(element, swizzle, rank, flags, strides, width):
    data = as_written(rank, flags, strides, width)
    expected = TensorMap(
        ADDRESS, element, (256, 96, 5, 7)[:rank], tuple(16 * s for s in strides[: rank - 1]),
        (width, 16, 1, 1)[:rank], swizzle,
    )  # fmt: skip
    assert decode(data) == expected
    own = encode(expected)
    assert own[:8] == data[:8]
    assert own[12:60] == data[12:60]
    assert struct.unpack_from("<I", own, 8)[0] == flags & ~HINTS


@pytest.mark.parametrize("stride", [16, (1 << 36) - 16, 1 << 36, (1 << 40) - 16])
def test_large_tensors_there_and_back(stride):
    tensor = TensorMap(1 << 46, "u8", (2**32, 1, 2**31, 3, 2), (stride, 16, stride, 32), (256, 1, 2, 256, 7), 0)
    assert decode(encode(tensor)) == tensor


@pytest.mark.parametrize("bit", [0, 2, 3, 11, 12, 15, 16])
def test_unknown_flags_are_refused(bit):
    data = bytearray(encode(TensorMap(ADDRESS, "f16", (64, 8), (128,), (64, 8), 3)))
    struct.pack_into("<I", data, 8, struct.unpack_from("<I", data, 8)[0] | 1 << bit)
    with pytest.raises(ValueError, match="not known"):
        decode(bytes(data))


@pytest.mark.parametrize(
    "wrong",
    [
        {"strides": (8,)},
        {"strides": (1 << 40,)},
        {"strides": ()},
        {"box": (257, 1)},
        {"box": (0, 1)},
        {"element": "f8"},
        {"address": ADDRESS + 8},
    ],
)
def test_what_cannot_be_written(wrong):
    good = {"address": ADDRESS, "element": "f16", "sizes": (64, 8), "strides": (128,), "box": (64, 8), "swizzle": 0}
    encode(TensorMap(**good))
    with pytest.raises(ValueError, match=r"expected|do not fit|address"):
        encode(TensorMap(**(good | wrong)))
