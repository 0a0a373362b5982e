"""tanh.approx.f32: every input that matters replayed against an H200's recording, and twins that must be noticed."""

from __future__ import annotations

import json
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic import mufu_tanh
from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.mufu_tanh import tanh_array

F32 = np.float32
RECORDING = json.loads((Path(__file__).parents[1] / "golden" / "tanh_h200.json").read_text())
SEGMENTS = [(int(e), j) for e, count in RECORDING["segments"].items() for j in range(count)]
ROWS = json.loads(files("fa4verify.arithmetic").joinpath("mufu_tables.json").read_text())["tanh"]
BLOCK = 2**12
LOW = np.arange(2**17, dtype=np.int64)
SQUARES = sum(np.where(LOW >> i & 1, LOW >> (18 - i), 0) for i in range(17)) >> 1


def segment_inputs(e: int, j: int, low: np.ndarray) -> np.ndarray:
    """Return inputs of segment j of octave e: the fraction is j, then 17 bits of `low`, then zeros."""
    count = RECORDING["segments"][str(e)]
    step = 2**23 // count
    return (((e + 127) << 23) + j * step + low * (step >> 17)).astype(np.uint32).view(F32)


@njit
def _apply(x, rounding, out):
    for i in range(x.size):
        out[i] = mufu_tanh.tanh_with(x[i], rounding)


def turned(x: np.ndarray, by: int) -> np.ndarray:
    out = np.empty_like(x)
    _apply(x, by, out)
    return out


def twin(row: list[int], block: slice) -> np.ndarray:
    """Return a block of a segment by another route: the squarer as defined, the cut to 24 bits by a shift."""
    v = (row[0] << 15) + row[1] * LOW[block] + 2 * row[2] * SQUARES[block]
    cut = np.frexp(v.astype(np.float64))[1] - 24
    return np.ldexp((v >> cut).astype(np.float64), cut - 39).astype(F32)


def crc(y: np.ndarray) -> str:
    return f"{zlib.crc32(y.astype('<f4').tobytes()):08x}"


def recorded_crcs(e: int, j: int) -> list[str]:
    return RECORDING["crc32"][str(e)][32 * j : 32 * (j + 1)]


def crcs(y: np.ndarray) -> list[str]:
    return [crc(y[i : i + BLOCK]) for i in range(0, y.size, BLOCK)]


def test_recorded_values():
    """The same results in the clear, so that a failure shows bits: 64 inputs a segment, carries among them."""
    low = np.array(RECORDING["lows"])
    for e, j in SEGMENTS:
        x = segment_inputs(e, j, low)
        want = np.array([int(code, 16) for code in RECORDING["values"][str(e)][j]], np.uint32)
        got = tanh_array(x).view(np.uint32)
        wrong = np.flatnonzero(got != want)
        assert wrong.size == 0, [(x[i].item().hex(), f"{got[i]:08x}", f"{want[i]:08x}") for i in wrong[:5]]


def test_every_segment_replayed():
    for e, j in SEGMENTS:
        assert crcs(tanh_array(segment_inputs(e, j, LOW))) == recorded_crcs(e, j), (e, j)


def test_odd():
    for e, j in SEGMENTS:
        x = segment_inputs(e, j, LOW)
        assert np.array_equal(tanh_array(-x), -tanh_array(x)), (e, j)


@njit
def _hash(exponent, rounding):
    total = np.uint64(0)
    for fraction in range(2**23):
        y = mufu_tanh.tanh_with(float_of(((exponent + 127) << 23) | fraction, np.float32(0)), rounding)
        total = total * np.uint64(1000003) + np.uint64(bits_of(y))
    return total


@pytest.mark.parametrize(("e", "recorded"), RECORDING["hashes"])
def test_all_inputs_of_an_octave(e, recorded):
    """The fraction bits below the 17 are ignored; x itself below 2^-8; 1 from 8 on."""
    assert f"{_hash(e, 0):016x}" == recorded


