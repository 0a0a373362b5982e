"""One attention problem as the references read it: arrays as stored, and which keys a query row sees.

Contract: nothing is computed here, so that fp64 and ball may share it; `mp` reads the definition of the mask again by
itself. q, k and v stay in their stored width (bfloat16 as its bit patterns, which NumPy has no type for) and are
widened to float64 a block at a time, exactly, so that the working memory does not grow with the sequence. 8-bit codes
times their descales are held in float64, exactly if a descale has 20 bits, as those that are drawn; where the case's
truth is that of the draws, those are held instead.

Mask: bottom-right aligned. Query i sees key j iff i + Sk - Sq - left <= j <= i + Sk - Sq + right; None is unbounded and
`causal` is right = 0. As flash_attn.cute (interface.py, `_resolve_causal_local_window`) declares it, a pair of negative
entries means no window, while a single negative entry is a shifted window: (-1, 0) lets no row see any key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case, Inputs


BLOCK = 128  # tokens that share a scale of a block


@dataclass(frozen=True)
class Problem:
    """q (batch, seqlen_q, heads, d), k and v (batch, seqlen_k, heads_kv, .) as stored; `sink` float64 (heads,)."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    scale: float
    softcap: float = 0.0
    left: int | None = None
    right: int | None = None
    sink: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, case: Case, inputs: Inputs) -> Problem:
        """Read a case; the default scale is the double nearest to 1 / sqrt(head_dim), as FlashAttention computes it."""
        if case.truth == "draws":
            q, k, v = (inputs.draws[name] for name in "qkv")
        elif inputs.tensors["q"].dtype.itemsize == 1:
            q, k, v = (_dequantised(inputs, name) for name in "qkv")
        else:
            q, k, v = (stored(inputs.tensors[name]) for name in "qkv")
        if q.shape[2] % k.shape[2]:
            raise ValueError(f"{q.shape[2]} query heads are no multiple of {k.shape[2]} key heads")
        left, right = case.window_size
        if left is not None and right is not None and left < 0 and right < 0:
            left = right = None
        sink = inputs.tensors["learnable_sink"].double().cpu().numpy() if case.learnable_sink else None
        return cls(
            q,
            k,
            v,
            scale=1.0 / math.sqrt(q.shape[3]) if case.softmax_scale is None else case.softmax_scale,
            softcap=case.softcap,
            left=left,
            right=0 if case.causal else right,
            sink=sink,
        )

    @property
    def group(self) -> int:
        """Query heads that share one key head: query head h reads key head h // group."""
        return int(self.q.shape[2] // self.k.shape[2])

    def visible(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first visible key of each row and one past its last; first >= last where it sees none."""
        seqlen_k = int(self.k.shape[1])
        diagonal = rows + seqlen_k - int(self.q.shape[1])
        first = np.zeros_like(rows) if self.left is None else np.clip(diagonal - self.left, 0, seqlen_k)
        last = np.full_like(rows, seqlen_k) if self.right is None else np.clip(diagonal + self.right + 1, 0, seqlen_k)
        return first, last


def stored(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a view of the tensor's memory; the bit patterns (uint16) of a bfloat16 tensor."""
    tensor = tensor.detach().cpu()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _dequantised(inputs: Inputs, name: str) -> NDArray[np.float64]:
    """Return codes times descales; scales of (batch, heads_kv), or of blocks of BLOCK tokens for each head."""
    values = inputs.tensors[name].detach().cpu().float().double().numpy()
    given = inputs.tensors.get(f"{name}_descale")
    if given is None:
        return values
    scale = given.detach().cpu().double().numpy()
    if scale.ndim == 2:
        scale = np.repeat(scale, values.shape[2] // scale.shape[1], axis=1)[:, None, :]
    else:
        scale = np.repeat(scale, BLOCK, axis=2)[:, :, : values.shape[1]].transpose(0, 2, 1)
    product: NDArray[np.float64] = values * scale[..., None]
    return product


def widen(block: NDArray[Any], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return a block of a stored array in float64, exactly (a signalling NaN comes out quiet)."""
    if block.dtype == np.uint16:
        block = (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
    out = np.empty(block.shape) if out is None else out
    with np.errstate(invalid="ignore"):
        out[...] = block
    return out
