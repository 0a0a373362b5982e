"""Which query tiles a KV tile visits in the backward, and in what order partial gradients are added.

Contract: FA4's own arithmetic on tile indices. dQ of a query tile is a sum of one fp32 partial for each KV tile that
visits it; with `deterministic` the semaphores of FA4 make that sum ascend over KV tiles, or descend from the last one
for causal and local masks ("spt"). dK and dV of a group are sums over its query heads, ascending. Without
`deterministic` the same adds come in any order: here a permutation of its own for each query tile, drawn by seed.

Two addends commute, so an order shows from three on: tests/kernels/test_backward_order.py.
Source: flash-attn-4 4.0.0b36, `block_info.BlockInfo.get_m_block_min_max`, `flash_bwd_sm90.dQaccum_store` and
`.epilogue_dKV`, `flash_bwd_sm100._dq_semaphore_lock_value`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fa4verify.kernels.emulated.visibility import Mask

NOBODY = -1  # fills the rows of `dq_turns` beyond the last visitor
DQ, DK, DV = range(3)  # streams of random numbers


def query_tiles(mask: Mask, kv_tile: int, *, tile_m: int, tile_n: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """First and end query tile that a KV tile visits; empty where first >= end."""
    first, end = 0, -(-seqlen_q // tile_m)
    if mask.right_bound is not None:
        first = max(first, (kv_tile * tile_n + seqlen_q - seqlen_k - mask.right_bound) // tile_m)
    if mask.left is not None:
        last_row = (kv_tile + 1) * tile_n + seqlen_q - seqlen_k + mask.left
        end = min(end, -(-last_row // tile_m))
    return first, end


def visited(mask: Mask, *, tile_m: int, tile_n: int, seqlen_q: int, seqlen_k: int) -> NDArray[np.bool_]:
    """Return a matrix (query tiles, KV tiles): whether the two meet."""
    met = np.zeros((-(-seqlen_q // tile_m), -(-seqlen_k // tile_n)), np.bool_)
    for n in range(met.shape[1]):
        first, end = query_tiles(mask, n, tile_m=tile_m, tile_n=tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
        met[first : max(end, 0), n] = True
    return met


def dq_turns(
    met: NDArray[np.bool_], *, descending: bool, seed: int | None = None, stream: tuple[int, ...] = ()
) -> NDArray[np.int64]:
    """Return for each query tile the KV tiles in the order of their adds to dQ, then NOBODY.

    `seed` None is FA4's deterministic order; else each query tile has a random one, and `stream` (batch, head) keeps
    different heads apart.
    """
    turns = np.full(met.shape, NOBODY, np.int64)
    for m, row in enumerate(met):
        visitors = np.flatnonzero(row)
        if seed is not None:
            visitors = np.random.Generator(np.random.Philox([seed, DQ, *stream, m])).permutation(visitors)
        elif descending:
            visitors = visitors[::-1]
        turns[m, : len(visitors)] = visitors
    return turns


def head_turns(
    group: int, kv_tiles: int, *, kind: int, seed: int | None = None, stream: tuple[int, ...] = ()
) -> NDArray[np.int64]:
    """Return for each KV tile the query heads of its group in the order of their adds; `kind` is DK or DV."""
    turns = np.tile(np.arange(group, dtype=np.int64), (kv_tiles, 1))
    if seed is not None:
        generator = np.random.Generator(np.random.Philox([seed, kind, *stream]))
        turns = generator.permuted(turns, axis=1)
    return turns
