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

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
EIGHT_BITS = ("e4m3", "e5m2")
TORCH = {name: dtype for dtype, name in DTYPES.items()} | {"fp32": torch.float32}
BLOCK = 128  # tokens that share a scale of a block
PER_ROW = {
    "rescales_done": online.RESCALES_DONE,
    "rescales_skipped": online.RESCALES_SKIPPED,
    "tiles_visited": online.TILES_VISITED,
    "tiles_masked": online.TILES_MASKED,
    "p_saturated": online.SATURATED,
}
TOTALS = PER_ROW | {
    "emulated_exp2": online.EMULATED,
    "hardware_exp2": online.HARDWARE,
    "rows_dominant_not_one": online.NOT_ONE,
}
NO_COLUMNS: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """What a kernel fixes before it runs: tiles, order, and the numbers of its softmax.

    `tile_m` rows share their KV tiles (FA4's row tile, or the rows of all its stages and CTAs). `emulated` are the
    columns of a KV tile that take the polynomial with `coefficients`; `nearest` is its range reduction.
    `accumulator_bits` replaces the fraction bits that the tensor core's 8-bit steps keep.
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
    accumulator_bits: int | None = None


@dataclass(frozen=True)
class Descales:
    """What 8-bit codes are multiplied with: float32 (batch, heads_kv), or of blocks of BLOCK tokens one more axis.

    Those of blocks are (batch, heads, blocks) for q, (batch, heads_kv, blocks) for k and v. None stands for ones.
    """

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None

    @property
    def of_blocks(self) -> bool:
        """Whether they belong to blocks of tokens."""
        return any(given is not None and given.ndim == 3 for given in (self.q, self.k, self.v))

    def check(self, q: torch.Tensor, k: torch.Tensor, *, blocks: bool = False) -> None:
        """Refuse a shape or dtype that the kernel does not take."""
        batch, heads_kv = q.shape[0], k.shape[2]
        for name, given in (("q", self.q), ("k", self.k), ("v", self.v)):
            if given is None:
                continue
            shapes: list[tuple[int, ...]] = [(batch, heads_kv)]
            if blocks:
                tokens, heads = (q.shape[1], q.shape[2]) if name == "q" else (k.shape[1], heads_kv)
                shapes.append((batch, heads, -(-tokens // BLOCK)))
            if q.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
                raise Unsupported(f"{name}_descale is only supported for FP8 inputs")
            if tuple(given.shape) not in shapes or given.dtype != torch.float32:
                expected = " or ".join(map(str, shapes))
                raise Unsupported(f"{name}_descale must be float32 {expected}, not {given.dtype} {tuple(given.shape)}")
        if self.of_blocks and not all(given is not None and given.ndim == 3 for given in (self.q, self.k, self.v)):
            raise Unsupported("scales of blocks must be given for q, k and v together")


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softcap: float,
    learnable_sink: torch.Tensor | None,
    *,
    eight_bits: bool = False,
) -> None:
    """Refuse what FA4 refuses whatever the architecture."""
    if not q.dtype == k.dtype == v.dtype:
        raise Unsupported(f"q, k, v must share one dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype not in DTYPES or (DTYPES[q.dtype] in EIGHT_BITS and not eight_bits):
        raise Unsupported(f"inputs must be float16 or bfloat16{', e4m3 or e5m2' * eight_bits}, not {q.dtype}")
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
    descales: Descales | None = None,
) -> Output:
    """Run the loop over every batch and head; tensors as in vocabulary, already checked. O of 8-bit inputs is bf16."""
    descales = descales or Descales()
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
        plan = _plan(launch, DTYPES[q.dtype], scale, softcap, learnable_sink is not None, descales.of_blocks)
        architecture = ARCHITECTURES[launch.architecture]
        step = architecture.step(DTYPES[q.dtype])
        if launch.accumulator_bits is not None:
            step = step._replace(fraction_bits=launch.accumulator_bits, output_bits=min(23, launch.accumulator_bits))
        # An 8-bit P goes to the 16-bit tensor core: its values are values of both 16-bit dtypes.
        p_step = step if launch.p_dtype in (None, *EIGHT_BITS) else architecture.step(launch.p_dtype)
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
            own_plan = _descaled(plan, scale, descales, b, h)
            k_scales, v_scales = (_of_tiles(given, b, h, tiles) for given in (descales.k, descales.v))
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
                    launch.tile_m, np.resize(sinks[own], padded), own_plan, step, p_step, emulated, coefficients,
                    _of_rows(descales.q, b, own, seqlen_q, padded), k_scales, v_scales,
                    rows_o, rows_lse, rows_count, rows_p,
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
        o=torch.from_numpy(o).to(TORCH[_o_dtype(launch, DTYPES[q.dtype])]),  # exact: the loop rounded
        lse=torch.from_numpy(lse),
        activity=activity,
        activity_per_row={name: counts[..., column] for name, column in PER_ROW.items()},
        provenance=provenance,
    )


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    return x.detach().cpu().float().contiguous().numpy()


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _o_dtype(launch: Launch, dtype: str) -> str:
    return launch.o_dtype or ("bf16" if dtype in EIGHT_BITS else dtype)


def _descaled(plan: online.Plan, scale: np.float32, descales: Descales, b: int, h: int) -> online.Plan:
    """Fold the descales of one batch and KV head into the plan, in FA4's order: (1 * q) * k, then times c or scale."""
    if descales.of_blocks:
        return plan

    def of(given: torch.Tensor | None) -> np.float32:
        return np.float32(1.0) if given is None else np.float32(given[b, h].item())

    with np.errstate(over="ignore", under="ignore"):
        qk = of(descales.q) * of(descales.k)
        if plan.softcap:
            return plan._replace(softmax_scale=np.float32(scale * qk), v_descale=of(descales.v))
        return plan._replace(c=np.float32(plan.c * qk), v_descale=of(descales.v))


def _of_tiles(given: torch.Tensor | None, b: int, h: int, tiles: int) -> NDArray[np.float32]:
    """Return the scale of each KV tile; 1 for a tile beyond the keys, and where there are no blocks."""
    found = np.ones(tiles, np.float32)
    if given is not None and given.ndim == 3:
        own = _array(given[b, h])[:tiles]
        found[: len(own)] = own
    return found


def _of_rows(given: torch.Tensor | None, b: int, own: slice, seqlen_q: int, padded: int) -> NDArray[np.float32]:
    """Return the scale of each packed row (query * group + head)."""
    found = np.ones(padded, np.float32)
    if given is not None and given.ndim == 3:
        packed = np.repeat(_array(given[b, own]), BLOCK, axis=1)[:, :seqlen_q].T.reshape(-1)
        found[: len(packed)] = packed
    return found


def _plan(
    launch: Launch, dtype: str, scale: np.float32, softcap: float, has_sink: bool, of_blocks: bool
) -> online.Plan:
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
        o_format=online.FORMAT_CODES[_o_dtype(launch, dtype)],
        has_sink=has_sink,
        nearest=launch.nearest,
        v_descale=np.float32(1.0),
        blocks=of_blocks,
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
