"""A device's answers against the floor, input by input: what admits a GPU.

Contract: `compare(name, first, answers)` holds answers (uint32 bits, answers[i] to the input whose bits are first + i)
to the floor's function of that name and returns how many differ, the first that does, and a checksum of the answers. A
NaN equals any NaN. The floor's own compiled functions are called, those that the emulations call: no third copy of the
model could drift apart from them. Compiled without the interpreter's lock, so that threads share the blocks.
Checksums (the sum of splitmix64's finalizer over input and answer, mod 2^64) are those of tests/golden/mufu_h200.json
for blocks of 2^23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_ftz, float32_coefficients
from fa4verify.arithmetic.mufu import ex2, lg2, rcp
from fa4verify.arithmetic.mufu_tanh import tanh

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Bits = npt.NDArray[np.uint32]

MUFU = {name: f"{name}.approx{'' if name == 'tanh' else '.ftz'}.f32" for name in ("ex2", "rcp", "lg2", "tanh")}
# FA4's scalar exponential, the form that compiles for every target; degree 0 of POLY_EX2 is no tuple (docs/shipped.md).
DEGREES = tuple(sorted(POLY_EX2))[1:]
NAMES = (*MUFU, *(f"ex2_emulation_{degree}" for degree in DEGREES))
_ONE = np.float32(1.0)


class Difference(NamedTuple):
    """What `compare` found; `first` is the first unlike input's bits, with the device's answer and the floor's."""

    unlike: int
    first: tuple[int, int, int] | None
    checksum: int


@njit(cache=True, nogil=True)
def _ex2(first, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = bits_of(ex2(float_of(first + i, _ONE)))


@njit(cache=True, nogil=True)
def _rcp(first, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = bits_of(rcp(float_of(first + i, _ONE)))


@njit(cache=True, nogil=True)
def _lg2(first, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = bits_of(lg2(float_of(first + i, _ONE)))


@njit(cache=True, nogil=True)
def _tanh(first, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = bits_of(tanh(float_of(first + i, _ONE)))


@njit(cache=True, nogil=True)
def _emulation(first, coefficients, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = bits_of(ex2_emulation_ftz(float_of(first + i, _ONE), coefficients))


@njit(cache=True, nogil=True)
def _unlike(first, ours, theirs):  # type: ignore[no-untyped-def]
    count, where, total = 0, -1, np.uint64(0)
    for i in range(ours.size):
        have, want = theirs[i], ours[i]
        have = np.uint32(0x7FFFFFFF) if have & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000) else have
        want = np.uint32(0x7FFFFFFF) if want & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000) else want
        if have != want:
            where = i if count == 0 else where
            count += 1
        z = ((np.uint64(first + i) << np.uint64(32)) | np.uint64(have)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += z ^ (z >> np.uint64(31))
    return count, where, total


_MODELS: dict[str, Callable[[int, Bits], None]] = {"ex2": _ex2, "rcp": _rcp, "lg2": _lg2, "tanh": _tanh}


def model(name: str, first: int, count: int) -> Bits:
    """Return the floor's answers to `count` inputs whose bits begin at `first`."""
    out = np.empty(count, np.uint32)
    if name in _MODELS:
        _MODELS[name](first, out)
    else:
        _emulation(first, float32_coefficients(POLY_EX2[int(name.rpartition("_")[2])]), out)
    return out


def compare(name: str, first: int, answers: Bits) -> Difference:
    """Hold a device's answers to the floor's function `name` (one of NAMES)."""
    ours = model(name, first, answers.size)
    count, where, checksum = _unlike(first, ours, answers)
    found = None if count == 0 else (first + where, int(answers[where]), int(ours[where]))
    return Difference(count, found, int(checksum))
