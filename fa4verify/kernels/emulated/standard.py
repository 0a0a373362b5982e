"""`standard`: attention as three separate operations, every intermediate stored in the 16-bit dtype.

Contract, with r() one rounding (to nearest, ties to even) to the dtype of q and f() one to float32:

    S  = r(q k^T)                   products accumulated in float64
    T  = r(S * f(scale))            reorder_ops: T = r(q K^T) with K = r(k * f(scale)) instead, and S is never stored
    T  = r(r(tanh(r(T / softcap))) * softcap)          only with softcap
    e  = f(exp(f(T - m))),  m = the row's maximum, the sink included;  l = f(sum e),  the sink's e included
    P  = r(e / l)
    O  = r(P v)                     products accumulated in float64
    LSE = f(m + log l)              from T as stored, not rounded to 16 bits

This is what `attention_ref(upcast=False)` of flash_attn.cute.testing computes, `reorder_ops` as its argument, but for
its float32 accumulation and its LSE in 16 bits. exp, tanh and log are the C library's in float64, then rounded: not
proven correctly rounded, wrong in about 2^-28 of all cases. A row that sees no key gives O = 0 and LSE = the sink, or
-inf. Values that the dtype cannot hold overflow to inf, as in a real fp16 kernel: fails first on fp16 scores above
65504, where O is NaN. Memory is O(S): rows are taken in blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numba
import numpy as np
import torch

from fa4verify.arithmetic.formats import FORMATS, Format, round_to
from fa4verify.kernels.emulated.visibility import resolve
from fa4verify.kernels.interface import Unsupported
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = {torch.bfloat16: FORMATS["bf16"], torch.float16: FORMATS["fp16"]}
BLOCK = 2**21  # scores in a block of rows: 16 MiB in float64


class Standard:
    """Attention with S, scaled S, P and O each rounded to the dtype of q."""

    name = "standard"

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
        reorder_ops: bool = False,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q)."""
        if q.dtype not in _FORMAT:
            raise Unsupported(f"inputs must be float16 or bfloat16, not {q.dtype}; standard-fp8 takes 8 bits")
        fmt = _FORMAT[q.dtype]
        batch, seqlen_q, heads, head_dim = q.shape
        seqlen_k, heads_kv = k.shape[1:3]
        scale = float(np.float32(head_dim**-0.5 if softmax_scale is None else softmax_scale))
        queries, keys, values = (tensor.double().numpy() for tensor in (q, k, v))
        if reorder_ops:
            keys, scale = round_to(keys * scale, fmt), 1.0
        first, end = visible(seqlen_q, seqlen_k, causal, window_size)
        sinks = np.full(heads, -np.inf) if learnable_sink is None else learnable_sink.double().numpy()
        o = np.empty((batch, seqlen_q, heads, v.shape[-1]))
        lse = np.empty((batch, heads, seqlen_q))
        step = max(1, BLOCK // max(1, seqlen_k))
        for b, h, row in np.ndindex(batch, heads, -(-seqlen_q // step)):
            rows, group = slice(row * step, (row + 1) * step), h // (heads // heads_kv)
            t = scores(queries[b, rows, h] @ keys[b, :, group].T, scale, softcap, fmt)
            p, lse[b, h, rows] = softmax(t, first[rows], end[rows], float(sinks[h]))
            o[b, rows, h] = round_to(round_to(p, fmt) @ values[b, :, group], fmt)
        return Output(o=torch.from_numpy(o).to(q.dtype), lse=torch.from_numpy(lse).float())


def visible(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int | None, int | None]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each row the first key that it sees, and one past the last."""
    mask = resolve(causal, window_size)
    diagonal = np.arange(seqlen_q) + seqlen_k - seqlen_q
    first = diagonal * 0 if mask.left is None else diagonal - mask.left
    end = diagonal * 0 + seqlen_k if mask.right_bound is None else diagonal + mask.right_bound + 1
    return first.clip(0, seqlen_k), end.clip(0, seqlen_k)


def scores(s: NDArray[np.float64], scale: float, softcap: float, fmt: Format) -> NDArray[np.float64]:
    """Return T of the module's docstring, (rows, seqlen_k), from unrounded S."""
    t = round_to(s, fmt)
    if scale != 1.0:
        t = round_to(t * scale, fmt)
    if softcap:
        t = round_to(np.tanh(round_to(t / softcap, fmt)), fmt)
        t = round_to(t * softcap, fmt)
    return t


@numba.njit(cache=True, error_model="numpy")
def softmax(
    t: NDArray[np.float64], first: NDArray[np.int64], end: NDArray[np.int64], sink: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Turn T into e / l in place, 0 where a row does not see the key; return it with the LSE."""
    f = np.float32
    lse = np.empty(len(t))
    for i in range(len(t)):
        row = t[i]
        row[: first[i]] = 0.0
        row[end[i] :] = 0.0
        if first[i] >= end[i]:
            row[:] = 0.0
            lse[i] = sink
            continue
        m = sink
        for j in range(first[i], end[i]):
            if row[j] > m or math.isnan(row[j]):
                m = row[j]
        total = 0.0 if sink == -math.inf else np.float64(f(math.exp(np.float64(f(sink - m)))))
        for j in range(first[i], end[i]):
            row[j] = f(math.exp(np.float64(f(row[j] - m))))
            total += row[j]
        row_sum = np.float64(f(total))
        for j in range(first[i], end[i]):
            row[j] /= row_sum
        lse[i] = f(m + math.log(row_sum))
    return t, lse


STANDARD = Standard()
