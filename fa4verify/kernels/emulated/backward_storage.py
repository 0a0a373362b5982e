"""FA4's accumulators in global memory, and what becomes of them where writer and reader disagree on their width.

On Hopper the backward adds its partials of dQ (and, for grouped heads, of dK and dV) to a flat fp32 buffer in the order
of its registers, with head dims padded to a multiple of 16; host code and postprocess take the tiles to be padded to a
multiple of 32. Where the two differ, at head dims 8, 16, 40, 48, 72, 80, 104 and 112, the postprocess reads other
elements: of the first tile the first rows are right, the rest of dQ is noise (relative error 1.0 at head dim 40,
recorded on an H200). SM100, and head dims above 128, pad alike on both sides.

Contract: `reread` moves elements as the two layouts do. One warp group's part of a tile is 128 threads x 4 registers x
more of them: element 4a + b of thread t at 512a + 4t + b. Register i of thread t holds the row 16(t / 32) + 8((i / 2) %
2) + (t % 32) / 4 and the column 8(i / 4) + 2(t % 4) + i % 2, wgmma's accumulator. Equal to an H200 in every bit at head
dim 40, one query head for each KV head; the other head dims and groups follow the same rule and were not recorded. At
104 and 112 only causal and local masks compile ("failed to partition (112,80)" else: CuTe DSL 4.8.1 for sm_90a).
Source: flash-attn-4 4.0.0b36, `FlashAttentionBackwardSm90.__init__`, `interface._flash_attn_bwd` (hdim_multiple_of),
`flash_bwd_postprocess._setup_attributes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

THREADS = 128  # a warp group


@dataclass(frozen=True)
class Storage:
    """One accumulator: columns of a tile as written and as read, and the warp groups that share out rows or columns."""

    written: int
    read: int
    row_groups: int
    column_groups: int = 1

    def reread(self, tiles: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (tiles, rows, read) from what was added up, (tiles, rows, written)."""
        count, rows, _ = tiles.shape
        flat = np.zeros(count * rows * self.read, np.float32)
        written = flat[: tiles.size].reshape(count, -1)
        groups = self.row_groups, self.column_groups
        written[:, positions(rows, self.written, *groups)] = tiles
        return flat.reshape(count, -1)[:, positions(rows, self.read, *groups)]


def positions(rows: int, width: int, row_groups: int, column_groups: int = 1) -> NDArray[np.int64]:
    """Return where element (row, column) of a tile lies in its part of the buffer."""
    row, column = np.indices((rows, width))
    group_rows, group_columns = rows // row_groups, width // column_groups
    group = row // group_rows * column_groups + column // group_columns
    row, column = row % group_rows, column % group_columns
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    register = column // 8 * 4 + row % 16 // 8 * 2 + column % 2
    return group * group_rows * group_columns + register // 4 * 4 * THREADS + thread * 4 + register % 4
