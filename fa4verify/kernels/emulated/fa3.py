"""The FlashAttention-3 algorithm on Hopper's arithmetic, in 16 bits and in FP8.

Contract: the softmax, sums, MUFU and tensor core of fa4-sm90; tiles of 128 queries and 128 keys, KV right to left, O
rescaled at every tile. 8-bit Q, K, V (e4m3, e5m2) bring descales: float32 (batch, heads_kv) each, or of blocks of 128
tokens, (batch, heads or heads_kv, blocks). Those of Q and K multiply S (for blocks tile by tile, in fp32), those of V
the result; with blocks O changes units at each tile, in the same product as the rescale. P is rounded to the format of
the inputs, saturating, after its exponent was raised by `p_offset` (8: P up to 256), which the row sum shares and LSE
does not see. Incoherent processing happens before a kernel: Q and K come rotated. O of 8-bit inputs is bf16, o_dtype
"fp32" leaves any O unrounded.

Hopper's 8-bit tensor core keeps `accumulator_bits` = 13 fraction bits of every sum (MMA-Sim arXiv 2511.10909; recorded
on an H200: docs/arithmetic.md) and cuts toward zero: O of long rows shrinks. Other numbers answer what more bits would
buy.

A model of the paper's algorithm (arXiv:2407.08608), not of a release: those have other KV tiles (176, 224, 256 keys)
and order V's keys within a step by its registers. Fails first as fa4-sm90 does; tests/kernels/test_fa3.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.launch import BLOCK, DTYPES, EIGHT_BITS, Descales, Launch, attention, check
from fa4verify.kernels.emulated.visibility import resolve

if TYPE_CHECKING:
    import torch

    from fa4verify.vocabulary import Output

ACCUMULATOR_BITS = 13


class Fa3:
    """The kernel object of room 2."""

    name = "fa3"

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
        p_offset: float | None = None,
        accumulator_bits: int | None = None,
        o_dtype: str | None = None,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q)."""
        check(q, k, v, softcap, learnable_sink, eight_bits=True)
        if not 1 <= q.shape[-1] <= 256 or not 1 <= v.shape[-1] <= 256:
            raise Unsupported(f"head dims must be between 1 and 256, not {q.shape[-1]} and {v.shape[-1]}")
        eight_bits = DTYPES[q.dtype] in EIGHT_BITS
        if accumulator_bits is not None and not (eight_bits and 1 <= accumulator_bits <= 25):
            raise ValueError(f"accumulator_bits {accumulator_bits}: expected 1 to 25, and 8-bit inputs")
        if o_dtype not in (None, "fp32"):
            raise ValueError(f"o_dtype {o_dtype!r}: expected 'fp32'")
        descales = Descales(q_descale, k_descale, v_descale)
        descales.check(q, k, blocks=True)
        offset = (8.0 if eight_bits else 0.0) if p_offset is None else p_offset
        provenance = {
            "model": "FlashAttention-3 paper on sm90 arithmetic",
            "tiles": f"{BLOCK}x{BLOCK}, right to left",
            "mufu": "H200, exact on all 2^32 inputs",
        }
        if eight_bits:
            bits = accumulator_bits or ACCUMULATOR_BITS
            provenance["accumulator_bits"] = f"{bits} (13: MMA-Sim, and recorded on an H200)"
        return attention(
            q,
            k,
            v,
            launch=Launch(
                "sm90",
                BLOCK,
                BLOCK,
                max_offset=offset,
                o_dtype=o_dtype,
                accumulator_bits=accumulator_bits,
            ),
            mask=resolve(causal, window_size),
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            provenance=provenance,
            descales=descales,
        )


FA3 = Fa3()
