"""Scores of extreme size: far below zero, beyond sentinels, across a softcap."""

import numpy as np

from fa4verify.cases.distributions.scores import (
    SIGNIFICAND_BITS,
    Arrays,
    add_key_scores,
    leading,
    nats_per_raw,
    sizes,
    zeros,
)
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case

# q of the base channel: splits a large raw score so that neither factor leaves the range of fp16.
BASE = 2.0**9
# Bits of structured values that are to be the same numbers, with exact products, in both 16-bit formats.
BITS = SIGNIFICAND_BITS["bf16"]


def large_logits(case: Case, stream: Stream, raw: float = -2.45e5, spread: float = 12.0) -> Arrays:
    """Integer raw scores near `raw`, far from zero.

    Detects a finite sentinel (-5e4, -1e5) in place of -inf for masked keys or for the first maximum: valid rows come
    out as zero, or masked keys win. Also loss of precision in max * c.

    Parameters
    ----------
    raw
        Where the scores lie, before `softmax_scale`; rounded to a multiple of 512.
    spread
        Standard deviation of the scores around it, raw.

    Check: scores computed from the rounded tensors are integers within 8 `spread` of `raw`; softmax of the scores minus
    `raw` gives the same O in float64.
    """
    arrays, channels = zeros(case), case.shape.head_dim - 2
    arrays["q"][..., :2] = BASE
    base = np.round(raw / BASE)
    arrays["k"][..., 0] = leading(base, BITS)
    arrays["k"][..., 1] = base - leading(base, BITS)
    sigma = np.sqrt(spread / np.sqrt(channels))
    for name in ("q", "k"):
        drawn = stream(name).standard_normal(arrays[name][..., 2:].shape)
        arrays[name][..., 2:] = np.round(sigma * drawn)
    arrays["v"] = stream("v").standard_normal(sizes(case)["v"])
    return arrays


def negative_rows(case: Case, stream: Stream, depth: float = 150.0, jitter: float = 0.5) -> Arrays:
    """Q > 0 and K < 0 in every channel: every score of every row is far below zero.

    Detects a running maximum floored at 0 (every P underflows and the row comes out as zero or NaN), padding keys of
    score 0 that win, and exp(-LSE) that overflows float32 beyond 88.7 nats.

    Parameters
    ----------
    depth
        Mean distance of the scores below zero, in nats.
    jitter
        Relative half width of the elements around their mean; the scores' relative standard deviation is 0.8 jitter /
        sqrt(head_dim).

    Check: every score is negative; their mean is -depth to within 5 %.
    """
    mean = np.sqrt(depth / (nats_per_raw(case) * case.shape.head_dim))
    found = {}
    for name, sign in (("q", 1.0), ("k", -1.0)):
        size = sizes(case)[name]
        found[name] = leading(sign * mean * (1.0 + jitter * (2.0 * stream(name).random(size) - 1.0)), BITS)
    return {**found, "v": stream("v").standard_normal(sizes(case)["v"])}


def softcap_range(case: Case, stream: Stream, low: float = 0.1, high: float = 200.0) -> Arrays:
    """Scores from the linear part of the softcap to its plateau, of both signs.

    Detects a wrong formula (s tanh(s) in place of c tanh(s / c)), a cap applied before the scale, and shows what
    tanh.approx costs.

    Parameters
    ----------
    low, high
        Smallest and largest magnitude of a scaled score before the cap, in nats; keys are evenly spaced in
        its logarithm.

    Check: magnitudes from the rounded tensors lie in [low / 4, high]; capped scores stay below the cap.
    """
    arrays, (batch, seqlen_k, heads_kv, _) = zeros(case), sizes(case)["k"]
    order = np.argsort(stream("k").random((batch, seqlen_k, heads_kv)), axis=1)
    # To 12 bits, so that the last bit of a machine's pow does not matter.
    magnitude = leading(np.geomspace(low, high, seqlen_k), 12)[order]
    signs = np.where(stream("sign").random(magnitude.shape) < 0.5, -1.0, 1.0)
    channel = add_key_scores(case, arrays, signs * magnitude / nats_per_raw(case))
    # Rows see the keys at 1, 1/2 or 1/4 of their size and with either sign.
    exponent = stream("q").integers(0, 3, size=sizes(case)["q"][:3])
    flip = np.where(stream("flip").random(exponent.shape) < 0.5, -1.0, 1.0)
    arrays["q"][..., :channel] *= (flip * 2.0**-exponent)[..., None]
    arrays["v"] = stream("v").standard_normal(sizes(case)["v"])
    return arrays
