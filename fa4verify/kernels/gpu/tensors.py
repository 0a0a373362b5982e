"""What kernels by torch operations do with q, k and v."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def leaves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Three:
    """Return copies that require gradients."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    return q, k, v


def heads_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Three:
    """Return views (batch, heads, seqlen, head_dim), torch's own order."""
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
