"""A FlashAttention backward in plain float32 NumPy that can be wrong in one named way.

Contract: with `fault=None` it is a sound kernel of FA4's kind, chained from the forward of flash.py: delta from the
16-bit O, P from LSE, dS from the unrounded P, P and dS rounded to the dtype of q, dQ added up in fp32 from a partial
for each tile of 128 keys (ascending; descending under a causal mask or a window), dK and dV over query heads ascending.
It must pass the gate. With a fault it differs from its clean twin by that one mistake, in the backward alone. It shares
no code with fa4verify/kernels. Not bit-exact to anything: products run through BLAS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fa4verify.vocabulary import Output

from .flash import TILE, Flash, _rounded, _truncate

LOG2_E = np.float32(math.log2(math.e))

FAULTS = {
    "gradients-zero": "dQ, dK and dV are all zero",
    "delta-of-bf16-products": "delta sums products O * dO that were rounded to bf16",
    "delta-omitted": "dS is P * dP: delta is left out",
    "dlse-ignored": "the gradient through LSE is dropped",
    "ds-of-rounded-p": "dS uses the P that was rounded to 16 bits for dV",
    "ds-in-16-bits": "P and dP - delta are rounded to 16 bits before they are multiplied",
    "ds-truncated": "dS is truncated to 16 bits instead of rounded",
    "p-truncated-for-dv": "P is truncated to 16 bits instead of rounded for dV",
    "scale-twice": "dQ gets the softmax scale twice",
    "dk-unscaled": "dK misses the softmax scale",
    "lse-read-in-base-2": "P is rebuilt from an LSE that is taken to be in base 2",
    "dq-last-tile-lost": "dQ misses the partial of the last KV tile",
    "dq-tile-twice": "the semaphore of dQ skips a turn: the first partial is added twice",
    "dq-added-in-fp16": "dQ's partials are added in fp16",
    "dk-last-queries-lost": "dK and dV miss the last 32 queries",
    "dk-head-map": "dK and dV of query head h go to KV head h mod heads_kv",
    "group-forgets-a-head": "dK and dV leave out the last query head of a group",
    "causal-top-left": "the backward aligns the causal mask at the top left",
    "window-edge": "the backward's window reaches one key too far to the left",
    "empty-row-gradient": "a row without keys counts as one whose keys all weigh the same",
    "tail-is-last-key": "keys behind the end of a ragged sequence are copies of the last one",
    "softcap-slope-missing": "dS is not multiplied by 1 - tanh^2",
    "softcap-slope-of-scaled": "1 - tanh^2 is taken of the score before the cap's division",
    "dsink-sign": "dsink has the wrong sign",
    "dsink-of-last-batch": "dsink misses the rows of every batch but the last",
    "nan-laundered-in-gradients": "NaN in dQ, dK, dV becomes 0",
    "order-random": "dQ's partials are added in a random order although `deterministic` asks for one order",
}


@dataclass(frozen=True)
class FlashBackward:
    """The kernel; `fault` is a key of FAULTS or None."""

    fault: str | None = None

    @property
    def name(self) -> str:
        """The name under which `--kernel` finds it."""
        return f"tests.mutants.flash_backward:FlashBackward({self.fault})"

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Output:
        """Run the sound forward: every fault here is the backward's."""
        return Flash().forward(q, k, v, **options)

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        deterministic: bool = True,
        seed: int | None = None,
        dlse: torch.Tensor | None = None,
    ) -> Output:
        """Gradients of attention; shapes as in fa4verify.vocabulary."""
        (batch, _, heads, head_dim), heads_kv, group = q.shape, k.shape[2], q.shape[2] // k.shape[2]
        scale = np.float32(head_dim**-0.5 if softmax_scale is None else softmax_scale)
        left, right = (None, 0) if causal else window_size
        delta = self._delta(o, dout)
        below = delta if dlse is None or self.fault == "dlse-ignored" else delta - dlse.numpy()
        generator = None
        if not deterministic or self.fault == "order-random":
            generator = np.random.default_rng(None if deterministic else seed)
        dq, dk, dv = (np.zeros(tuple(x.shape), np.float32) for x in (q, k, v))
        for b, h in np.ndindex(batch, heads):
            kv = h // group
            part = self._head(
                *(x[b, :, h].float().numpy() for x in (q, dout)),
                *(x[b, :, kv].float().numpy() for x in (k, v)),
                *(lse[b, h].numpy(), below[b, h]),
                (left, right, scale, np.float32(softcap), q.dtype, generator),
            )
            dq[b, :, h] = part[0]
            if self.fault == "group-forgets-a-head" and group > 1 and h % group == group - 1:
                continue
            to = h % heads_kv if self.fault == "dk-head-map" else kv
            dk[b, :, to] += part[1]
            dv[b, :, to] += part[2]
        dq *= scale * scale if self.fault == "scale-twice" else scale
        dk *= 1 if self.fault == "dk-unscaled" else scale
        if self.fault == "gradients-zero":
            dq, dk, dv = (np.zeros_like(x) for x in (dq, dk, dv))
        if self.fault == "nan-laundered-in-gradients":
            dq, dk, dv = (np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) for x in (dq, dk, dv))
        return Output(
            **{name: torch.from_numpy(x).to(q.dtype) for name, x in (("dq", dq), ("dk", dk), ("dv", dv))},
            delta=torch.from_numpy(delta),
            dsink=None if learnable_sink is None else self._dsink(learnable_sink.numpy(), lse.numpy(), below),
        )

    def _delta(self, o: torch.Tensor, dout: torch.Tensor) -> np.ndarray:
        products = (o.float() * dout.float()).numpy()
        if self.fault == "delta-of-bf16-products":
            products = _rounded(products, torch.bfloat16)
        return np.ascontiguousarray(products.sum(axis=3, dtype=np.float32).swapaxes(1, 2))

    @np.errstate(all="ignore")  # a GPU is silent about inf - inf
    def _dsink(self, sink: np.ndarray, lse: np.ndarray, delta: np.ndarray) -> torch.Tensor:
        p = np.exp2((sink[:, None] - lse) * LOG2_E)
        terms = -np.where(np.isneginf(lse), np.float32(1), p) * delta
        terms = terms[-1:] if self.fault == "dsink-of-last-batch" else terms
        dsink = terms.sum(axis=(0, 2), dtype=np.float32)
        return torch.from_numpy(-dsink if self.fault == "dsink-sign" else dsink)

    @np.errstate(all="ignore")
    def _head(self, q, dout, k, v, lse, delta, settings):
        left, right, scale, softcap, dtype, generator = settings
        fault, count, tiles = self.fault, len(k), -(-len(k) // TILE)
        rows, keys = np.arange(len(q))[:, None], np.arange(tiles * TILE)
        diagonal = rows if fault == "causal-top-left" and right == 0 and left is None else rows + count - len(q)
        visible = np.broadcast_to(keys < count, (len(q), len(keys))).copy()
        if left is not None:
            visible &= keys >= diagonal - left - (fault == "window-edge")
        if right is not None:
            visible &= keys <= diagonal + right
        source = np.minimum(keys, count - 1) if fault == "tail-is-last-key" else keys
        if fault == "tail-is-last-key":
            visible[:, count:] = visible[:, count - 1 : count]
        empty = ~visible.any(axis=1)
        k_tiles, v_tiles = (np.zeros((len(keys), x.shape[1]), np.float32) for x in (k, v))
        inside = source < count
        k_tiles[inside], v_tiles[inside] = k[source[inside]], v[source[inside]]
        p, ds = self._p_and_ds(q, dout, k_tiles, v_tiles, lse, delta, visible, empty, (scale, softcap, dtype))
        p16 = _truncate(p, dtype) if fault == "p-truncated-for-dv" else _rounded(p, dtype)
        ds16 = _truncate(ds, dtype) if fault == "ds-truncated" else _rounded(ds, dtype)
        used = slice(len(q) - 32 if fault == "dk-last-queries-lost" and len(q) > 32 else len(q))
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        np.add.at(dk, source[inside], (ds16[used].T @ q[used])[inside])
        np.add.at(dv, source[inside], (p16[used].T @ dout[used])[inside])
        return self._dq(ds16, k_tiles, right is not None or left is not None, generator), dk, dv

    def _p_and_ds(self, q, dout, k, v, lse, delta, visible, empty, settings):
        """P and dS, float32, not rounded."""
        scale, softcap, dtype = settings
        fault, s, slope = self.fault, q @ k.T, np.float32(1)
        c = np.float32(scale * LOG2_E)
        if softcap:
            ratio = s * scale / softcap
            slope = 1 - np.tanh(s * scale if fault == "softcap-slope-of-scaled" else ratio) ** 2
            s, c = softcap * np.tanh(ratio), LOG2_E
        lse_log2 = np.where(np.isneginf(lse), 0, lse if fault == "lse-read-in-base-2" else lse * LOG2_E)
        p = np.where(visible, np.exp2(s * c - lse_log2[:, None]), 0).astype(np.float32)
        if fault == "empty-row-gradient":
            p[empty] = np.float32(1 / max(1, len(k)))
        difference = dout @ v.T
        if fault != "delta-omitted":
            difference = difference - delta[:, None]
        if fault == "ds-in-16-bits":
            difference = _rounded(difference, dtype)
        ds = (_rounded(p, dtype) if fault in ("ds-of-rounded-p", "ds-in-16-bits") else p) * difference
        if softcap and fault != "softcap-slope-missing":
            ds = ds * slope
        return p, np.where(visible | empty[:, None], ds, 0).astype(np.float32)

    def _dq(self, ds16, k, descending, generator):
        """Add up a partial for each KV tile, in fp32."""
        fault, tiles = self.fault, len(k) // TILE
        order = list(range(tiles))[:: -1 if descending else 1]
        if generator is not None:
            order = generator.permutation(order)
        dq = np.zeros((len(ds16), k.shape[1]), np.float32)
        for turn, tile in enumerate(order):
            if fault == "dq-last-tile-lost" and tile == tiles - 1:
                continue
            keys = slice(tile * TILE, (tile + 1) * TILE)
            dq += ds16[:, keys] @ k[keys]
            if fault == "dq-tile-twice" and turn == 0:
                dq += ds16[:, keys] @ k[keys]
            if fault == "dq-added-in-fp16":
                dq = _rounded(dq, torch.float16)
        return dq
