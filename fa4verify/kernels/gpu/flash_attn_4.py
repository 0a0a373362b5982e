"""FlashAttention-4 itself on a GPU: `flash-attn-4`.

Contract: the calls of `kernels/shipped/attention.py` (fa4_options.py: the same keywords) to the installed
`flash_attn.cute.interface`, with nothing replaced: the device's own runtime, ptxas and tensor cores. Tensors on a CUDA
device; beyond the dense layout cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, score_mod, mask_mod and
aux_tensors as FA4 takes them. Outputs that a caller does not bring (`out`, `out_lse`, `grads`) FA4 allocates.

What FA4 or its compiler refuses is Unsupported in its own words (refusals.py); a fault of the device is raised as it
is. Fails first where FA4 changes a keyword: tests/kernels/gpu/test_flash_attn_4.py, which needs a GPU.
Source: flash-attn-4 4.0.0b36, `interface._flash_attn_fwd`, `_flash_attn_bwd`.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fa4verify.kernels import fa4_options
from fa4verify.kernels.gpu.device import finished, is_fault, on_cuda
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DeviceFault(RuntimeError):  # noqa: N818 - what the device said, while FA4 ran
    """A fault of the device while FA4's kernel ran."""


class FlashAttn4:
    """The kernel object of room 2."""

    name = "flash-attn-4"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: fa4_options.Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        num_splits: int = 1,
        pack_gqa: bool | None = None,
        tile_mn: tuple[int, int] | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_q: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        page_table: torch.Tensor | None = None,
        score_mod: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        aux_tensors: list[torch.Tensor] | None = None,
        out: torch.Tensor | None = None,
        out_lse: torch.Tensor | None = None,
    ) -> Output:
        """Return o in the dtype of q and lse float32; shapes as in vocabulary, or FA4's own for varlen."""
        options = fa4_options.forward(
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            num_splits=num_splits,
            pack_gqa=pack_gqa,
            tile_mn=tile_mn,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            page_table=page_table,
            score_mod=score_mod,
            mask_mod=mask_mod,
            aux_tensors=aux_tensors,
            out=out,
            lse=out_lse,
        )
        with _calling(q) as interface:
            o, lse, *_ = interface._flash_attn_fwd(q, k, v, **options)
        return Output(o=o, lse=lse, provenance={"model": "flash-attn-4 forward"})

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool = False,
        window_size: fa4_options.Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        deterministic: bool = True,
        dlse: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_q: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        score_mod: Callable[..., Any] | None = None,
        score_mod_bwd: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        aux_tensors: list[torch.Tensor] | None = None,
        grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> Output:
        """Return dq, dk, dv in the dtype of q and, with a sink, dsink (heads,); o and lse as `forward` gave them."""
        options = fa4_options.backward(
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            deterministic=deterministic,
            dlse=dlse,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            score_mod=score_mod,
            score_mod_bwd=score_mod_bwd,
            mask_mod=mask_mod,
            aux_tensors=aux_tensors,
            **dict(zip(("dq", "dk", "dv"), grads or (), strict=False)),
        )
        with _calling(q) as interface:
            dq, dk, dv, *dsink = interface._flash_attn_bwd(q, k, v, o, dout, lse, **options)
        provenance = {"model": "flash-attn-4 backward"}
        return Output(dq=dq, dk=dk, dv=dv, dsink=dsink[0] if dsink else None, provenance=provenance)


@contextmanager
def _calling(q: torch.Tensor) -> Iterator[Any]:
    """Yield `flash_attn.cute.interface` on q's device; refusals become Unsupported, faults stay faults."""
    on_cuda("flash-attn-4", q)
    from fa4verify.kernels.shipped.refusals import refusals

    major, minor = torch.cuda.get_device_capability(q.device)
    with refusals(f"sm_{major}{minor}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FA4 uses names that the DSL deprecates
        import flash_attn.cute.interface as interface

        try:
            with finished(q.device):
                yield interface
        except Exception as error:
            if is_fault(error):  # from here, so that refusals does not see whose frames it came through
                raise DeviceFault(f"{type(error).__name__}: {error}") from error
            raise


FLASH_ATTN_4 = FlashAttn4()
