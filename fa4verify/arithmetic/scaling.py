"""Scales that bring numbers into the range of an 8-bit format, and back.

Contract: a scale is the largest magnitude of what shares it over the format's largest number, so that the largest
lands on the last code; 1 where everything is zero. It has SCALE_BITS significant bits and is rounded up: no number
leaves the range, and a dequantised number (4 + 20 bits) times another is exact in float64, which is what the certified
reference needs. `power_of_two` rounds up to one of those instead, as block scales in hardware (e8m0) are.
Fails first where one outlier sets the scale of a whole tensor: the rest then falls among the subnormals.
Numbers: amax over 448 is what FlashAttention-3 (arXiv:2407.08608, section 3.3) and every FP8 recipe take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import Format, round_to

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

SCALE_BITS = 20


def scales(largest: npt.ArrayLike, fmt: Format, *, power_of_two: bool = False) -> Array:
    """Return the scale of each group from its largest magnitude; float64 that float32 holds.

    Raises
    ------
    ValueError
        A magnitude that is not finite: no scale brings it into range.
    """
    wide = np.asarray(largest, np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("a tensor that holds inf or NaN has no scale: quantise it with scales = 'none'")
    exact = np.where(wide > 0, wide / fmt.max_finite, 1.0)
    exact = np.maximum(exact, 2.0**-100)  # below that nothing is left to scale; float32 still holds it
    fraction, exponent = np.frexp(exact)
    bits = 1 if power_of_two else SCALE_BITS
    rounded: Array = np.ldexp(np.ceil(np.ldexp(fraction, bits)), exponent - bits)
    return np.where(wide > 0, rounded, 1.0)


def largest_of_blocks(x: Array, rows: int) -> Array:
    """Return the largest magnitude of each block of `rows` tokens, (batch, heads, blocks) of (batch, tokens, heads, d).

    The last block may be short; without tokens there is no block.
    """
    batch, tokens, heads, width = x.shape
    blocks = -(-tokens // rows)
    padded = np.zeros((batch, blocks * rows, heads, width))
    np.abs(x, out=padded[:, :tokens])
    return padded.reshape(batch, blocks, rows, heads, width).max(axis=(2, 4), initial=0.0).transpose(0, 2, 1)


def per_token(blocks: npt.NDArray[np.floating], rows: int, tokens: int) -> Array:
    """Spread (batch, heads, blocks) over the tokens of each block: (batch, tokens, heads, 1)."""
    spread: Array = np.repeat(np.asarray(blocks, np.float64).transpose(0, 2, 1), rows, axis=1)[:, :tokens, :, None]
    return spread


def quantised(x: Array, scale: npt.ArrayLike, fmt: Format) -> Array:
    """Round x / scale to the format, saturating; a NaN stays one."""
    rounded: Array = round_to(np.where(np.isnan(x), np.nan, x / np.asarray(scale, np.float64)), fmt, saturate=True)
    return rounded
