"""Keys a row sees and KV tiles it visits: FA4's index arithmetic against sets of keys."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4verify.kernels.emulated.visibility import kv_tiles, resolve, visits

BOUNDS = st.one_of(st.none(), st.integers(-300, 300))
LENGTHS = st.integers(1, 400)


@pytest.fixture(scope="module")
def interface():
    """FA4's own host code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flash_attn.cute.interface")


def brute_keys(causal, window, queries, seqlen_q, seqlen_k):
    """Keys that any of the queries sees. Docs, not code: bottom-right aligned, a pair of negatives is no window."""
    left, right = window
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    right = 0 if causal else right
    distance = np.arange(seqlen_k)[None] - np.array(sorted(queries))[:, None] - (seqlen_k - seqlen_q)
    seen = np.ones_like(distance, bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return np.flatnonzero(seen.any(0)).tolist()


@pytest.mark.parametrize("causal", [False, True])
def test_resolve_equals_fa4(interface, causal):
    values = (None, -300, -2, -1, 0, 1, 5, 300)
    for left in values:
        for right in values:
            mask = resolve(causal, (left, right))
            assert (mask.causal, mask.local, mask.left, mask.right) == interface._resolve_causal_local_window(
                causal, left, right
            )


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.booleans(), st.tuples(BOUNDS, BOUNDS), LENGTHS, LENGTHS, st.sampled_from([1, 2, 3, 8]))
def test_keys_of_a_row_and_tiles_of_a_row_tile(causal, window, seqlen_q, seqlen_k, group):
    tile_m, tile_n = 64, 48
    mask = resolve(causal, window)
    seen = visits(mask, tile_m=tile_m, tile_n=tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k, group=group)
    for row in {0, 1, tile_m - 1, tile_m, seqlen_q * group // 2, seqlen_q * group - 1}:
        if row >= seqlen_q * group:
            continue
        keys = brute_keys(causal, window, {row // group}, seqlen_q, seqlen_k)
        own = range(int(seen.first_key[row]), int(seen.end_key[row]))
        assert keys == list(own)
        tile = row // tile_m
        if keys:
            assert seen.first_tile[tile] <= keys[0] // tile_n
            assert keys[-1] // tile_n < seen.end_tile[tile]


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.booleans(), st.tuples(BOUNDS, BOUNDS), LENGTHS, LENGTHS, st.sampled_from([1, 2, 3, 8]))
def test_no_tile_is_visited_without_need(causal, window, seqlen_q, seqlen_k, group):
    """A visited range is the hull of what the row tile's rows would see, idle rows beyond the last query included."""
    tile_m, tile_n = 64, 48
    mask = resolve(causal, window)
    for tile in range(-(-seqlen_q * group // tile_m)):
        queries = {row // group for row in range(tile * tile_m, (tile + 1) * tile_m)}
        needed = {j // tile_n for j in brute_keys(causal, window, queries, seqlen_q, seqlen_k)}
        first, end = kv_tiles(
            mask, tile, tile_m=tile_m, tile_n=tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k, group=group
        )
        if needed:
            assert (first, end) == (min(needed), max(needed) + 1)
        else:
            # Bounds that cross: the tiles under the rows' diagonal are visited all the same, fully masked.
            assert end <= first + -(-tile_m // tile_n) + 1


def test_minus_one_zero_is_not_causal():
    """FlashAttention-2's idiom for causal hides every key here (FA4's own reading)."""
    seen = visits(resolve(False, (-1, 0)), tile_m=128, tile_n=128, seqlen_q=300, seqlen_k=300)
    assert (seen.first_key >= seen.end_key).all()
    both = visits(resolve(False, (-1, -1)), tile_m=128, tile_n=128, seqlen_q=300, seqlen_k=300)
    assert (both.end_key - both.first_key == 300).all()


@pytest.mark.parametrize("loads_first", [True, False])
def test_an_empty_range_runs_one_masked_tile(loads_first):
    """Which V tile decides whether a NaN there reaches O: SM90 loads the first of the range, SM100 mostly end - 1."""
    mask = resolve(False, (-130, 0))
    sizes = {"tile_m": 1, "tile_n": 64, "seqlen_q": 256, "seqlen_k": 256}
    row = 100  # would see keys from 230 on, up to 100: none
    first, end = kv_tiles(mask, row, **sizes)
    assert (first, end) == (3, 2)
    seen = visits(mask, **sizes, empty_loads_first=loads_first)
    assert (seen.first_tile[row], seen.end_tile[row]) == ((3, 4) if loads_first else (1, 2))
    beyond = 200  # from 330 on: V beyond the last key is zeros, tile 4
    assert (seen.first_tile[beyond], seen.end_tile[beyond]) == ((4, 5) if loads_first else (3, 4))


def test_padded_rows_continue_the_pattern():
    seen = visits(resolve(True, (None, None)), tile_m=128, tile_n=128, seqlen_q=5, seqlen_k=40, group=3, padded_rows=32)
    assert len(seen.end_key) == 32
    assert list(seen.end_key[:6]) == [36, 36, 36, 37, 37, 37]
    assert seen.end_key[-1] == 40
