"""Which keys a query may see, and what a distribution asks of the mask.

Contract: masks are aligned at the bottom right, as FlashAttention's: query i sees key j where
i + seqlen_k - seqlen_q - left <= j <= i + seqlen_k - seqlen_q + right; causal is right = 0, None is unbounded.
A need returns what is missing, in words for the author of a suite, or None.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fa4verify.cases.distributions.scores import TILE
from fa4verify.vocabulary import Case

Need = Callable[[Case], str | None]


def key_ranges(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each query the first visible key and one past the last; equal where it sees none."""
    diagonal = np.arange(case.shape.seqlen_q) + case.shape.seqlen_k - case.shape.seqlen_q
    left, right = case.window_size
    right = 0 if case.causal else right
    first = np.zeros_like(diagonal) if left is None else diagonal - left
    stop = np.full_like(diagonal, case.shape.seqlen_k) if right is None else diagonal + right + 1
    first = np.clip(first, 0, case.shape.seqlen_k)
    return first, np.maximum(np.clip(stop, 0, case.shape.seqlen_k), first)


def needs_empty_row(case: Case) -> str | None:
    """Ask for a query that sees no key."""
    first, stop = key_ranges(case)
    return None if np.any(first == stop) else "a query without keys (causal with seqlen_q > seqlen_k, or seqlen_k = 0)"


def needs_single_key_row(case: Case) -> str | None:
    """Ask for a query that sees exactly one key."""
    first, stop = key_ranges(case)
    return None if np.any(stop - first == 1) else "a query with exactly one key (causal, or seqlen_k = 1)"


def needs_masked_first_tile(case: Case) -> str | None:
    """Ask for a query with keys, but none in the KV tile that its block of 128 queries visits first."""
    first, stop = key_ranges(case)
    for block in range(0, len(first), TILE):
        rows = slice(block, block + TILE)
        visited_first = (np.max(stop[rows]) - 1) // TILE
        if np.any((stop[rows] > first[rows]) & (stop[rows] <= visited_first * TILE)):
            return None
    return "a query whose first visited KV tile is masked (causal, and seqlen_k - seqlen_q no multiple of 128)"


def needs_every_key_visible(case: Case) -> str | None:
    """Ask for no mask."""
    return None if not case.causal and case.window_size == (None, None) else "no mask (causal = false, no window)"


def needs_softcap(case: Case) -> str | None:
    """Ask for a softcap."""
    return None if case.softcap > 0 else "softcap > 0"


def needs_ragged_length(case: Case) -> str | None:
    """Ask for a length that is no multiple of the tile."""
    ragged = case.shape.seqlen_k % TILE or case.shape.seqlen_q % TILE
    return None if ragged else f"seqlen_q or seqlen_k that is no multiple of {TILE}"


def needs_several_heads(case: Case) -> str | None:
    """Ask for more than one KV head, so that reading a wrong one shows."""
    return None if case.shape.heads_kv > 1 else "more than one KV head"


def needs_a_query(case: Case) -> str | None:
    """Ask for a query."""
    return None if case.shape.seqlen_q else "seqlen_q of at least 1"


def needs_lse_gradient(case: Case) -> str | None:
    """Ask for a loss that depends on LSE."""
    return None if case.lse_gradient else "lse_gradient = true"


def needs_keys(least: int) -> Need:
    """Return the need of at least that many keys."""

    def need(case: Case) -> str | None:
        return None if case.shape.seqlen_k >= least else f"seqlen_k of at least {least}"

    return need


def needs_head_dim(least: int) -> Need:
    """Return the need of a head dim of at least that size."""

    def need(case: Case) -> str | None:
        return None if case.shape.head_dim >= least else f"head_dim of at least {least}"

    return need
