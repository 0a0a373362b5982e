"""Which keys a row sees, and which KV tiles the kernel visits for it.

Contract: FA4's own arithmetic on tile indices, so that a tile is visited here if and only if the kernel visits it. It
matters beyond speed: P = 0 times a non-finite V inside a visited tile is NaN, outside it is nothing.

Masks are aligned at the bottom right: query i sees key j iff i + Sk - Sq - left <= j <= i + Sk - Sq + right.
`window_size` entries: None is unbounded; a *pair* of negative numbers is no window; a single negative entry is a
window shifted off the diagonal, so (-1, 0) hides every key (not FlashAttention-2's idiom for causal).

Fails first on windows with a negative entry and on rows of a packed group: tests/kernels/test_visibility.py.
Source: flash-attn-4 4.0.0b36, `interface._resolve_causal_local_window`, `block_info.BlockInfo.get_n_block_min_max`,
`flash_fwd_sm90.load` and `flash_fwd_sm100.load` (which V tile an empty range loads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Mask:
    """FA4's canonical form: causal, or local with at least one bound, or neither."""

    causal: bool
    local: bool
    left: int | None
    right: int | None

    @property
    def right_bound(self) -> int | None:
        """Keys visible right of the diagonal; None is unbounded."""
        return 0 if self.causal else self.right


def resolve(causal: bool, window_size: tuple[int | None, int | None]) -> Mask:
    """Canonical mask of FA4's arguments `causal` and `window_size`."""
    left, right = window_size
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    if causal:
        right = 0
    if left is None and right is None:
        return Mask(False, False, None, None)
    if left is None and right == 0:
        return Mask(True, False, None, None)
    return Mask(False, True, left, right)


@dataclass(frozen=True)
class Visits:
    """What one head's packed rows see and visit.

    `first_key[r] <= j < end_key[r]` are the keys that row r sees (none where first >= end). Row r belongs to row
    tile r // tile_m, which visits the KV tiles `first_tile <= n < end_tile`, from the last one down.
    """

    tile_m: int
    first_key: NDArray[np.int64]
    end_key: NDArray[np.int64]
    first_tile: NDArray[np.int64]
    end_tile: NDArray[np.int64]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def kv_tiles(
    mask: Mask, row_tile: int, *, tile_m: int, tile_n: int, seqlen_q: int, seqlen_k: int, group: int = 1
) -> tuple[int, int]:
    """First and end KV tile of a row tile, as BlockInfo.get_n_block_min_max: may be empty or negative.

    `group` is the number of query heads packed into consecutive rows (PackGQA), else 1.
    """
    end = _ceil_div(seqlen_k, tile_n)
    if mask.right_bound is not None:
        end_row = _ceil_div((row_tile + 1) * tile_m, group)
        end = min(end, _ceil_div(end_row + seqlen_k - seqlen_q + mask.right_bound, tile_n))
    first = 0
    if mask.left is not None:
        first_row = row_tile * tile_m // group
        first = max((first_row + seqlen_k - seqlen_q - mask.left) // tile_n, 0)
    return first, end


def visits(
    mask: Mask,
    *,
    tile_m: int,
    tile_n: int,
    seqlen_q: int,
    seqlen_k: int,
    group: int = 1,
    empty_loads_first: bool = True,
    padded_rows: int = 0,
) -> Visits:
    """Keys and KV tiles of every packed row of one head, and of rows beyond the last up to `padded_rows`.

    An empty range still runs one fully masked tile, whose V is tile `first` (`empty_loads_first`) or tile `end` - 1;
    outside the keys it is all zeros, which tile index ceil(seqlen_k / tile_n) stands for.
    """
    rows = np.arange(max(seqlen_q * group, padded_rows), dtype=np.int64) // group + seqlen_k - seqlen_q
    first_key = np.zeros_like(rows) if mask.left is None else np.maximum(rows - mask.left, 0)
    end_key = np.full_like(rows, seqlen_k)
    if mask.right_bound is not None:
        end_key = np.minimum(end_key, rows + mask.right_bound + 1)
    zeros = _ceil_div(seqlen_k, tile_n)
    ranges = []
    for row_tile in range(_ceil_div(len(rows), tile_m)):
        first, end = kv_tiles(
            mask, row_tile, tile_m=tile_m, tile_n=tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k, group=group
        )
        if end <= first:
            first = first if empty_loads_first else end - 1
            first = first if 0 <= first < zeros else zeros
            end = first + 1
        ranges.append((first, end))
    first_tile, end_tile = np.array(ranges, np.int64).reshape(-1, 2).T.copy()  # contiguous: one numba signature
    return Visits(tile_m, first_key, end_key, first_tile, end_tile)
