"""`flex-attention`: torch's flex_attention, compiled to a Triton kernel on a GPU, plain torch operations elsewhere.

Contract: masks, windows and softcap as Flex's own mask_mod and score_mod; LSE as it returns it (natural logarithm).
Gradients by autograd. It has no sink. Rows that see no key are Flex's own affair.
Compiling takes seconds for each shape, dtype and mask; the compiled kernels live as long as the process, and Inductor
keeps its own cache on disk.
Fails first where torch.compile finds no compiler: the case is CRASHED with its words.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from fa4verify.kernels.gpu.device import finished, on_cuda
from fa4verify.kernels.gpu.tensors import heads_first, leaves
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Callable

_Window = tuple[int | None, int | None]


class FlexAttention:
    """The kernel object of room 2."""

    name = "flex-attention"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: _Window = (None, None),
        softcap: float = 0.0,
        softmax_scale: float | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q)."""
        with finished(q.device):
            o, lse = _attention(q, k, v, causal, window_size, softcap, softmax_scale)
        how = "Triton by torch.compile" if q.device.type == "cuda" else "not compiled"
        return Output(o=o, lse=lse.float(), provenance={"model": f"flex_attention, {how}"})

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
        softmax_scale: float | None = None,
    ) -> Output:
        """Return dq, dk, dv by autograd; torch has no such backward on a CPU."""
        on_cuda(f"the backward of {self.name}", q)
        given = leaves(q, k, v)
        with finished(q.device), torch.enable_grad():
            out, _ = _attention(*given, causal, window_size, softcap, softmax_scale)
            dq, dk, dv = torch.autograd.grad(out, given, dout)
        return Output(dq=dq, dk=dk, dv=dv)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: _Window,
    softcap: float,
    softmax_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    options: dict[str, Any] = {"scale": softmax_scale, "enable_gqa": q.shape[2] != k.shape[2], "return_lse": True}
    left, right = window_size
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    right = 0 if causal else right
    if softcap:
        options["score_mod"] = _capped(softcap)
    if left is not None or right is not None:
        options["block_mask"] = _block_mask(q.shape[1], k.shape[1], left, right, str(q.device))
    flex = _flex(q.device.type == "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # return_lse is on its way out; without compiling it warns of its speed
        o, lse = flex(*(x.contiguous() for x in heads_first(q, k, v)), **options)
    return o.transpose(1, 2), lse


@cache
def _flex(compiled: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    flex: Any = flex_attention
    found: Callable[..., Any] = torch.compile(flex, dynamic=False) if compiled else flex
    return found


@cache
def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    """Return a score_mod, the same object for the same cap so that nothing is compiled twice."""

    def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@cache
def _block_mask(seqlen_q: int, seqlen_k: int, left: int | None, right: int | None, device: str) -> Any:
    """Return Flex's mask of blocks, aligned at the bottom right."""
    from torch.nn.attention.flex_attention import create_block_mask

    offset = seqlen_k - seqlen_q

    def seen(_batch: Any, _head: Any, row: Any, key: Any) -> Any:
        visible = key >= 0
        if left is not None:
            visible = visible & (key >= row + offset - left)
        if right is not None:
            visible = visible & (key <= row + offset + right)
        return visible

    return create_block_mask(seen, None, None, seqlen_q, seqlen_k, device=device)


FLEX_ATTENTION = FlexAttention()
