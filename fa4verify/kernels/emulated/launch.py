"""From torch tensors to the loop and back: what FA4's host code does around the kernel.

Contract: checks what FA4 checks, packs the query heads of a group into rows (row = query * group + head), folds
log2(e) into the scale in fp32 as the launch code does (with softcap the scale stays apart), and turns counts of rows
into totals. No keys or no queries: no kernel runs, O = 0 and LSE = -inf, or the sink.

Fails first on packed rows of a group and on the empty cases: tests/kernels/test_fa4_sm90.py.
Source: flash-attn-4 4.0.0b36, `interface._flash_attn_fwd`, `utils.compute_softmax_scale_log2`, `pack_gqa`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fa4verify.arithmetic.mma import ARCHITECTURES
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated import online
from fa4verify.kernels.emulated.softmax_sm90 import LOG2_E
from fa4verify.kernels.emulated.visibility import Mask, visits
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
TORCH = {name: dtype for dtype, name in DTYPES.items()} | {"fp32": torch.float32}
PER_ROW = {
    "rescales_done": online.RESCALES_DONE,
    "rescales_skipped": online.RESCALES_SKIPPED,
    "tiles_visited": online.TILES_VISITED,
    "tiles_masked": online.TILES_MASKED,
}
TOTALS = PER_ROW | {
    "emulated_exp2": online.EMULATED,
    "hardware_exp2": online.HARDWARE,
    "rows_dominant_not_one": online.NOT_ONE,
    "p_saturated": online.SATURATED,
}
NO_COLUMNS: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """What a kernel fixes before it runs: tiles, order, and the numbers of its softmax.

    `tile_m` rows share their KV tiles (FA4's row tile, or the rows of all its stages and CTAs). `emulated` are the
    columns of a KV tile that take the polynomial with `coefficients`; `nearest` is its range reduction.
    """

    architecture: str
    tile_m: int
    tile_n: int
    packed: bool = False
    descending: bool = True
    lazy: bool = False  # the SM100 softmax
    threshold: float = 0.0
    max_offset: float = 0.0
    p_dtype: str | None = None
    o_dtype: str | None = None
    emulated: tuple[int, ...] = NO_COLUMNS
    coefficients: tuple[float, ...] = (1.0,)
    nearest: bool = False
    empty_loads_first: bool = True


def check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softcap: float, learnable_sink: torch.Tensor | None
) -> None:
    """Refuse what FA4 refuses whatever the architecture."""
    if not q.dtype == k.dtype == v.dtype:
        raise Unsupported(f"q, k, v must share one dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype not in DTYPES:
        raise Unsupported(f"inputs must be float16 or bfloat16, not {q.dtype}")
    batch, _, heads, head_dim = q.shape
    expected = (batch, k.shape[1], k.shape[2])
    if tuple(k.shape) != (*expected, head_dim) or tuple(v.shape[:3]) != expected:
        raise Unsupported(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if k.shape[2] == 0 or heads % k.shape[2]:
        raise Unsupported("num_head must be divisible by num_head_kv")
    if learnable_sink is not None and tuple(learnable_sink.shape) != (heads,):
        raise Unsupported(f"learnable_sink must have shape ({heads},), not {tuple(learnable_sink.shape)}")
    if not math.isfinite(softcap):
        raise Unsupported(f"softcap must be finite, not {softcap}")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    launch: Launch,
    mask: Mask,
    softcap: float,
    learnable_sink: torch.Tensor | None,
    softmax_scale: float | None,
    provenance: Mapping[str, str],
) -> Output:
    """Run the loop over every batch and head; tensors as in vocabulary, already checked."""
    batch, seqlen_q, heads, head_dim = q.shape
    seqlen_k, heads_kv, head_dim_v = v.shape[1:]
    sinks = np.zeros(heads, np.float32) if learnable_sink is None else _array(learnable_sink)
    o = np.zeros((batch, seqlen_q, heads, head_dim_v), np.float32)
    lse = np.full((batch, heads, seqlen_q), -np.inf, np.float32)
    counts = np.zeros((batch, heads, seqlen_q, online.COUNTS), np.int64)
    largest_p = np.zeros((batch, heads, seqlen_q), np.float32)
    if learnable_sink is not None:
        lse[:] = sinks[:, None]
    if seqlen_k and q.numel():
        scale = np.float32(head_dim**-0.5 if softmax_scale is None else softmax_scale)
        plan = _plan(launch, DTYPES[q.dtype], scale, softcap, learnable_sink is not None)
        architecture = ARCHITECTURES[launch.architecture]
        step = architecture.step(DTYPES[q.dtype])
        # An 8-bit P goes to the 16-bit tensor core: its values are values of both 16-bit dtypes.
        p_step = step if launch.p_dtype in (None, "e4m3", "e5m2") else architecture.step(launch.p_dtype)
        emulated = np.zeros(launch.tile_n, np.bool_)
        emulated[list(launch.emulated)] = True
        coefficients = np.array(launch.coefficients, np.float32)
        group = heads // heads_kv
        packed = group if launch.packed else 1
        q32, k32, v32 = _array(q), _array(k), _array(v)
        padded = _padded_rows(seqlen_q * packed, launch, plan, q32, k32, v32)
        seen = visits(
            mask,
            tile_m=launch.tile_m,
            tile_n=launch.tile_n,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            group=packed,
            empty_loads_first=launch.empty_loads_first,
            padded_rows=padded,
        )
        tiles = int(seen.end_tile.max())
        width = _round_up(head_dim, step.k_step)
        for b, h in np.ndindex(batch, heads_kv):
            k_tiles = np.ascontiguousarray(_tiles(k32[b, :, h], tiles, launch.tile_n, width).transpose(0, 2, 1))
            v_tiles = _tiles(v32[b, :, h], tiles, launch.tile_n, head_dim_v)
            for first in range(h * group, (h + 1) * group, packed):
                own = slice(first, first + packed)
                rows_q = np.zeros((padded, width), np.float32)
                rows_q[: seqlen_q * packed, :head_dim] = q32[b, :, own].reshape(-1, head_dim)
                rows_o = np.zeros((seqlen_q * packed, head_dim_v), np.float32)
                rows_lse = np.zeros(seqlen_q * packed, np.float32)
                rows_count = np.zeros((padded, online.COUNTS), np.int64)
                rows_p = np.zeros(padded, np.float32)
                online.attend(
                    rows_q, k_tiles, v_tiles, seen.first_key, seen.end_key, seen.first_tile, seen.end_tile,
                    launch.tile_m, np.resize(sinks[own], padded), plan, step, p_step, emulated,
                    coefficients, rows_o, rows_lse, rows_count, rows_p,
                )  # fmt: skip
                real = slice(seqlen_q * packed)
                o[b, :, own] = rows_o.reshape(seqlen_q, packed, head_dim_v)
                lse[b, own] = rows_lse.reshape(seqlen_q, packed).T
                counts[b, own] = rows_count[real].reshape(seqlen_q, packed, -1).transpose(1, 0, 2)
                largest_p[b, own] = rows_p[real].reshape(seqlen_q, packed).T
    activity = {name: float(counts[..., column].sum()) for name, column in TOTALS.items()}
    # Records hold finite numbers: an infinite P counts as the largest of fp32 (and as saturated).
    activity["max_p"] = float(min(largest_p.max(initial=0.0), np.finfo(np.float32).max))
    return Output(
        o=torch.from_numpy(o).to(TORCH[launch.o_dtype or DTYPES[q.dtype]]),  # exact: the loop rounded
        lse=torch.from_numpy(lse),
        activity=activity,
        activity_per_row={name: counts[..., column] for name, column in PER_ROW.items()},
        provenance=provenance,
    )


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    return x.detach().cpu().float().contiguous().numpy()


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _plan(launch: Launch, dtype: str, scale: np.float32, softcap: float, has_sink: bool) -> online.Plan:
    with np.errstate(over="ignore", under="ignore"):
        c = LOG2_E if softcap else np.float32(scale * LOG2_E)
    return online.Plan(
        sm100=launch.lazy,
        tile_n=launch.tile_n,
        descending=launch.descending,
        c=c,
        softmax_scale=scale,
        softcap=np.float32(softcap),
        threshold=np.float32(launch.threshold),
        offset=np.float32(launch.max_offset),
        p_format=online.FORMAT_CODES[launch.p_dtype or dtype],
        o_format=online.FORMAT_CODES[launch.o_dtype or dtype],
        has_sink=has_sink,
        nearest=launch.nearest,
    )


def _padded_rows(rows: int, launch: Launch, plan: online.Plan, *tensors: NDArray[np.float32]) -> int:
    """Rows to work: the last warp is completed where its idle rows may vote on a rescale by NaN (SM100 only)."""
    q, k, v = (float(np.abs(x).max()) for x in tensors)
    tame = q * k * tensors[0].shape[-1] < 1e38 and math.isfinite(v) and plan.c > 0
    return rows if tame or not launch.lazy else _round_up(rows, online.WARP)


def _tiles(x: NDArray[np.float32], tiles: int, tile_n: int, width: int) -> NDArray[np.float32]:
    """Cut (keys, n) into (tiles, tile_n, width), zeros beyond both ends."""
    padded = np.zeros((max(tiles * tile_n, x.shape[0]), width), np.float32)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded[: tiles * tile_n].reshape(tiles, tile_n, width)
