"""Rows that a mask leaves short: no key, one key, no key in the first tile, a ragged end.

What is special is the mask, so each of these refuses a case whose mask does not give it.
"""

from fa4verify.cases.distributions.gaussian import normal
from fa4verify.cases.distributions.magnitudes import negative_rows
from fa4verify.cases.distributions.scores import Arrays
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case


def fully_masked_rows(case: Case, stream: Stream) -> Arrays:
    """N(0, 1) inputs under a mask that leaves some query without keys.

    Detects NaN from (-inf) - (-inf), a wrong convention (LSE must be -inf and O zero) and, with a learnable sink,
    LSE other than the sink. Needs seqlen_q > seqlen_k with causal, seqlen_k = 0, or a window beside the keys.

    Check (closed form): O = 0 and LSE = -inf in those rows.
    """
    return normal(case, stream)


def first_tile_masked(case: Case, stream: Stream, depth: float = 100.0) -> Arrays:
    """No visible key in the KV tile that a query visits first, and all real scores far below zero.

    Detects a maximum of -inf that was replaced by 0 and kept: real scores never win, and the row comes out as zero.

    Parameters
    ----------
    depth
        Mean distance of the scores below zero, in nats.

    Check: some query sees keys but none in the first visited tile; every score is negative.
    """
    return negative_rows(case, stream, depth=depth)


def single_key_rows(case: Case, stream: Stream, factor: float = 5.0) -> Arrays:
    """Large normal inputs under a mask that leaves some query exactly one key (the first row of a causal square).

    Detects LSE that is not the key's score: the residual of S * c - fl(max * c) moves it by 8.5e-5 where the key sits
    in an emulated column.

    Parameters
    ----------
    factor
        Standard deviation of Q and K.

    Check (closed form): in those rows O is V of the key and LSE its scaled score.
    """
    drawn = normal(case, stream)
    return {"q": factor * drawn["q"], "k": factor * drawn["k"], "v": drawn["v"]}


def ragged_varlen(case: Case, stream: Stream, depth: float = 8.0) -> Arrays:
    """Lengths that are no multiple of a tile, with all real scores below zero: one sequence of a ragged batch.

    Detects padding keys that are not masked: their score 0 beats all real ones by `depth` nats.

    Parameters
    ----------
    depth
        Mean distance of the real scores below zero, in nats.

    Check: every score is negative; LSE with the padding of the last tile unmasked would be off by more than 1.
    """
    return negative_rows(case, stream, depth=depth)
