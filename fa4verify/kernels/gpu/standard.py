"""`standard-gpu`: attention as three torch operations, every intermediate stored in the 16-bit dtype.

Contract: the semantics of `kernels/emulated/standard.py` (S, scaled S, P and O rounded to the dtype of q; softmax in
float32), computed by the device's own matrix products, which accumulate in float32 in an order of their own; so equal
in meaning, not in bits. LSE from T as stored, in float32. Gradients by autograd through the same operations. A row that
sees no key gives O = 0 and LSE = the sink, or -inf. Memory is O(S^2): it is what flash attention is compared with.
"""

from __future__ import annotations

import math

import torch

from fa4verify.kernels.gpu.device import finished
from fa4verify.kernels.gpu.tensors import heads_first, leaves
from fa4verify.vocabulary import Output

_Window = tuple[int | None, int | None]


class StandardGpu:
    """Attention with S, scaled S, P and O each in the dtype of q, where its tensors are."""

    name = "standard-gpu"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: _Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q)."""
        with finished(q.device):
            o, lse = _attention(q, k, v, causal, window_size, softcap, learnable_sink, softmax_scale)
        return Output(o=o, lse=lse, provenance={"model": "attention in 16 bits by torch operations"})

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,  # noqa: ARG002 - the signature of a backward; autograd has its own
        lse: torch.Tensor | None,  # noqa: ARG002
        *,
        causal: bool = False,
        window_size: _Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        deterministic: bool = True,
        dlse: torch.Tensor | None = None,
    ) -> Output:
        """Return dq, dk, dv and, with a sink, dsink by autograd."""
        torch.use_deterministic_algorithms(deterministic)
        given = leaves(q, k, v)
        sink = None if learnable_sink is None else learnable_sink.detach().clone().requires_grad_()
        with finished(q.device), torch.enable_grad():
            out, row_sums = _attention(*given, causal, window_size, softcap, sink, softmax_scale)
            wanted = [*given, *([] if sink is None else [sink])]
            results, upstream = ([out], [dout]) if dlse is None else ([out, row_sums], [dout, dlse])
            dq, dk, dv, *dsink = torch.autograd.grad(results, wanted, upstream)
        return Output(dq=dq, dk=dk, dv=dv, dsink=dsink[0] if dsink else None)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: _Window,
    softcap: float,
    sink: torch.Tensor | None,
    softmax_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, seqlen_q, heads, head_dim = q.shape
    seqlen_k, group = k.shape[1], heads // k.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    queries, *shared = heads_first(q, k, v)
    keys, values = (x.repeat_interleave(group, dim=1) for x in shared)
    t = (queries @ keys.transpose(2, 3)) * scale
    if softcap:
        t = torch.tanh(t / softcap) * softcap
    seen = _seen(seqlen_q, seqlen_k, causal, window_size, q.device)
    scores = t.float() if seen is None else t.float().masked_fill(~seen, -math.inf)
    if sink is not None:
        column = sink.float().view(1, heads, 1, 1).expand(batch, heads, seqlen_q, 1)
        scores = torch.cat([scores, column], dim=3)
    lse = torch.logsumexp(scores, dim=3)
    p = torch.softmax(scores, dim=3)
    if seen is not None:
        p = p.masked_fill(~seen.any(1, keepdim=True), 0.0)  # a row without keys would be NaN
    o = p[..., :seqlen_k].to(q.dtype) @ values
    return o.transpose(1, 2), lse


def _seen(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: _Window, device: torch.device
) -> torch.Tensor | None:
    """Return which keys each row sees, aligned at the bottom right; None where all see all."""
    left, right = window_size
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    right = 0 if causal else right
    if left is None and right is None:
        return None
    row = torch.arange(seqlen_q, device=device)[:, None] + (seqlen_k - seqlen_q)
    key = torch.arange(seqlen_k, device=device)
    seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if left is not None:
        seen &= key >= row - left
    if right is not None:
        seen &= key <= row + right
    return seen


STANDARD_GPU = StandardGpu()
