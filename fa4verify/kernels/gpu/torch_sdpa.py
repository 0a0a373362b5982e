"""torch's scaled_dot_product_attention, a kernel for each backend: `sdpa-flash`, `-cudnn`, `-efficient`, `-math`.

Contract: O of the public function with one backend allowed. LSE is that of the ATen operator behind it, where that
gives the same bits of O; else none, and the case is judged on O. Gradients by autograd, which runs the forward again;
`deterministic` is torch's own switch. torch aligns a causal mask at the top left, so a causal case with unequal lengths
is declined; windows, softcap and sinks it does not have. What torch declines is Unsupported with its own reasons.
`sdpa-math` widens 16-bit inputs to float32 and rounds once at the end (torch 2.5 and later).
Fails first where an ATen operator changes its arguments: LSE is then missing.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa4verify.kernels.gpu.device import finished, is_fault, on_cuda
from fa4verify.kernels.gpu.tensors import heads_first, leaves
from fa4verify.kernels.interface import Unsupported
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    Operator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float | None], tuple[Any, ...]]


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> tuple[Any, ...]:
    found: tuple[Any, ...] = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    return found


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> tuple[Any, ...]:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    found: tuple[Any, ...] = operator(q, k, v, None, True, 0.0, causal, scale=scale)
    return found


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> tuple[Any, ...]:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    found: tuple[Any, ...] = operator(q, k, v, None, True, 0.0, causal, scale=scale)
    return found


class Sdpa:
    """The kernel object of room 2 for one backend."""

    def __init__(self, name: str, backend: SDPBackend, operator: Operator | None, *, needs_cuda: bool) -> None:
        self.name = name
        self._backend, self._operator, self._needs_cuda = backend, operator, needs_cuda

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        softmax_scale: float | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and, where the operator gives it, lse."""
        with finished(q.device):
            o = self._attention(q, k, v, causal, softmax_scale)
            lse = self._lse(q, k, v, causal, softmax_scale, o)
        how = "ATen operator with the same bits of O" if lse is not None else "none"
        return Output(o=o, lse=lse, provenance={"model": f"torch {self._backend.name}", "lse from": how})

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
        softmax_scale: float | None = None,
        deterministic: bool = True,
    ) -> Output:
        """Return dq, dk, dv by autograd."""
        torch.use_deterministic_algorithms(deterministic)
        given = leaves(q, k, v)
        with finished(q.device), torch.enable_grad():
            o_again = self._attention(*given, causal, softmax_scale)
            dq, dk, dv = torch.autograd.grad(o_again, given, dout)
        return Output(dq=dq, dk=dk, dv=dv, provenance={"model": f"torch {self._backend.name}, autograd"})

    def _attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
    ) -> torch.Tensor:
        if self._needs_cuda:
            on_cuda(self.name, q)
        if causal and q.shape[1] != k.shape[1]:
            raise Unsupported(f"{self.name} aligns a causal mask at the top left: unequal lengths mean another problem")
        with sdpa_kernel([self._backend]), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                o = scaled_dot_product_attention(
                    *heads_first(q, k, v),
                    is_causal=causal,
                    scale=scale,
                    enable_gqa=q.shape[2] != k.shape[2],
                )
            except RuntimeError as error:
                if is_fault(error) or "No available kernel" not in str(error):
                    raise
                reasons = "; ".join(dict.fromkeys(_plain(str(warning.message)) for warning in said))
                raise Unsupported(f"{self.name}: {_plain(str(error))} {reasons}"[:400]) from error
        return o.transpose(1, 2)

    def _lse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float | None,
        o: torch.Tensor,
    ) -> torch.Tensor | None:
        """Return the LSE (batch, heads, seqlen_q) of the operator if its O is this O."""
        if self._operator is None or q.device.type != "cuda":
            return None
        try:
            again, lse, *_ = self._operator(*heads_first(q, k, v), causal, scale)
        except Exception as error:
            if is_fault(error):
                raise
            return None  # an operator is private: another torch may have another one
        if lse.ndim == 4:
            lse = lse.squeeze(-1)
        lse = lse[..., : q.shape[1]].float()
        same = torch.equal(again.transpose(1, 2).contiguous().view(torch.int16), o.contiguous().view(torch.int16))
        return lse.contiguous() if same and lse.shape == (q.shape[0], q.shape[2], q.shape[1]) else None


def _plain(text: str) -> str:
    return " ".join(text.split(" (Triggered internally")[0].split())


SDPA_FLASH = Sdpa("sdpa-flash", SDPBackend.FLASH_ATTENTION, _flash, needs_cuda=True)
SDPA_CUDNN = Sdpa("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION, _cudnn, needs_cuda=True)
SDPA_EFFICIENT = Sdpa("sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION, _efficient, needs_cuda=True)
SDPA_MATH = Sdpa("sdpa-math", SDPBackend.MATH, None, needs_cuda=False)
