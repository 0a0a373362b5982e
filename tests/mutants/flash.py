"""A FlashAttention forward in plain float32 NumPy that can be wrong in one named way.

Contract: with `fault=None` it is a sound kernel of FA4's kind (128-key tiles right to left, conditional rescale at
tau = 8, degree-3 polynomial on FA4's default columns, P rounded to the dtype of q) and must pass the gate. With a fault
it differs from its clean twin by that one mistake. It shares no code with fa4verify/kernels: the gate must catch faults
in kernels that it has never seen. Not bit-exact to anything: sums run through BLAS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fa4verify.kernels import Unsupported
from fa4verify.vocabulary import Output

TILE = 128
ROWS = 256
TAU = np.float32(8)
COLUMNS = np.isin(np.arange(TILE), [c for start in (44, 60, 76, 92) for c in range(start, start + 4)])
C3, C2, C1 = (np.float32(float.fromhex(c)) for c in ("0x1.3be13ap-4", "0x1.d20d48p-3", "0x1.63ea32p-1"))

FAULTS = {
    "zeros": "O and LSE are all zero",
    "tile-dropped": "the second KV tile is never visited",
    "causal-off-by-one": "the causal mask hides the diagonal",
    "window-off-by-one": "the left edge of the window reaches one key too far",
    "scale-2^-7": "softmax_scale is larger by 2^-7 of itself",
    "p-truncated": "P is truncated to 16 bits instead of rounded",
    "o-truncated": "O is truncated to 16 bits instead of rounded",
    "row-sum-bf16": "the row sum is kept in bf16",
    "row-sum-of-rounded-p": "the row sum forgets the keys of the last column of each tile",
    "rescale-forgotten": "a new maximum is adopted, O and the row sum are not rescaled",
    "tile-max-only": "every tile adopts its own maximum, below the running one too",
    "max-floored-at-0": "the running maximum starts at 0 instead of -inf",
    "sentinel-5e4": "masked scores are -5e4 instead of -inf",
    "heads-swapped": "query head h reads KV head h mod heads_kv",
    "lse-base-2": "LSE is returned in base 2",
    "lse-of-true-max": "LSE uses the true maximum, the row sum a stale one",
    "tail-unmasked": "keys behind the end of a ragged sequence count with score 0",
    "sink-ignored": "the learnable sink is left out",
    "softcap-linear": "softcap returns (s/t) tanh(s/t)",
    "one-row-half": "one row of each head is half of what it should be",
    "nan-laundered": "NaN in O becomes 0",
    "batch-broadcast": "every entry of the batch gets the first one's answer",
    "window-dropped-with-causal": "a causal mask forgets the window",
    "softcap-dropped-with-mask": "softcap is left out under a causal mask or a window",
    "sink-dropped-with-gqa": "the learnable sink is left out where query heads share KV heads",
    "zeros-at-decode": "O and LSE are zero for a single query",
    "zeros-beyond-2048": "O and LSE are zero for more than 2048 queries or keys",
    "o-biased": "O is too large by 2^-9 of itself in bf16, 2^-12 in fp16, before it is rounded",
}


def _truncate(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Round float32 toward zero to the significand of the 16-bit dtype (normal numbers)."""
    mask = 0xFFFF0000 if dtype is torch.bfloat16 else 0xFFFFE000
    return (x.view(np.uint32) & np.uint32(mask)).view(np.float32)


def _rounded(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(x)).to(dtype).float().numpy()


def _exp2(x: np.ndarray) -> np.ndarray:
    """2^x: the polynomial on FA4's columns, the library elsewhere."""
    exact = np.exp2(x)
    floor = np.floor(np.maximum(x, np.float32(-127)))
    f = (np.maximum(x, np.float32(-127)) - floor).astype(np.float32)
    polynomial = np.ldexp(((C3 * f + C2) * f + C1) * f + np.float32(1), floor.astype(np.int32))
    polynomial[x <= -127] = 0
    return np.where(COLUMNS[: x.shape[1]], polynomial, exact).astype(np.float32)


