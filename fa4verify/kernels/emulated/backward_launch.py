"""From torch tensors to the backward's loop and back: what FA4's host code does around the kernels.

Contract: the checks of `_flash_attn_bwd`, tiles and zero padding, the adds over the query heads of a group, and the
last step: dQ and dK times the scale in fp32, then one rounding. No keys or no queries: no kernel runs, all gradients
are 0 and dsink is the sum of dLSE.

Fails first on groups and on ragged ends: tests/golden/test_backward_h200.py.
Source: flash-attn-4 4.0.0b36, `interface._flash_attn_bwd`, `flash_bwd_postprocess`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fa4verify.arithmetic.mma import ARCHITECTURES
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated import backward
from fa4verify.kernels.emulated.backward_order import DK, DV, dq_turns, head_turns, visited
from fa4verify.kernels.emulated.backward_preprocess import preprocess, sink_gradient, threads_of_row
from fa4verify.kernels.emulated.launch import DTYPES, check
from fa4verify.kernels.emulated.softmax_sm90 import LOG2_E
from fa4verify.kernels.emulated.visibility import Mask, visits
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fa4verify.kernels.emulated.backward_storage import Storage

K_STEP = 16  # head dims are zero-padded to it, which changes no bit


@dataclass(frozen=True)
class Setup:
    """What a kernel fixes before it runs. `tile_n` keys share one dQ partial: those of both CTAs of a pair.

    `padded_to`: head dims are padded to a multiple of it, which decides how many threads share a row of delta.
    `two_kernels`: hd 256 on SM100, where dQ is one chain, and dK and dV are one over the query heads of the group.
    Storage where the accumulators are not read as they were written.
    """

    architecture: str
    tile_m: int
    tile_n: int
    padded_to: int = 32
    sink_threads: int = 256
    two_kernels: bool = False
    dq_storage: Storage | None = None
    dkv_storage: Storage | None = None  # for grouped heads


@dataclass(frozen=True)
class Problem:
    """One shape and mask on one kernel. `seed` None: FA4's deterministic order of adds."""

    setup: Setup
    mask: Mask
    seqlen_q: int
    seqlen_k: int
    dtype: str
    scale: np.float32
    softcap: float
    seed: int | None

    @property
    def rules(self) -> backward.Rules:
        """The loop's numbers; log2(e) is folded into the scale as the launch code does, unless softcap is between."""
        with np.errstate(over="ignore", under="ignore"):
            c = LOG2_E if self.softcap else np.float32(self.scale * LOG2_E)
        setup = self.setup
        return backward.Rules(setup.tile_m, setup.tile_n, self.dtype == "fp16", c, self.scale, np.float32(self.softcap))

    def met(self) -> NDArray[np.bool_]:
        """Return which query and KV tiles meet."""
        return visited(
            self.mask,
            tile_m=self.setup.tile_m,
            tile_n=self.setup.tile_n,
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
        )

    def turns(self, met: NDArray[np.bool_], *stream: int) -> NDArray[np.int64]:
        """Return the order of dQ's adds for one head."""
        return dq_turns(met, descending=self.mask.causal or self.mask.local, seed=self.seed, stream=stream)

    def group(
        self, tensors: tuple[NDArray[np.float32], ...], rows: tuple[NDArray[np.float32], ...], stream: tuple[int, int]
    ) -> tuple[NDArray[np.float32], ...]:
        """Return dQ (seqlen_q, group, D), dK and dV (seqlen_k, D) of one KV head, not rounded; two_kernels: dQ scaled.

        tensors: q, dout (seqlen_q, group, D) and k, v (seqlen_k, D). rows: delta, LSE in log2 units (group, padded).
        """
        q, dout, k, v = tensors
        delta, lse_log2 = (x.reshape(len(x), -1, self.setup.tile_m) for x in rows)
        met, rules = self.met(), self.rules
        step = ARCHITECTURES[self.setup.architecture].step(self.dtype)
        seen = visits(
            self.mask, tile_m=rules.tile_m, tile_n=rules.tile_n, seqlen_q=self.seqlen_q, seqlen_k=self.seqlen_k,
            padded_rows=delta[0].size,
        )  # fmt: skip
        low, high = seen.first_key.reshape(-1, rules.tile_m), seen.end_key.reshape(-1, rules.tile_m)
        k_tiles, v_tiles = _tiles(k, rules.tile_n), _tiles(v, rules.tile_n)
        dq = np.zeros_like(q)
        one_chain = self.setup.two_kernels
        dk, dv = (np.zeros((1 if one_chain else q.shape[1], *x.shape), np.float32) for x in (k_tiles, v_tiles))
        no_dq = np.empty((len(met), 0), np.int64)
        for h in range(q.shape[1]):
            q_tiles, dout_tiles = _tiles(q[:, h], rules.tile_m), _tiles(dout[:, h], rules.tile_m)
            dq_tiles = np.zeros_like(q_tiles)
            turns = no_dq if one_chain else self.turns(met, *stream, h)
            own = 0 if one_chain else h
            backward.gradients(
                q_tiles, k_tiles, v_tiles, dout_tiles, low, high, lse_log2[h], delta[h], met, turns, rules, step,
                one_chain and h > 0, dq_tiles, dk[own], dv[own],
            )  # fmt: skip
            if one_chain:
                backward.dq_in_one_chain(
                    q_tiles, k_tiles, v_tiles, dout_tiles, low, high, lse_log2[h], delta[h], met, rules, step, dq_tiles
                )
            dq[:, h] = _untiled(dq_tiles, q[:, h], self.setup.dq_storage)
        storage = self.setup.dkv_storage if q.shape[1] > 1 else None
        dk, dv = self._sum(dk, DK, stream), self._sum(dv, DV, stream)
        return dq, _untiled(dk, k, storage), _untiled(dv, v, storage)

    def _sum(self, parts: NDArray[np.float32], kind: int, stream: tuple[int, int]) -> NDArray[np.float32]:
        """Add (heads, KV tiles, tile_n, D) over heads in fp32, each KV tile in its turn."""
        if len(parts) == 1:
            return parts[0]
        total = np.zeros_like(parts[0])
        for n, heads in enumerate(head_turns(len(parts), len(total), kind=kind, seed=self.seed, stream=stream)):
            for h in heads:
                total[n] += parts[h, n]
        return total


