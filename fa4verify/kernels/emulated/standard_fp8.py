"""`standard-fp8`: attention as three separate operations, both matrix products in 8 bits, softmax in fp16.

Contract, with r() one rounding to fp16, r8() one to the inputs' format, saturating, and f() one to float32:

    S  = r(q k^T * f(q_descale * k_descale))     codes multiplied, accumulated in float64
    T  = r(S * f(scale))                          softcap as `standard`
    P  = r(e / l),  e = f(exp(f(T - m))),  l = f(sum e)
    P8 = r8(P * p_scale)                          p_scale: 448 (e4m3) or 57344 (e5m2), so that P = 1 is the last code
    O  = bf16(P8 v * f(v_descale) / p_scale)      accumulated in float64
    LSE = f(m + log l)

It is the baseline of the FP8 rows of FlashAttention-3's table: one scale for a tensor, every intermediate stored.
Descales are float32 (batch, heads_kv) or None. A row that sees no key gives O = 0 and LSE = the sink, or -inf. Fails
first where fp16 overflows: scores above 65504, which 8-bit inputs without scales reach. Source: arXiv:2407.08608,
section 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.launch import DTYPES, EIGHT_BITS, Descales, check
from fa4verify.kernels.emulated.standard import BLOCK, scores, softmax, visible
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StandardFp8:
    """The kernel object of room 2."""

    name = "standard-fp8"

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
        p_scale: float | None = None,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) in bf16 and lse (batch, heads, seqlen_q)."""
        check(q, k, v, softcap, learnable_sink, eight_bits=True)
        if DTYPES[q.dtype] not in EIGHT_BITS:
            raise Unsupported(f"inputs must be e4m3 or e5m2, not {q.dtype}; standard takes 16 bits")
        Descales(q_descale, k_descale, v_descale).check(q, k)
        fmt, half = FORMATS[DTYPES[q.dtype]], FORMATS["fp16"]
        raised = fmt.max_finite if p_scale is None else p_scale
        batch, seqlen_q, heads, head_dim = q.shape
        seqlen_k, heads_kv = k.shape[1:3]
        scale = float(np.float32(head_dim**-0.5 if softmax_scale is None else softmax_scale))
        queries, keys, values = (tensor.float().double().numpy() for tensor in (q, k, v))
        of_q, of_k, of_v = (_table(given, batch, heads_kv) for given in (q_descale, k_descale, v_descale))
        first, end = visible(seqlen_q, seqlen_k, causal, window_size)
        sinks = np.full(heads, -np.inf) if learnable_sink is None else learnable_sink.double().numpy()
        o = np.empty((batch, seqlen_q, heads, v.shape[-1]))
        lse = np.empty((batch, heads, seqlen_q))
        step = max(1, BLOCK // max(1, seqlen_k))
        clamped = 0
        for b, h, row in np.ndindex(batch, heads, -(-seqlen_q // step)):
            rows, group = slice(row * step, (row + 1) * step), h // (heads // heads_kv)
            s = (queries[b, rows, h] @ keys[b, :, group].T) * np.float64(of_q[b, group] * of_k[b, group])
            t = scores(s, scale, softcap, half)
            p, lse[b, h, rows] = softmax(t, first[rows], end[rows], float(sinks[h]))
            p = round_to(p, half) * raised
            clamped += int((p > fmt.max_finite).sum())
            product = round_to(p, fmt, saturate=True) @ values[b, :, group]
            o[b, rows, h] = product * (np.float64(of_v[b, group]) / raised)
        return Output(
            o=torch.from_numpy(round_to(o, FORMATS["bf16"])).to(torch.bfloat16),
            lse=torch.from_numpy(lse).float(),
            activity={"p_saturated": float(clamped)},
        )


def _table(given: torch.Tensor | None, batch: int, heads_kv: int) -> NDArray[np.float32]:
    return np.ones((batch, heads_kv), np.float32) if given is None else given.detach().cpu().numpy()


STANDARD_FP8 = StandardFp8()
