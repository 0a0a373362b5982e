"""Attention with S and P stored in the 16-bit dtype."""

from __future__ import annotations

import torch

from fa4verify.vocabulary import Output


class Standard:
    """S, P and O are each rounded once to the dtype of q."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q)."""
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        s = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).to(q.dtype).double() * scale
        p = torch.softmax(s, dim=-1).to(q.dtype).double()
        o = torch.einsum("bhqk,bkhd->bqhd", p, v.double()).to(q.dtype)
        return Output(o=o, lse=torch.logsumexp(s, dim=-1).float())


STANDARD = Standard()
