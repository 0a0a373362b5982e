"""Distributions around the normal one: what models, and papers about them, feed to attention."""

import numpy as np

from fa4verify.cases.distributions.scores import (
    PARTS,
    Array,
    Arrays,
    add_key_scores,
    nats_per_raw,
    parts,
    powers_of_two,
    row_levels,
    sizes,
    zeros,
)
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case


def _normal(size: tuple[int, ...], generator: np.random.Generator) -> Array:
    return generator.standard_normal(size)


def normal(case: Case, stream: Stream) -> Arrays:
    """Q, K and V from N(0, 1).

    Detects gross faults only: from a rescale threshold of 4 on, no rescale happens at all (docs/studies.md), every row
    is nearly uniform, and emulated and hardware columns share each row.

    Check: the moments of N(0, 1).
    """
    return {name: _normal(size, stream(name)) for name, size in sizes(case).items()}


def fa3_outlier(case: Case, stream: Stream, sigma: float = 10.0, probability: float = 0.001) -> Arrays:
    """Q, K and V from N(0, 1) + N(0, sigma^2) * Bernoulli(probability), FlashAttention-3's outlier model.

    Detects what a stale row maximum costs (2.4x RMSE of O before its rounding at threshold 8 over 0,
    docs/studies.md), and scaling faults of narrow formats.

    Parameters
    ----------
    sigma
        Standard deviation of the outliers, in units of the body's.
    probability
        Share of elements that carry an outlier.

    Check: share and size of the elements beyond 6; without outliers it equals `normal` in distribution.
    """

    def mixture(size: tuple[int, ...], generator: np.random.Generator) -> Array:
        body, outlier = _normal(size, generator), _normal(size, generator)
        return body + sigma * outlier * (generator.random(size) < probability)

    return {name: mixture(size, stream(name)) for name, size in sizes(case).items()}


def scaled_normal(case: Case, stream: Stream, factor: float = 4.0, values: bool = True) -> Arrays:
    """Q and K (and V, with `values`) from factor * N(0, 1): logits of standard deviation factor^2 nats.

    Detects the price of conditional rescaling on peaked rows (4x RMSE of O before its rounding at threshold 8 over 0,
    docs/studies.md), and saturation of P in narrow formats at factors below 1.5.

    Parameters
    ----------
    factor
        Standard deviation of the elements.
    values
        Scale V as well.

    Check: at factor 1 it is `normal` bit for bit, apart from its seed; the logits' standard deviation.
    """
    drawn = normal(case, stream)
    return {name: array * (factor if values or name != "v" else 1.0) for name, array in drawn.items()}


def sink_tokens(
    case: Case,
    stream: Stream,
    count: int = 4,
    boost: float = 8.0,
    sink: float | None = None,
    at_end: bool = False,
) -> Arrays:
    """First keys that attract every query and whose V is small (StreamingLLM's attention sinks).

    Detects underflow of the useful keys' P relative to the sinks, which are visited last, and P beyond a narrow format
    where their maximum is not adopted; with a learnable sink also
    whether the sink takes part in the sum with the right reference.

    Parameters
    ----------
    count
        Number of sink tokens, at keys 0, 1, ...
    boost
        What a sink token's score exceeds the others' by, in nats.
    sink
        Value of the learnable sink of every head, in nats (the case must have `learnable_sink`); None draws 2 N(0, 1).
    at_end
        The last keys instead, which are visited first.

    Check: the scores of sink keys exceed the others' by `boost` on average, exactly so in the control channels.
    """
    drawn = normal(case, stream)
    drawn["q"][..., :PARTS] = drawn["k"][..., :PARTS] = 0.0
    raw = np.zeros(sizes(case)["k"][:3])
    place = slice(raw.shape[1] - min(count, raw.shape[1]), None) if at_end else slice(count)
    raw[:, place] = boost / nats_per_raw(case)
    add_key_scores(case, drawn, raw)
    drawn["v"][:, place] *= 2.0**-6
    if case.learnable_sink and sink is not None:
        drawn["learnable_sink"] = np.full(case.shape.heads, sink)
    return drawn


def massive_activations(case: Case, stream: Stream, channels: int = 2, factor: float = 100.0) -> Arrays:
    """Few channels of Q and K `factor` times larger than the rest, as in models without QK norm.

    Detects narrow ranges of logits: sentinels for masked keys, fp16 overflow, rounding of max * c.

    Parameters
    ----------
    channels
        How many channels, the same in every head.
    factor
        Ratio of their standard deviation to the others'.

    Check: the ratio of standard deviations by channel.
    """
    drawn = normal(case, stream)
    for name in ("q", "k"):
        drawn[name][..., :channels] *= factor
    return drawn


