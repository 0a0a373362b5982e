"""Decoding and preparing operands as vectors gives what the scalar preparation of mma.py gives, for every code."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic.formats import decode
from fa4verify.arithmetic.mma import ARCHITECTURES, prepare_a, prepare_b
from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.arithmetic.operands import FORMAT_OF, Code, decode_right, prepare_left


@njit
def right(words, values, exponents, rows, transposed, dtype):
    return decode_right(words.ctypes.data, values.ctypes.data, exponents.ctypes.data, rows, transposed, dtype)


@njit
def left(codes, source, values, exponents, scales, steps, k_step, dtype):
    prepare_left(
        codes.ctypes.data, source.ctypes.data, values.ctypes.data, exponents.ctypes.data, scales.ctypes.data, steps,
        k_step, dtype,
    )  # fmt: skip


def every_code(dtype):
    """All codes, in rows of 32 that mix signs and magnitudes, and rows of one magnitude each."""
    fmt = FORMAT_OF[dtype]
    count = 1 << fmt.width
    codes = np.arange(count, dtype=f"u{fmt.width // 8}")
    mixed = np.random.default_rng(7).permutation(codes)
    return np.concatenate([codes, mixed]).reshape(-1, 32)


@pytest.mark.parametrize("dtype", list(Code))
@pytest.mark.parametrize("transposed", [0, 1])
def test_right_is_what_prepare_b_makes(dtype, transposed):
    fmt = FORMAT_OF[dtype]
    step = ARCHITECTURES["sm90"].step(fmt.name)
    for block in every_code(dtype).reshape(-1, step.k_step, LANES)[:: 1 if fmt.width == 8 else 7]:
        with np.errstate(all="ignore"):
            expected = prepare_b(decode(block, fmt).astype(np.float32), step)
        # (k, n) codes; not transposed: a word holds the codes of successive k of one n
        words = block.copy() if transposed else np.ascontiguousarray(pack(block, fmt))
        values = np.full((step.k_step, LANES), 7, np.float32)
        exponents = np.full((step.k_step, LANES), 7, np.int32)
        largest = right(words, values, exponents, step.k_step, transposed, int(dtype))
        assert largest == expected.largest[0, 0]
        assert np.array_equal(exponents, expected.exponents[0])
        assert np.array_equal(values, expected.values[0], equal_nan=True)
        assert np.array_equal(np.signbit(values), np.signbit(expected.values[0]))


def pack(block, fmt):
    """(k, n) codes to (k / parts, n) words."""
    parts = 32 // fmt.width
    words = np.zeros((block.shape[0] // parts, block.shape[1]), np.uint32)
    for k, row in enumerate(block):
        words[k // parts] |= row.astype(np.uint32) << (k % parts * fmt.width)
    return words


@pytest.mark.parametrize(
    ("architecture", "dtype"), [*(("sm90", dtype) for dtype in Code), ("sm80", Code.BF16), ("sm80", Code.F16)]
)
def test_left_is_what_prepare_a_makes(architecture, dtype):
    fmt = FORMAT_OF[dtype]
    step = ARCHITECTURES[architecture].step(fmt.name)
    codes = every_code(dtype)
    codes = np.concatenate([codes, codes[:, :16].repeat(2, 1)])
    rows, length = codes.shape
    with np.errstate(all="ignore"):
        expected = prepare_a(decode(codes, fmt).astype(np.float32), step)
    source, values = np.full((2, rows, length), 7, np.float32)
    exponents = np.full((rows, length), 7, np.int32)
    scales = np.full((rows, length // step.k_step), 7, np.int32)
    left(codes, source, values, exponents, scales, scales.size, step.k_step, int(dtype))
    assert np.array_equal(scales, expected.scales[:rows])
    assert np.array_equal(exponents, expected.exponents[:rows])
    assert np.array_equal(source, expected.source, equal_nan=True)
    assert np.array_equal(values, expected.values[:rows], equal_nan=True)
    assert len(np.unique(scales)) > 8