@dataclass(frozen=True)
class Flash:
    """The kernel; `fault` is a key of FAULTS or None."""

    fault: str | None = None

    @property
    def name(self) -> str:
        """The name under which `--kernel` finds it."""
        return f"tests.mutants.flash:Flash({self.fault})"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
    ) -> Output:
        """Attention of q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv)."""
        if q.dtype not in (torch.bfloat16, torch.float16):
            raise Unsupported(f"inputs must be float16 or bfloat16, not {q.dtype}")
        batch, seqlen_q, heads, head_dim = q.shape
        group = heads // k.shape[2]
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        scale *= 1 + 2**-7 if self.fault == "scale-2^-7" else 1
        left, right = window_size
        if causal:  # FA4's rule: the left edge stays, the right one is the diagonal
            left, right = (None if self.fault == "window-dropped-with-causal" else left), 0
        if self.fault == "softcap-dropped-with-mask" and (left, right) != (None, None):
            softcap = 0.0
        if self.fault == "sink-dropped-with-gqa" and group > 1:
            learnable_sink = None
        if causal and self.fault == "causal-off-by-one":
            right = -1
        if left is not None and self.fault == "window-off-by-one":
            left += 1
        o = np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
        lse = np.zeros((batch, heads, seqlen_q), np.float32)
        for b in range(batch):
            for h in range(heads):
                kv = h % k.shape[2] if self.fault == "heads-swapped" else h // group
                sink = None if learnable_sink is None or self.fault == "sink-ignored" else float(learnable_sink[h])
                for start in range(0, seqlen_q, ROWS):
                    rows = np.arange(start, min(start + ROWS, seqlen_q))
                    o[b, rows, h], lse[b, h, rows] = self._rows(
                        q[b, rows, h].float().numpy(),
                        k[b, :, kv].float().numpy(),
                        v[b, :, kv].float().numpy(),
                        rows + k.shape[1] - seqlen_q,
                        (left, right, scale, softcap, sink, q.dtype),
                    )
        if self.fault == "one-row-half":
            o[:, seqlen_q // 2 : seqlen_q // 2 + 1] /= 2
        if self.fault == "nan-laundered":
            o = np.nan_to_num(o, nan=0.0, posinf=np.inf, neginf=-np.inf)
        if self.fault == "lse-base-2":
            lse *= np.float32(math.log2(math.e))
        if self.fault == "batch-broadcast":
            o[:], lse[:] = o[:1].copy(), lse[:1].copy()
        if self.fault == "o-biased":
            o *= np.float32(1 + (2**-9 if q.dtype is torch.bfloat16 else 2**-12))
        if self.fault in self._zeroed(seqlen_q, k.shape[1]):
            o, lse = np.zeros_like(o), np.zeros_like(lse)
        if self.fault == "o-truncated":
            o = _truncate(o, q.dtype)
        return Output(o=torch.from_numpy(o).to(q.dtype), lse=torch.from_numpy(lse))

    @staticmethod
    def _zeroed(seqlen_q: int, seqlen_k: int) -> list[str]:
        """Return the faults that answer these lengths with zeros."""
        conditions = {
            "zeros": True,
            "zeros-at-decode": seqlen_q == 1 < seqlen_k,
            "zeros-beyond-2048": max(seqlen_q, seqlen_k) > 2048,
        }
        return [fault for fault, there in conditions.items() if there]

    @np.errstate(all="ignore")  # -inf - -inf, overflow of a fault: what a GPU does in silence
    def _rows(self, q, k, v, position, settings):
        left, right, scale, softcap, sink, dtype = settings
        fault = self.fault
        log2e = np.float32(math.log2(math.e))
        c = log2e if softcap else np.float32(scale) * log2e
        masked = np.float32(-5e4) if fault == "sentinel-5e4" else -np.inf
        m = np.full(len(q), 0 if fault == "max-floored-at-0" else -np.inf, np.float32)
        true_max = m.copy()
        total = np.zeros(len(q), np.float32)
        acc = np.zeros((len(q), v.shape[1]), np.float32)
        tiles = range((len(k) + TILE - 1) // TILE)
        for tile in reversed(tiles):
            if fault == "tile-dropped" and tile == len(tiles) - 2:
                continue
            keys = np.arange(tile * TILE, (tile + 1) * TILE)
            inside = keys[keys < len(k)]
            visible = np.ones((len(q), TILE), bool)
            if left is not None:
                visible &= keys >= position[:, None] - left
            if right is not None:
                visible &= keys <= position[:, None] + right
            if fault != "tail-unmasked":
                visible &= keys < len(k)
            if not visible.any() and fault not in ("sentinel-5e4", "max-floored-at-0"):
                continue
            s, values = np.zeros((len(q), TILE), np.float32), np.zeros((TILE, v.shape[1]), np.float32)
            s[:, : len(inside)], values[: len(inside)] = q @ k[inside].T, v[inside]
            if softcap:
                ratio = s * np.float32(scale) / np.float32(softcap)
                s = np.tanh(ratio) * (ratio if fault == "softcap-linear" else np.float32(softcap))
            s = np.where(visible, s, masked).astype(np.float32)
            new = s.max(axis=1) if fault == "tile-max-only" else np.fmax(m, s.max(axis=1))
            true_max = np.fmax(true_max, s.max(axis=1))
            change = (m - new) * c
            adopt = ~(change >= -TAU) | (fault == "tile-max-only")
            new = np.where(adopt, new, m)
            factor = np.where(adopt & np.isfinite(m), np.exp2(change), 1).astype(np.float32)
            if fault == "rescale-forgotten":
                factor = np.ones_like(factor)
            m = new
            reference = np.where(np.isneginf(m), 0, m)
            p = _exp2(s * c - (reference * c)[:, None])
            counted = p[:, :-1] if fault == "row-sum-of-rounded-p" else p
            total = total * factor + counted.sum(axis=1)
            if fault == "row-sum-bf16":
                total = _rounded(total, torch.bfloat16)
            p16 = _truncate(p, dtype) if fault == "p-truncated" else _rounded(p, dtype)
            acc = acc * factor[:, None] + p16 @ values
        if sink is not None:
            empty = np.isneginf(m)
            m = np.where(empty, np.float32(sink) * log2e / c, m)
            total = np.where(empty, 1, total + np.exp2(np.float32(sink) * log2e - m * c)).astype(np.float32)
        dead = (total == 0) | np.isnan(total)
        shown = true_max if fault == "lse-of-true-max" else m
        lse = np.where(dead, -np.inf, (shown * c + np.log2(np.where(dead, 1, total))) * np.float32(math.log(2)))
        return acc / np.where(dead, 1, total)[:, None], lse
