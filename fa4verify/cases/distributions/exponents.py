"""Arguments of exp2 as an operation of its own: float32, enumerated rather than drawn."""

from typing import Literal

import numpy as np

from fa4verify.cases.distributions.scores import Arrays
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case


def octave(_case: Case, _stream: Stream, exponent: int = 0, sign: Literal[-1, 1] = -1) -> Arrays:
    """All 2^23 float32 numbers of one binade.

    Detects any wrong bit of a coefficient or a table row: every fraction occurs. On -[1, 2) the figures are published
    (docs/arithmetic.md), and positive and negative arguments differ on a MUFU.

    Parameters
    ----------
    exponent
        The binade is [2^exponent, 2^(exponent + 1)).
    sign
        -1 or 1.

    Check: 2^23 distinct values between the bounds, exact in float32.
    """
    return {"x": sign * np.ldexp(1.0 + np.arange(2**23) / 2.0**23, exponent)}


def fractions(_case: Case, _stream: Stream, stride: int = 1) -> Arrays:
    """Multiples of 2^-24 in (-1, 0]: every fraction that an exponent x <= 0 can leave after floor.

    Detects what `octave` does, with the weights that attention gives: small |x| holds fractions next to 1.

    Parameters
    ----------
    stride
        Take every stride-th of the 2^24.

    Check: exact in float32; 0 is the first, -1 is not reached.
    """
    return {"x": -np.arange(0, 2**24, stride) / 2.0**24}


def working_range(_case: Case, stream: Stream, count: int = 2**20) -> Arrays:
    """Numbers in [-126, -2^-126], evenly spaced in their bit patterns, with a random start.

    Detects faults outside the binade that other tests enumerate: 253 binades are covered in proportion.

    Parameters
    ----------
    count
        How many numbers.

    Check: sorted, in range, all binades present, float32 exact.
    """
    first, last = (int(np.float32(bound).view(np.uint32)) for bound in (2.0**-126, 126.0))
    step = (last - first) / count
    offset = stream("x").random() * step
    patterns = (first + offset + step * np.arange(count)).astype(np.uint32)
    return {"x": -patterns.view(np.float32).astype(np.float64)}


def specials(_case: Case, _stream: Stream) -> Arrays:
    """NaN, infinities, zeros, subnormals, all integers of the range, and both neighbours of every edge.

    Detects wrong clamps, wrong flushing, and an exponent field that wraps. The right answers of the emulation differ
    from exp2 by design (docs/fa4.md, exp2): the case states what it compares with through its budgets.

    Check: holds every edge named above, once.
    """
    edges = np.array(
        [0.0, 2.0**-149, 2.0**-126, 2.0**-25, 2.0**-24, 0.5, 1.0, 126.0, 127.0, 128.0, 129.0, 149.0, 150.0]
    )
    base = np.concatenate([edges, [256.0, 3.4e38], np.arange(2.0, 126.0)]).astype(np.float32)
    around = np.concatenate([base, np.nextafter(base, np.float32(np.inf)), np.nextafter(base, np.float32(0.0))])
    finite = np.unique(np.concatenate([around, -around]).astype(np.float32).view(np.uint32)).view(np.float32)
    extra = np.array([-126.5, np.nan, np.inf, -np.inf])
    return {"x": np.concatenate([finite.astype(np.float64), extra])}