def test_a_sum_one_too_low_is_noticed_in_every_segment():
    for e, j in SEGMENTS:
        assert crcs(turned(segment_inputs(e, j, LOW), -1)) != recorded_crcs(e, j), (e, j)


def test_a_sum_one_too_high_is_noticed():
    """Only where c1 is odd: elsewhere every term of the sum is even, and the cut takes the one away."""
    odd = [(e, j) for (e, j), row in zip(SEGMENTS, ROWS, strict=True) if row[1] % 2]
    assert len(odd) == 8
    for e, j in SEGMENTS:
        noticed = crcs(turned(segment_inputs(e, j, LOW), 1)) != recorded_crcs(e, j)
        assert noticed == ((e, j) in odd), (e, j)


def noticed(row: list[int], recorded: list[str]) -> bool:
    """Compare a row's blocks from the last one on, where c1 and c2 weigh most, up to the first that differs."""
    return any(crc(twin(row, slice(BLOCK * k, BLOCK * (k + 1)))) != recorded[k] for k in reversed(range(32)))


@pytest.mark.parametrize("coefficient", [0, 1, 2])
def test_every_row_is_needed_as_it_is(coefficient):
    """Another implementation agrees with the recording, and no longer does with one coefficient one step off."""
    for (e, j), row in zip(SEGMENTS, ROWS, strict=True):
        if coefficient == 0:
            assert not noticed(row, recorded_crcs(e, j)), (e, j)
        for by in (1, -1):
            other = list(row)
            other[coefficient] += by
            assert noticed(other, recorded_crcs(e, j)), (e, j, by)


def test_specials():
    x, want = np.array([[int(code, 16) for code in pair] for pair in RECORDING["specials"]], np.uint32).T
    got = tanh_array(np.ascontiguousarray(x).view(F32))
    nan = (x & 0x7FFFFFFF) > 0x7F800000
    assert np.array_equal(got.view(np.uint32)[~nan], want[~nan])
    assert np.all(np.isnan(got[nan]))
    assert np.all(want[nan] == 0x7FFFFFFF)


def test_identity_and_one_in_every_octave_of_either_sign():
    fraction = np.array([0, 1, 2**22 - 1, 2**22, 2**23 - 1], np.uint32)
    for sign in (0, 1 << 31):
        for exponent in range(119):
            x = (sign | exponent << 23 | fraction).astype(np.uint32)
            assert np.array_equal(tanh_array(x.view(F32)).view(np.uint32), x)
        for exponent in range(130, 255):
            x = (sign | exponent << 23 | fraction).astype(np.uint32)
            assert np.all(tanh_array(x.view(F32)).view(np.uint32) == sign | 0x3F800000)


def test_not_monotone():
    y = np.concatenate([tanh_array(segment_inputs(e, j, LOW)) for e, j in SEGMENTS])
    assert np.count_nonzero(np.diff(y) < 0) == 26_240


def test_largest_relative_error():
    """In the octave of 1/2; a Turing is reported to have the same maximum (Juffa, NVIDIA developer forum 173291)."""
    x = np.arange(0x3F000000, 0x3F800000, dtype=np.uint32).view(F32)
    error = np.abs(tanh_array(x) / np.tanh(x.astype(np.float64)) - 1.0)
    assert f"{error.max():.4e}" == "1.1126e-05"
    assert x[error.argmax()] == float.fromhex("0x1.2e081ep-1")


def test_shape_is_kept_and_float32_alone_is_taken():
    assert tanh_array(np.ones((2, 0, 3), F32)).shape == (2, 0, 3)
    assert tanh_array(F32(1)).shape == ()
    with pytest.raises(TypeError, match="float64"):
        tanh_array(np.ones(2))


@njit
def _scalars(x, out):
    for i in range(x.size):
        out[i] = mufu_tanh.tanh(x[i])


def test_scalar_equals_array():
    x = (np.arange(2**17, dtype=np.uint32) * np.uint32(32749)).view(F32)
    out = np.empty_like(x)
    _scalars(x, out)
    assert np.array_equal(out, tanh_array(x), equal_nan=True)