def k_common_offset(case: Case, stream: Stream, offset: float = 64.0) -> Arrays:
    """Keys with the same vector of +-offset added to all of them, which softmax does not see.

    Detects precision lost to a part of the score that exact arithmetic cancels.

    Parameters
    ----------
    offset
        Magnitude of the common vector in each channel; K's own values are multiples of about 2^-6 of it, so that the
        sum is exact in bf16.

    Check (metamorphic): O equals O without the offset, LSE differs by q . vector * scale, in float64.
    """
    drawn = normal(case, stream)
    grid = 2.0 ** np.ceil(np.log2(abs(offset))) * 2.0**-6
    signs = np.where(stream("offset").random(case.shape.head_dim) < 0.5, -1.0, 1.0)
    own = np.clip(np.round(drawn["k"] / grid) * grid, -abs(offset) / 2, abs(offset) / 2)
    return {**drawn, "k": own + signs * np.round(offset / grid) * grid}


def low_rank_qk(case: Case, stream: Stream, rank: int = 2) -> Arrays:
    """Q and K of low rank: tokens that resemble each other.

    Detects bias from nearly repeated row maxima in the form that training shows.

    Parameters
    ----------
    rank
        Rank of Q and of K of each head; both use the same basis.

    Check: singular values beyond `rank` are at the level of input rounding.
    """
    shape, found = case.shape, {"v": _normal(sizes(case)["v"], stream("v"))}
    basis = _normal((shape.batch, shape.heads_kv, rank, shape.head_dim), stream("basis")) / np.sqrt(rank)
    for name, heads in (("q", shape.heads), ("k", shape.heads_kv)):
        factors = _normal((*sizes(case)[name][:3], rank), stream(name))
        per_head = np.repeat(basis, heads // shape.heads_kv, axis=1)
        # Summed term by term: einsum may fuse multiply and add on one machine and not on another.
        found[name] = np.zeros(sizes(case)[name])
        for r in range(rank):
            found[name] = found[name] + factors[..., r, None] * per_head[:, None, :, r]
    return found


def long_sequence(case: Case, stream: Stream, spread: float = 0.25) -> Arrays:
    """Nearly uniform attention over many keys with V > 0, so that nothing cancels.

    Detects bias that grows with length: truncating accumulators, stagnating row sums.

    Parameters
    ----------
    spread
        Standard deviation of the scores in nats.

    Check: V of channel c lies in [0.5, 1.5] * 2^-(c mod 4), hence so does O; the scores' standard deviation.
    """
    factor = np.sqrt(spread / (abs(nats_per_raw(case)) * np.sqrt(case.shape.head_dim)))
    found = {name: factor * _normal(sizes(case)[name], stream(name)) for name in ("q", "k")}
    # Channels differ in size, or at 131072 keys a constant would be as right as the kernel.
    return {**found, "v": powers_of_two(case, 4) * (0.5 + stream("v").random(sizes(case)["v"]))}


def uniform_tiny_output(case: Case, stream: Stream, reach: float = 8.0) -> Arrays:
    """Equal scores in each row and V of mean zero: |O| is about 1 / sqrt(seqlen_k).

    Detects tolerances that zeros would pass, and a wrong count of keys.

    Parameters
    ----------
    reach
        Largest common raw score of a row.

    Check (closed form): O is the mean of the visible V, LSE the row's score plus log of the number of visible keys.
    """
    arrays = zeros(case)
    arrays["q"][..., :PARTS] = parts(row_levels(case, stream("q"), reach), case.dtype)
    arrays["k"][..., :PARTS] = 1.0
    arrays["v"] = _normal(sizes(case)["v"], stream("v"))
    return arrays


def tiny_values(case: Case, stream: Stream, exponent: int = -20) -> Arrays:
    """Q, K and V from 2^exponent * N(0, 1).

    Detects flushing of subnormal inputs and outputs to zero (fp16 below 2^-14, bf16 below 2^-126).

    Parameters
    ----------
    exponent
        Power of two of the standard deviation.

    Check (closed form): scores vanish, so O is the mean of the visible V to within 2^(2 exponent).
    """
    return {name: array * 2.0**exponent for name, array in normal(case, stream).items()}
