"""The FlashAttention-2 algorithm, with FA4's Hopper arithmetic.

Contract: Algorithm 1 of the FlashAttention-2 paper (arXiv:2307.08691): KV tiles of 128 keys left to right, row tiles
of 128 rows, O rescaled at every tile, MUFU exp2 everywhere, P rounded to the 16-bit dtype for PV only, row sums of
unrounded P serial in each thread of a quad. Tensor cores, exp2, sums and epilogue are those of fa4-sm90, so what
differs from it is the order of the tiles (and, off head dim 128, their width): not any release of the flash-attn
package, whose kernels also walk right to left and whose MMA steps are those of sm80.

Fails first as fa4-sm90 does; tests/kernels/test_flash2.py.
"""

from __future__ import annotations

import torch

from fa4verify.arithmetic.mufu import ex2_array
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.launch import Launch, attention, check
from fa4verify.kernels.emulated.visibility import resolve
from fa4verify.vocabulary import Output

TILE = 128


class Flash2:
    """The kernel object of room 2."""

    name = "flash2"

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
        if not 1 <= q.shape[-1] <= 256 or not 1 <= v.shape[-1] <= 256:
            raise Unsupported(f"head dims must be between 1 and 256, not {q.shape[-1]} and {v.shape[-1]}")
        return attention(
            q,
            k,
            v,
            launch=Launch("sm90", TILE, TILE, descending=False),
            mask=resolve(causal, window_size),
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            provenance={
                "model": "FlashAttention-2 paper, Algorithm 1, on sm90 arithmetic",
                "tiles": f"{TILE}x{TILE}, left to right",
                "mufu": "H200, exact on all 2^32 inputs",
            },
        )

    def exp2(self, x: torch.Tensor) -> Output:
        """Return `ex2.approx.ftz.f32`."""
        y = torch.from_numpy(ex2_array(x.detach().cpu().numpy()))
        return Output(y=y, provenance={"model": "ex2.approx.ftz.f32 of an H200, exact on all 2^32 inputs"})


FLASH2 = Flash2()
