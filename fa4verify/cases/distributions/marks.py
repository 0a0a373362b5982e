"""Values that say where they came from: ones, marks by head, poison."""

from typing import Literal

import numpy as np

from fa4verify.cases.distributions.gaussian import fa3_outlier, normal
from fa4verify.cases.distributions.magnitudes import negative_rows
from fa4verify.cases.distributions.scores import Arrays, powers_of_two, sizes
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case

SCORES = {"normal": normal, "fa3_outlier": fa3_outlier, "negative_rows": negative_rows}
POISON = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def ones_v(
    case: Case,
    stream: Stream,
    scores: Literal["normal", "fa3_outlier", "negative_rows"] = "normal",
    period: int = 1,
) -> Arrays:
    """V = 1, so that O = 1 exactly whatever the scores are.

    Detects mass that is lost or gained between numerator and denominator: P truncated, clamped or flushed, a row sum
    in low precision, a tile counted in one of them only. Errors of one sign show in the mean.

    Parameters
    ----------
    scores
        Distribution of Q and K.
    period
        V of channel c is 2^-(c mod period), and so is O; more than 1 keeps a constant output from passing.

    Check (closed form): O is V.
    """
    return {**SCORES[scores](case, stream), "v": powers_of_two(case, period)}


def gqa_marked(case: Case, stream: Stream) -> Arrays:
    """One constant V for each KV head: O names the KV head that a query head read.

    Detects wrong maps from query heads to KV heads (h mod heads_kv in place of h div group) and wrong group sums.

    Check (closed form): O of head h is the mark of KV head h div (heads / heads_kv), and no two marks are equal.
    """
    head = np.arange(case.shape.heads_kv)
    # Four octaves of steps of 1/16: 64 distinct marks with at most 5 significant bits.
    mark = 2.0 ** (head % 4) * (1.0 + head // 4 / 16.0)
    v = np.broadcast_to(mark[:, None], sizes(case)["v"]).copy()
    return {**normal(case, stream), "v": v}


def nan_inf_poison(
    case: Case, stream: Stream, value: Literal["nan", "inf", "-inf"] = "nan", tensor: Literal["q", "k", "v"] = "v"
) -> Arrays:
    """N(0, 1) inputs with one element that is not finite, in the middle of the first head.

    Detects a kernel that launders NaN into plausible numbers, and poison that spreads to other heads or channels.

    Parameters
    ----------
    value
        What the element is.
    tensor
        Which tensor holds it.

    Check: exactly one element is not finite; from V it reaches one channel of the rows that see its key.
    """
    drawn = normal(case, stream)
    size = sizes(case)[tensor]
    drawn[tensor][0, size[1] // 2, 0, size[3] // 2] = POISON[value]
    return drawn
