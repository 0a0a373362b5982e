"""A FlashAttention forward on 8-bit codes in plain NumPy that can be wrong in one named way.

Contract: with `fault=None` it is a sound FP8 kernel (128-key tiles right to left, maximum always adopted, P raised by
2^8 and rounded with satfinite, descales of KV heads or of blocks of 128 tokens) and must pass the gate's FP8 cases.
With a fault it differs from its clean twin by that one mistake. Codes are read and made by ml_dtypes, not by fa4verify;
it shares no code with fa4verify/kernels. Not bit-exact to anything: float32 products run through BLAS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import torch

from fa4verify.arithmetic.hadamard import rotate, rotate_back, signs
from fa4verify.vocabulary import Output

TILE = 128
FORMAT = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}

FAULTS = {
    "saturation-missing": "a P beyond the largest e5m2 number becomes inf",
    "nan-for-satfinite": "a P beyond the largest e4m3 number becomes NaN",
    "scale-of-next-block": "K's scale is that of the block after",
    "v-scale-of-first-block": "V's scale is that of the first block",
    "descale-of-next-head": "Q and K are multiplied with the descales of the next KV head",
    "v-descale-forgotten": "V's descale is left out",
    "signs-not-shared": "K was rotated with other signs than Q",
    "offset-left-in-lse": "LSE holds the 8 log2 units of P's offset",
    "p-flushed-below-2^-6": "P below the smallest normal e4m3 number becomes 0",
    "p-truncated": "P is truncated to 8 bits instead of rounded",
    "accumulator-of-10-bits": "sums of 32 products keep 10 fraction bits",
    "v-tile-transposed": "V's tile is read with rows and columns exchanged",
    "tau-4": "the maximum is adopted only 4 log2 units above the old one, as FA4 did once",
}


def _cut(x: np.ndarray, bits: int) -> np.ndarray:
    """Cut float32 toward zero to `bits` fraction bits."""
    mask = np.uint32((0xFFFFFFFF << (23 - bits)) & 0xFFFFFFFF)
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & mask).view(np.float32)


@dataclass(frozen=True)
class Fp8Flash:
    """The kernel; `fault` is a key of FAULTS or None."""

    fault: str | None = None

    @property
    def name(self) -> str:
        """The name under which `--kernel` finds it."""
        return f"tests.mutants.fp8:Fp8Flash({self.fault})"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        softmax_scale: float | None = None,
        max_offset: float = 8.0,
        q_descale: torch.Tensor,
        k_descale: torch.Tensor,
        v_descale: torch.Tensor,
    ) -> Output:
        """Attention of codes q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv)."""
        (batch, seqlen_q, heads, head_dim), heads_kv = q.shape, k.shape[2]
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        of_q, of_k, of_v = (
            _by_token(given, tokens, count)
            for given, tokens, count in (
                (q_descale, seqlen_q, heads),
                (k_descale, k.shape[1], heads_kv),
                (v_descale, k.shape[1], heads_kv),
            )
        )
        if self.fault == "scale-of-next-block":
            of_k = np.roll(of_k, -TILE, axis=1)
        if self.fault == "v-scale-of-first-block":
            of_v = np.broadcast_to(of_v[:, :1], of_v.shape)
        if self.fault == "descale-of-next-head":
            of_k, of_q = (np.roll(x, 1, axis=2) for x in (of_k, of_q))
        if self.fault == "v-descale-forgotten":
            of_v = np.ones_like(of_v)
        q32, k32, v32 = (x.float().numpy() for x in (q, k, v))
        if self.fault == "signs-not-shared":
            turned = rotate(rotate_back(k32.astype(np.float64), signs(head_dim)), signs(head_dim, seed=1))
            k32 = turned.astype(FORMAT[q.dtype]).astype(np.float32)
        o = np.zeros((batch, seqlen_q, heads, v.shape[-1]), np.float32)
        lse = np.full((batch, heads, seqlen_q), -np.inf, np.float32)
        end = np.arange(seqlen_q) + k.shape[1] - seqlen_q + 1 if causal else np.full(seqlen_q, k.shape[1])
        for b, h in np.ndindex(batch, heads):  # a NaN of P is what a fault is about
            g = h // (heads // heads_kv)
            head = (q32[b, :, h], k32[b, :, g], v32[b, :, g], of_q[b, :, h], of_k[b, :, g], of_v[b, :, g])
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                o[b, :, h], lse[b, h] = self._head(*head, end, scale, max_offset, q.dtype)
        return Output(o=torch.from_numpy(o).to(torch.bfloat16), lse=torch.from_numpy(lse))

    def _head(self, q, k, v, of_q, of_k, of_v, end, scale, offset, codes):
        c = np.float32(scale * math.log2(math.e))
        rows, top = len(q), np.full(len(q), -np.inf, np.float32)
        total, o = np.zeros(rows, np.float32), np.zeros((rows, v.shape[1]), np.float32)
        for start in reversed(range(0, len(k), TILE)):
            keys = slice(start, min(start + TILE, len(k)))
            s = self._product(q, k[keys].T) * (of_q[:, None] * of_k[keys])
            s[np.arange(start, keys.stop) >= end[:, None]] = -np.inf
            new = np.maximum(top, s.max(axis=1))
            if self.fault == "tau-4":
                new = np.where((new - top) * c <= 4, top, new)
            reference = np.where(np.isfinite(new), new, 0).astype(np.float32)
            p = np.exp2(s * c + (np.float32(offset) - reference * c)[:, None]).astype(np.float32)
            factor = np.exp2((top - reference) * c).astype(np.float32)
            total, top = total * factor + p.sum(axis=1), new
            values = v[keys]
            if self.fault == "v-tile-transposed":
                values = np.ascontiguousarray(values.T).reshape(values.shape)
            o = o * factor[:, None] + self._product(self._rounded(p, codes), values) * of_v[keys][:1, None]
        left = np.float32(0 if self.fault == "offset-left-in-lse" else offset)
        lse = (top * c + np.log2(total) - left) * np.float32(math.log(2))
        return np.where(total[:, None] > 0, o / total[:, None], 0), np.where(total > 0, lse, -np.inf)

    def _product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.fault != "accumulator-of-10-bits":
            return a @ b
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for start in range(0, len(b), 32):
            total = _cut(total + a[:, start : start + 32] @ b[start : start + 32], 10)
        return total

    def _rounded(self, p: np.ndarray, codes: torch.dtype) -> np.ndarray:
        kind, largest = FORMAT[codes], np.float32(LARGEST[codes])
        e4m3 = codes is torch.float8_e4m3fn
        if self.fault == "p-truncated":
            p = _cut(p, 3 if e4m3 else 2)
        if self.fault == "p-flushed-below-2^-6" and e4m3:
            p = np.where(p < 2.0**-6, np.float32(0), p)
        if (self.fault == "saturation-missing" and not e4m3) or (self.fault == "nan-for-satfinite" and e4m3):
            return p.astype(kind).astype(np.float32)  # ml_dtypes overflows to inf, or NaN where there is none
        return np.minimum(p, largest).astype(kind).astype(np.float32)


def _by_token(given: torch.Tensor, tokens: int, heads: int) -> np.ndarray:
    """Return one scale for each token and head: (batch, tokens, heads)."""
    scale = given.numpy()
    if scale.ndim == 2:
        return np.broadcast_to(np.repeat(scale, heads // scale.shape[1], axis=1)[:, None], (len(scale), tokens, heads))
    return np.repeat(scale, TILE, axis=2)[:, :, :tokens].transpose(0, 2, 1)


def attribute(name: str) -> str:
    """Return the name under which a mutant hangs on `fp8`."""
    return name.replace("-", "_").replace("^", "")


fp8 = SimpleNamespace(clean=Fp8Flash(), **{attribute(fault): Fp8Flash(fault) for fault in FAULTS})


def fp8_kernel_name(mutant: str) -> str:
    """Return the import string of a mutant, or of its clean twin ("clean")."""
    return f"{__name__}:fp8.{attribute(mutant)}"
