"""Scores placed one by one: stairs of maxima, ties, dominant keys. The numbers are exact in the case's dtype."""

import math

import numpy as np

from fa4verify.cases.distributions.gradients import one_signed
from fa4verify.cases.distributions.scores import (
    TILE,
    Array,
    Arrays,
    add_key_scores,
    add_query_scores,
    leading,
    log2_per_raw,
    noise_factor,
    powers_of_two,
    row_levels,
    sizes,
    zeros,
)
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case


def max_staircase(
    case: Case,
    stream: Stream,
    delta: float = 7.9,
    gap: float = 12.0,
    spread: float = 1.0,
    column: int | None = None,
) -> Arrays:
    """Maxima that rise by `delta` from one KV tile of 128 keys to the tile visited next.

    Detects a wrong rescale on either side of the threshold (8 log2 units in FA4), a maximum of this tile only (falling
    stairs), and the coherent error of P that a stale maximum causes. Tiles are visited from the last key to the first.

    Parameters
    ----------
    delta
        Rise for each visited tile, in log2 units of the scaled score; negative falls.
    gap
        How far the other keys of a tile lie below its maximum on average, in log2 units.
    spread
        Standard deviation of the other keys' scores, in nats; they differ from query to query.
    column
        Column of the maximum in each tile; None draws one for each tile.

    Check: tile maxima, computed from the rounded tensors, rise by `delta` to within 2^-20 of the largest level. With
    softmax_scale = ln 2 a raw score is its exponent, and delta = 8 is met exactly.
    """
    arrays, (batch, seqlen_k, heads_kv, head_dim) = zeros(case), sizes(case)["k"]
    tiles = -(-seqlen_k // TILE)
    key = np.arange(seqlen_k)
    level = np.broadcast_to((delta * (tiles - 1 - key // TILE))[None, :, None], (batch, seqlen_k, heads_kv))
    width = np.minimum(TILE, seqlen_k - np.arange(tiles) * TILE)[None, :, None]
    drawn = stream("column").random((batch, tiles, heads_kv)) if column is None else np.full((1, 1, 1), column / TILE)
    columns = np.broadcast_to(np.floor(drawn * width), (batch, tiles, heads_kv))
    top = (key % TILE)[None, :, None] == columns[:, key // TILE]
    channel = add_key_scores(case, arrays, (level - np.where(top, 0.0, gap)) / log2_per_raw(case))
    factor = noise_factor(case, spread, head_dim - channel)
    for name in ("q", "k"):
        arrays[name][..., channel:] = factor * stream(name).standard_normal(arrays[name][..., channel:].shape)
    arrays["k"][..., channel:][top] = 0.0
    arrays["v"] = stream("v").standard_normal(sizes(case)["v"])
    return arrays


def repeated_maxima(case: Case, stream: Stream, count: int = 2, tail: float = 18.0, reach: float = 8.0) -> Arrays:
    """Several keys that share the row maximum exactly, the others far below it, and V < 0 everywhere.

    Detects biased rounding of O: ties of the large terms are always broken by a tail of one sign. With a stale
    maximum the tied keys share one rounding error of P that the row sum does not see. In a backward dout > 0, so that
    the bias reaches delta.

    Parameters
    ----------
    count
        Number of keys at the maximum, drawn for each KV head.
    tail
        How far the other keys lie below, in log2 units.
    reach
        Largest common raw score that a row adds to all keys.

    Check (closed form): O is the mean V of the tied keys to within seqlen_k * 2^-tail; exactly `count` keys tie.
    """
    arrays, (batch, seqlen_k, heads_kv, _) = zeros(case), sizes(case)["k"]
    order = np.argsort(stream("position").random((batch, seqlen_k, heads_kv)), axis=1)
    below = np.where(np.argsort(order, axis=1) < count, 0.0, -tail)
    channel = add_key_scores(case, arrays, leading(below / log2_per_raw(case), 20))
    add_query_scores(case, arrays, row_levels(case, stream("q"), reach), channel=channel)
    arrays["v"] = -0.5 - stream("v").random(sizes(case)["v"])
    return arrays if case.operation == "forward" else {**arrays, "dout": one_signed(case, stream)}


def constant_rows(case: Case, stream: Stream, delta: float = 0.3, reach: float = 8.0) -> Arrays:
    """One key, visited first, at the maximum and all others exactly `delta` below it; V is a power of two.

    Detects a numerator and a denominator that do not see the same P: the rounding error of 2^-delta is the same for
    all keys and does not average out. Also P truncated in place of rounded, and a polynomial whose error at one
    fraction is large: its share of the columns shows in LSE.

    Parameters
    ----------
    delta
        Distance from the maximum, in log2 units; 0 makes all scores equal.
    reach
        Largest common raw score that a row adds to all keys.

    Check (closed form): O is V exactly, LSE the row's score + log(1 + (n - 1) 2^-delta).
    """
    arrays, size = zeros(case), sizes(case)["k"][:3]
    below = np.full(size, -delta / log2_per_raw(case))
    below[:, -1:] = 0.0
    # 20 bits leave room for the row's level in a float32 significand.
    channel = add_key_scores(case, arrays, leading(below, 20))
    add_query_scores(case, arrays, row_levels(case, stream("q"), reach), channel=channel)
    arrays["v"] = powers_of_two(case, 4)
    return arrays


def tail_mass(case: Case, stream: Stream, gap: float = 10.1, reach: float = 8.0) -> Arrays:
    """One key, visited first, at the maximum and all others a large `gap` below it; V is a power of two.

    Detects a tail that is lost from the numerator (P below the smallest subnormal: 2^-25 in fp16, 2^-10 in e4m3) while
    the row sum counts it, so that O shrinks.

    Parameters
    ----------
    gap
        Distance from the maximum, in log2 units.
    reach
        Largest common raw score that a row adds to all keys.

    Check (closed form): O is V exactly; the tail's share of the mass is (n - 1) 2^-gap / (1 + (n - 1) 2^-gap).
    """
    return constant_rows(case, stream, delta=gap, reach=reach)


def onehot_ladder(case: Case, stream: Stream, low: int = 8, high: int = 24, column: int | None = None) -> Arrays:
    """One dominant key with a raw score of 2^k, where k climbs from row to row.

    Detects the residual of x = S * c - fl(max * c): P of the only key that counts is not 1, and LSE is off by half an
    ulp of the exponent. Also index errors, since O is one row of V.

    Parameters
    ----------
    low, high
        First and last k; row i has k = low + i mod (high - low + 1).
    column
        Index of the dominant key; None draws one for each KV head.

    Check (closed form): O is V of the dominant key, LSE is 2^k * scale; all other keys lie 64 log2 units or more below.
    """
    arrays, (batch, seqlen_k, heads_kv, _) = zeros(case), sizes(case)["k"]
    drawn = stream("column").integers(0, seqlen_k, size=(batch, 1, heads_kv))
    top = np.arange(seqlen_k)[None, :, None] == (drawn if column is None else column)
    climb = low + np.arange(case.shape.seqlen_q) % (high - low + 1)
    below = 2.0 ** np.ceil(np.log2(64.0 / log2_per_raw(case)))
    # Half of the exponent in q and half in k, since fp16 ends at 2^16.
    arrays["q"][..., 0] = (2.0 ** (climb - 9))[None, :, None]
    arrays["k"][..., 0] = np.where(top, 2.0**9, -(2.0**9))
    arrays["q"][..., 1] = 1.0
    arrays["k"][..., 1] = np.where(top, 0.0, -below)
    arrays["v"] = stream("v").standard_normal(sizes(case)["v"])
    return arrays


def dominant_column(
    case: Case,
    stream: Stream,
    columns: tuple[int, ...] = tuple(range(TILE)),
    gap: float = 64.0,
    reach: float = 16.0,
) -> Arrays:
    """One dominant key for each query; its column in the KV tile moves through `columns` from row to row.

    Detects which columns use the polynomial: in those, half of the rows (a negative residual of S * c - fl(max * c))
    have LSE off by -8.5e-5, in the others by less than 1e-6. Gives the lane map of a kernel; also finds index errors.

    Parameters
    ----------
    columns
        Columns of the 128-key tile; row i uses columns[i mod n] in tile (i div n) mod (number of tiles).
    gap
        Least distance of the other keys from the dominant one, in log2 units.
    reach
        Largest raw score of a dominant key; it is drawn for each row in steps of 1/16.

    Check (closed form): O is V of the dominant key, LSE its scaled score; the position from the rounded tensors.
    """
    arrays, (_, seqlen_k, _, head_dim) = zeros(case), sizes(case)["k"]
    row, key = np.arange(case.shape.seqlen_q), np.arange(seqlen_k)
    tile = (row // len(columns)) % (seqlen_k // TILE)
    target = np.asarray(columns)[row % len(columns)] + TILE * tile
    bits = max(1, math.ceil(math.log2(seqlen_k)))
    channel = add_query_scores(case, arrays, row_levels(case, stream("q"), reach), channel=0)
    copies = (head_dim - channel - 1) // bits
    # Keys whose index differs in one bit lie 2 * copies * amplitude below the one that matches.
    amplitude = 2.0 ** math.ceil(math.log2(gap / (2 * copies * log2_per_raw(case))))
    arrays["q"][..., channel] = 1.0
    arrays["k"][..., channel] = -amplitude * bits * copies
    code = slice(channel + 1, channel + 1 + bits * copies)
    arrays["q"][..., code] = (amplitude * _signs(target, bits, copies))[None, :, None]
    arrays["k"][..., code] = _signs(key, bits, copies)[None, :, None]
    arrays["v"] = stream("v").standard_normal(sizes(case)["v"])
    return arrays


def _signs(index: np.ndarray, bits: int, copies: int) -> Array:
    """Return the binary digits of each index as +-1, repeated: (n, bits * copies)."""
    digits = (index[:, None] >> np.arange(bits)) & 1
    return np.tile(2.0 * digits - 1.0, (1, copies))
