"""Scores under control: what a structured distribution needs to place a score exactly.

Contract: a raw score (q . k before `softmax_scale`) that is built here from a few channels is the same number in every
tensor core: products are exact, and all partial sums are multiples of one unit that span fewer bits than the
accumulator keeps (25 fraction bits below the largest term on Hopper and Blackwell, docs/arithmetic.md).
Fails first where a caller mixes a large base with a fine level: keep base / unit below 2^24.

Units: raw scores have none; times `nats_per_raw` they are the natural-logarithm scores of softmax; times `log2_per_raw`
they are the base-2 exponents that the kernels' exp2 sees and that the rescale threshold is compared with.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fa4verify.vocabulary import Case

Array = NDArray[np.float64]
Arrays = dict[str, Array]

# Significant bits of the formats. Structured inputs that use 8 are the same numbers in both 16-bit ones.
SIGNIFICAND_BITS = {"bf16": 8, "fp16": 11, "e4m3": 4, "e5m2": 3}
# Channels that `parts` fills: three of 8 bits hold a float32 significand. Three 8-bit numbers place a score to 12 or 9
# bits only, and to a multiple of the format's smallest number; the truth reads what they really add up to.
PARTS = 3
# KV tile of FA4 on Blackwell, and on Hopper for head dims 64 and 128 (docs/fa4.md, tiles).
TILE = 128


def nats_per_raw(case: Case) -> float:
    """Return what one unit of raw score is in nats: the softmax scale."""
    return 1.0 / math.sqrt(case.shape.head_dim) if case.softmax_scale is None else case.softmax_scale


def log2_per_raw(case: Case) -> float:
    """Return what one unit of raw score is in log2 units."""
    return nats_per_raw(case) * math.log2(math.e)


def leading(x: Array, bits: int) -> Array:
    """Round to `bits` significant bits, ties to even; exponents are not limited."""
    fraction, exponent = np.frexp(x)
    rounded: Array = np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits)
    return rounded


def parts(x: Array, dtype: str) -> Array:
    """Split numbers into PARTS numbers of the dtype's precision whose sum is x to 24 bits or better; one more axis."""
    bits, rest, found = SIGNIFICAND_BITS[dtype], np.asarray(x, dtype=np.float64), []
    for _ in range(PARTS):
        found.append(leading(rest, bits))
        rest = rest - found[-1]
    return np.stack(found, axis=-1)


def sizes(case: Case) -> dict[str, tuple[int, int, int, int]]:
    """Return the shapes of q, k and v."""
    shape = case.shape
    return {
        "q": (shape.batch, shape.seqlen_q, shape.heads, shape.head_dim),
        "k": (shape.batch, shape.seqlen_k, shape.heads_kv, shape.head_dim),
        "v": (shape.batch, shape.seqlen_k, shape.heads_kv, shape.head_dim_v),
    }


def zeros(case: Case) -> Arrays:
    """Return q, k and v filled with zeros."""
    return {name: np.zeros(size) for name, size in sizes(case).items()}


def row_levels(case: Case, generator: np.random.Generator, reach: float) -> Array:
    """Draw one raw score for each query, a multiple of 1/16 below `reach` in magnitude: (batch, seqlen_q, heads).

    Added to every key of a row it leaves softmax unchanged and moves LSE, so that rows differ, and the rounding of
    max * c to float32 takes either sign.
    """
    steps = int(reach * 16)
    return generator.integers(-steps, steps, size=sizes(case)["q"][:3], endpoint=True) / 16.0


def add_key_scores(case: Case, arrays: Arrays, raw: Array, *, channel: int = 0) -> int:
    """Add the raw score `raw` (batch, seqlen_k, heads_kv) of each key to all queries; return the next free channel."""
    arrays["q"][..., channel : channel + PARTS] = 1.0
    arrays["k"][..., channel : channel + PARTS] = parts(raw, case.dtype)
    return channel + PARTS


def add_query_scores(case: Case, arrays: Arrays, raw: Array, *, channel: int) -> int:
    """Add the raw score `raw` (batch, seqlen_q, heads) of each query to all keys; return the next free channel."""
    arrays["q"][..., channel : channel + PARTS] = parts(raw, case.dtype)
    arrays["k"][..., channel : channel + PARTS] = 1.0
    return channel + PARTS


def noise_factor(case: Case, nats: float, channels: int) -> float:
    """Return f so that f N(0, 1) in `channels` channels of q and k gives scores of that standard deviation."""
    return math.sqrt(nats / (nats_per_raw(case) * math.sqrt(channels)))


def powers_of_two(case: Case, period: int) -> Array:
    """Return V whose channel c is 2^-(c mod period) for every key: O equals it."""
    ladder = 2.0 ** -(np.arange(case.shape.head_dim_v) % period)
    return np.broadcast_to(ladder, sizes(case)["v"]).copy()