def gradients(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    setup: Setup,
    mask: Mask,
    softcap: float,
    learnable_sink: torch.Tensor | None,
    softmax_scale: float | None,
    deterministic: bool,
    seed: int | None,
    dlse: torch.Tensor | None,
    gradient_dtype: str | None,
    provenance: Mapping[str, str],
) -> Output:
    """Run the loop over every batch and KV head; o and lse as the forward gave them.

    gradient_dtype "fp32" leaves out the last rounding of dq, dk, dv, which hides most of what the order of adds does.
    """
    if gradient_dtype not in (None, "fp32"):
        raise ValueError(f"gradient_dtype {gradient_dtype!r}: expected fp32 or nothing")
    dtype = q.dtype if gradient_dtype is None else torch.float32
    _check(dout, q, k, v, o, lse, softcap, learnable_sink, dlse)
    batch, seqlen_q, heads, head_dim = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    group = heads // heads_kv
    scale = np.float32(head_dim**-0.5 if softmax_scale is None else softmax_scale)
    problem = Problem(
        setup, mask, seqlen_q, seqlen_k, DTYPES[q.dtype], scale, softcap, None if deterministic else (seed or 0)
    )
    delta, lse_log2 = _rows(dout, o, lse, dlse, setup)
    dq, dk, dv = (np.zeros(tuple(x.shape), np.float32) for x in (q, k, v))
    runs = bool(q.numel() and k.numel())
    if runs:
        queries, keys, values, douts = (_array(x) for x in (q, k, v, dout))
        for b, h in np.ndindex(batch, heads_kv):
            own = slice(h * group, (h + 1) * group)
            dq[b, :, own], dk[b, :, h], dv[b, :, h] = problem.group(
                (queries[b, :, own], douts[b, :, own], keys[b, :, h], values[b, :, h]),
                (delta[b, own], lse_log2[b, own]),
                (b, h),
            )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        dk *= scale
        if not setup.two_kernels:
            dq *= scale
    dsink = None
    if learnable_sink is not None:
        dsink = torch.from_numpy(_dsink(_array(learnable_sink), _array(lse), delta, dlse, setup, runs))
    return Output(
        dq=torch.from_numpy(dq).to(dtype),
        dk=torch.from_numpy(dk).to(dtype),
        dv=torch.from_numpy(dv).to(dtype),
        delta=torch.from_numpy(np.ascontiguousarray(delta[:, :, :seqlen_q])),
        dsink=dsink,
        activity=_activity(problem, group) if runs else {},
        provenance=provenance,
    )


