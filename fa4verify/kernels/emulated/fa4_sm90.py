"""FlashAttention-4 on Hopper, forward and backward, bit for bit.

Contract: O and LSE of `flash_attn.cute.flash_attn_func` (4.0.0b36) on an H200, and with deterministic=True its dQ, dK,
dV and dsink, in every bit, NaN payloads aside. Equal to the recordings in tests/golden, FA4's errors included
(backward_storage.py).

Fails first where a tile width is wrong (84 % of O elements stay equal with tile_n 64) or KV runs left to right (68 %).
Source: flash-attn-4 4.0.0b36, `interface._tile_size_fwd_sm90`, `_tile_size_bwd_sm90`, `_validate_head_dims`,
`flash_fwd_sm90`, `flash_bwd_sm90`.
"""

from __future__ import annotations

import torch

from fa4verify.arithmetic.mufu import ex2_array
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated import backward_launch
from fa4verify.kernels.emulated.backward_storage import Storage
from fa4verify.kernels.emulated.launch import Launch, attention, check
from fa4verify.kernels.emulated.visibility import resolve
from fa4verify.vocabulary import Output

FA4_VERSION = "4.0.0b36"
ALIGNMENT = 8  # 16 bytes of 16-bit elements


def tile_size(head_dim: int, head_dim_v: int, causal: bool, local: bool) -> tuple[int, int]:
    """(tile_m, tile_n) of a shape."""
    if head_dim <= 64:
        return 192, 128
    if head_dim <= 96:
        return 192, 128 if causal or local else 144
    if head_dim <= 128:
        return 128, 128
    if head_dim <= 192:
        return 128, 96 if local else 128 if head_dim_v <= 128 else 112
    return 128, 64 if local else 80


def o_tile_fits(head_dim: int, head_dim_v: int, tile_m: int, tile_n: int) -> bool:
    """Whether the O tile, which FA4 writes where Q was, ends inside its shared memory (Q, two stages of K, P).

    Where it does not, as for head dims (8, 64) or (24, 128), an H200 reports an illegal memory access.
    """
    padded, padded_v = (-(-d // 16) * 16 for d in (head_dim, head_dim_v))
    p = tile_m * tile_n if 64 < head_dim <= 96 else 0  # elsewhere P stays in registers
    return tile_m * padded_v <= tile_m * padded + 2 * tile_n * padded + p


def backward_setup(head_dim: int, causal: bool, local: bool, *, intended: bool = False) -> backward_launch.Setup:
    """Tiles of the backward (`interface._tile_size_bwd_sm90`), and accumulators that are read back wrongly.

    Head dims above 128 swap operands and so pad to 64. `intended`: as if writer and reader agreed.
    """
    if head_dim > 128:
        return backward_launch.Setup("sm90", 64, 96 if head_dim <= 192 else 48, padded_to=64)
    written, read = (-(-head_dim // n) * n for n in (16, 32))
    wrong = written != read and not intended
    dkv = Storage(written, read, row_groups=2) if wrong else None
    if head_dim <= 64:
        dq = Storage(written, read, row_groups=2) if wrong else None
        return backward_launch.Setup("sm90", 128, 128, dq_storage=dq, dkv_storage=dkv)
    if head_dim <= 96:
        dq = Storage(written, read, row_groups=1) if wrong else None
        return backward_launch.Setup("sm90", 64, 128, sink_threads=128, dq_storage=dq, dkv_storage=dkv)
    if written != 128 and not causal and not local:
        raise Unsupported(f"head_dim {head_dim} without a mask does not compile on SM90: failed to partition (112,80)")
    dq = Storage(written, read, row_groups=1, column_groups=2) if wrong else None
    return backward_launch.Setup("sm90", 64 if causal or local else 80, 128, dq_storage=dq, dkv_storage=dkv)


class Fa4Sm90:
    """The kernel object of room 2."""

    name = "fa4-sm90"

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
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) in the dtype of q, and lse (batch, heads, seqlen_q)."""
        check(q, k, v, softcap, learnable_sink)
        head_dim, head_dim_v = q.shape[-1], v.shape[-1]
        _check_head_dims(head_dim, head_dim_v)
        mask = resolve(causal, window_size)
        tile_m, tile_n = tile_size(head_dim, head_dim_v, mask.causal, mask.local)
        if not o_tile_fits(head_dim, head_dim_v, tile_m, tile_n):
            raise Unsupported(
                f"(head_dim, head_dim_v)=({head_dim}, {head_dim_v}): FA4's O tile overruns its shared memory on SM90 "
                "(illegal memory access)"
            )
        launch = Launch("sm90", tile_m, tile_n, packed=q.shape[2] > k.shape[2])
        provenance = {
            "model": f"flash-attn-4 {FA4_VERSION} forward, sm_90a",
            "tiles": f"{tile_m}x{tile_n}",
            "mufu": "H200, exact on all 2^32 inputs",
            "not_bit_exact": "nothing known",
        }
        return attention(
            q,
            k,
            v,
            launch=launch,
            mask=mask,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            provenance=provenance,
        )

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
        window_size: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        deterministic: bool = True,
        seed: int | None = None,
        dlse: torch.Tensor | None = None,
        intended_storage: bool = False,
        grad_dtype: str | None = None,
    ) -> Output:
        """Return dq, dk, dv in the dtype of q, delta (batch, heads, seqlen_q) and, with a sink, dsink (heads,).

        o and lse as `forward` gave them. deterministic=False adds in a random order, drawn by `seed` (None: 0).
        intended_storage=True reads dQ back as it was written (backward_storage.py says where FA4 does not);
        grad_dtype="fp32" leaves the gradients unrounded.
        """
        head_dim, head_dim_v = q.shape[-1], v.shape[-1]
        _check_head_dims(head_dim, head_dim_v)
        if q.shape[2] > k.shape[2] and head_dim != head_dim_v:
            raise Unsupported("GQA backward requires head_dim == head_dim_v")
        mask = resolve(causal, window_size)
        setup = backward_setup(head_dim, mask.causal, mask.local, intended=intended_storage)
        provenance = {
            "model": f"flash-attn-4 {FA4_VERSION} backward, sm_90a",
            "tiles": f"{setup.tile_m}x{setup.tile_n}",
            "order": "deterministic" if deterministic else f"random, seed {seed or 0}",
        }
        return backward_launch.gradients(
            dout,
            q,
            k,
            v,
            o,
            lse,
            setup=setup,
            mask=mask,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            deterministic=deterministic,
            seed=seed,
            dlse=dlse,
            grad_dtype=grad_dtype,
            provenance=provenance,
        )

    def exp2(self, x: torch.Tensor) -> Output:
        """Return `ex2.approx.ftz.f32`, the only exp2 of this kernel."""
        y = torch.from_numpy(ex2_array(x.detach().cpu().numpy()))
        return Output(y=y, provenance={"model": "ex2.approx.ftz.f32 of an H200, exact on all 2^32 inputs"})


def _check_head_dims(head_dim: int, head_dim_v: int) -> None:
    if not all(8 <= d <= 256 and d % ALIGNMENT == 0 for d in (head_dim, head_dim_v)):
        raise Unsupported(
            f"(head_dim, head_dim_v)=({head_dim}, {head_dim_v}) is not supported on SM90: both must be between 8 "
            f"and 256 and divisible by {ALIGNMENT}"
        )


FA4_SM90 = Fa4Sm90()
