"""What FA4 chooses for a shape on Blackwell: CTAs, stages, row packing and the columns that take the polynomial.

Contract: the same choice as FA4's host code for dense inputs without split or paging. The choice depends on
query length, grouping and mask, so the same row may have other emulated columns in another batch.

Fails first at the edges of the 2-CTA rule (256 packed rows; hd 256: the number of SMs): tests/kernels/
test_fa4_sm100.py compares with flash_attn.cute itself.
Source: flash-attn-4 4.0.0b36, `interface._flash_attn_fwd`, `_get_fwd_config`, `flash_fwd_sm100._TUNING_CONFIG`,
`softmax.SoftmaxSm100.apply_exp2_convert`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TILE_M = TILE_N = 128
FRAGMENT = 32  # columns that share one position in the pattern
B200_SMS = 148

# (two_cta, causal, padded head dim): (ex2_emu_freq, ex2_emu_start_frg)
TUNED = {
    (True, False, 128): (10, 1),
    (False, True, 128): (16, 1),
    (True, False, 192): (16, 0),
    (False, True, 192): (32, 1),
    (True, False, 256): (14, 0),
    (True, True, 256): (14, 0),
}
# The same for 8-bit inputs of padded head dim 96 and more, where FA4 has another choice.
TUNED_8_BITS = {(True, False, 128): (10, 1), (False, True, 128): (8, 1)}


@dataclass(frozen=True)
class Configuration:
    """One compiled variant."""

    two_cta: bool
    pack_gqa: bool
    stages: int
    freq: int
    start: int
    ping_pong: bool

    @property
    def tile_m(self) -> int:
        """Rows that share their KV tiles: those of all stages and CTAs."""
        return TILE_M * self.stages * (2 if self.two_cta else 1)


def configure(
    *,
    head_dim: int,
    head_dim_v: int,
    seqlen_q: int,
    batch: int,
    heads: int,
    heads_kv: int,
    causal: bool,
    local: bool,
    modified: bool = False,
    pack_gqa: bool | None = None,
    disable_2cta: bool = False,
    num_sms: int = B200_SMS,
    eight_bits: bool = False,
) -> Configuration:
    """FA4's choice; `modified` says that softcap or a sink is there, `disable_2cta` is FA_DISABLE_2CTA=1 or CUDA 12."""
    group = heads // heads_kv
    is_256 = head_dim == 256 and head_dim_v == 256
    if pack_gqa is None:
        prefers_two_cta = seqlen_q > TILE_M or 2 * batch * heads <= num_sms
        pack_gqa = group > 1 and not (is_256 and TILE_M % group != 0 and prefers_two_cta)
    rows = seqlen_q * (group if pack_gqa else 1)
    stages = 2 if rows > TILE_M and head_dim_v != 256 else 1
    padded, padded_v = (math.ceil(d / 16) * 16 for d in (head_dim, head_dim_v))
    decode_256 = is_256 and 2 * batch * (heads_kv if pack_gqa else heads) <= num_sms
    suits = (
        (rows > stages * TILE_M or decode_256)
        and (TILE_M % group == 0 or not pack_gqa)
        and (is_256 or (not causal and not local and padded in (128, 192) and padded_v == 128))
    )
    pair = suits and not disable_2cta
    freq, start = TUNED.get((pair, causal, padded), (None, 1))
    if eight_bits and padded >= 96:
        freq, start = TUNED_8_BITS.get((pair, causal, padded), (freq, start))
    emulates = padded <= 128 if freq is None else freq > 0
    if not emulates:
        freq = 0
    elif freq is None:
        freq = 10 if pack_gqa and padded > 64 and not causal and not local else 16
    ping_pong = stages == 1 and head_dim in (64, 128, 256) and head_dim_v == head_dim and not modified
    return Configuration(pair, pack_gqa, stages, freq, start, ping_pong)


def emulated_columns(freq: int, res: int, start: int, tile_n: int = TILE_N) -> tuple[int, ...]:
    """Columns of a KV tile that take the polynomial: pairs (k, k + 1) of 32-column fragments, never in the last one."""
    if freq <= 0:
        return ()
    last = tile_n // FRAGMENT - 1
    return tuple(
        fragment * FRAGMENT + k + lane
        for fragment in range(max(start, 0), last)
        for k in range(0, FRAGMENT, 2)
        if k % freq >= freq - res
        for lane in (0, 1)
    )