def _check(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    softcap: float,
    learnable_sink: torch.Tensor | None,
    dlse: torch.Tensor | None,
) -> None:
    check(q, k, v, softcap, learnable_sink)
    batch, seqlen_q, heads, _ = q.shape
    for name, tensor in (("dout", dout), ("o", o)):
        if tensor.dtype != q.dtype or tuple(tensor.shape) != (batch, seqlen_q, heads, v.shape[-1]):
            raise Unsupported(f"{name} must be {q.dtype} {(batch, seqlen_q, heads, v.shape[-1])}")
    for name, statistic in (("lse", lse), ("dlse", dlse)):
        if statistic is not None and (
            statistic.dtype != torch.float32 or tuple(statistic.shape) != (batch, heads, seqlen_q)
        ):
            raise Unsupported(f"{name} must be float32 {(batch, heads, seqlen_q)}")


def _rows(
    dout: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, dlse: torch.Tensor | None, setup: Setup
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Delta and LSE in log2 units, (batch, heads, rows padded to tile_m): 0 and +inf beyond the end, so that P = 0."""
    batch, seqlen_q, heads, head_dim_v = o.shape
    padded = -(-seqlen_q // setup.tile_m) * setup.tile_m
    delta = np.zeros((batch, heads, padded), np.float32)
    lse_log2 = np.full((batch, heads, padded), np.inf, np.float32)
    outputs, douts, lses = _array(o), _array(dout), _array(lse)
    dlses = np.zeros_like(lses) if dlse is None else _array(dlse)
    threads = threads_of_row(head_dim_v, setup.padded_to)
    for b, h in np.ndindex(batch, heads):
        o_h, dout_h = (np.ascontiguousarray(x[b, :, h]) for x in (outputs, douts))
        rows = slice(seqlen_q)
        preprocess(o_h, dout_h, lses[b, h], dlses[b, h], threads, delta[b, h, rows], lse_log2[b, h, rows])
    return delta, lse_log2


def _dsink(
    sinks: NDArray[np.float32],
    lse: NDArray[np.float32],
    delta: NDArray[np.float32],
    dlse: torch.Tensor | None,
    setup: Setup,
    runs: bool,
) -> NDArray[np.float32]:
    """Return dsink (heads,); without a kernel, the sink is the LSE."""
    if not runs:
        return np.zeros_like(sinks) if dlse is None else _array(dlse.sum(dim=(0, 2)))
    dsink = np.empty_like(sinks)
    for h, sink in enumerate(sinks):
        dsink[h] = sink_gradient(lse[:, h], delta[:, h, : lse.shape[2]], sink, setup.sink_threads)
    return dsink


def _activity(problem: Problem, group: int) -> dict[str, float]:
    """Count for one head how many partials a query tile's dQ is made of, and how many heads a dK is."""
    met = problem.met()
    adds = met.sum(axis=1)
    default = dq_turns(met, descending=problem.mask.causal or problem.mask.local)
    shuffled = (problem.turns(met, 0, 0, 0) != default).any(axis=1)
    one = problem.setup.two_kernels
    return {
        "tiles_visited": float(met.sum()),
        "dq_adds_max": 1.0 if one else float(adds.max()),
        "dq_adds_mean": 1.0 if one else float(adds.mean()),
        "dq_tiles_of_three_adds": 0.0 if one else float((adds >= 3).sum()),
        "dq_tiles_shuffled": 0.0 if one else float(shuffled.sum()),
        "dkv_adds": 1.0 if one else float(group),
    }


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    return x.detach().cpu().float().contiguous().numpy()


def _tiles(x: NDArray[np.float32], tile: int) -> NDArray[np.float32]:
    """Cut (rows, n) into (tiles, tile, n padded to the MMA's step), zeros beyond both ends."""
    tiles = -(-x.shape[0] // tile)
    padded = np.zeros((tiles * tile, -(-x.shape[1] // K_STEP) * K_STEP), np.float32)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded.reshape(tiles, tile, -1)


def _untiled(tiles: NDArray[np.float32], like: NDArray[np.float32], storage: Storage | None) -> NDArray[np.float32]:
    if storage is not None:
        tiles = storage.reread(tiles)
    return tiles.reshape(-1, tiles.shape[2])[: like.shape[0], : like.shape[1]]
