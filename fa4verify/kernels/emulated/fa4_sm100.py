"""FlashAttention-4 on Blackwell, forward and backward; in the forward every compile-time number is an argument.

Contract: the arithmetic of `flash_attn.cute` 4.0.0b36 compiled for sm_100a: polynomial exp2 on the columns FA4
emulates for the shape, conditional rescale, sums in eight partials. What is not proved on a device: the tensor core
(published model of tcgen05; `cta_group::2` taken to be the same) and MUFU, `tanh.approx` included (the tables of an
H200). Where ptxas contracts to FFMA in the backward was read in the code it makes for sm_100a. Dense inputs, one split.

Options and FA4's values: degree 3, or any `coefficients` (c0 first, float32 numbers or C hex floats) with
range_reduction "floor" (FA4's) or "nearest" (the magic number added by add.rn); ex2_emu_freq, ex2_emu_res,
ex2_emu_start_frg (None: the tuning of the shape) or emulated_columns ("all", "none", or a list of columns of the
128-key tile) instead; rescale_threshold in log2 units (None: 8.0 for 16-bit inputs, 0, which never skips, for 8-bit
ones); max_offset, added to every exponent of P (None: 0, 8 for 8-bit inputs); p_dtype None (that of the inputs),
"bf16", "fp16", or "e4m3", "e5m2" saturating; o_dtype "fp32" leaves O unrounded (its accumulator times the reciprocal
sum), which shows what the rounding of O hides. disable_2cta, pack_gqa and num_sms choose among FA4's own variants.

8-bit inputs (e4m3, e5m2; forward only) come with q_descale, k_descale, v_descale, float32 (batch, heads_kv) or None; O
is bf16. FA4 asserts max_offset + rescale_threshold < log2 of the largest P that the format holds; here any pair is
taken, and what is clamped is counted (p_saturated). An 8-bit P with 16-bit inputs multiplies V on the 16-bit tensor
core: that isolates the rounding of P, and is no FA4 kernel. accumulator_bits puts other fraction bits in place of the
25 that an 8-bit step keeps.

Fails first at emulated columns and at a maximum that rises by exactly the threshold: tests/kernels/test_fa4_sm100.py.
Source: flash-attn-4 4.0.0b36, `flash_fwd_sm100`, `softmax.SoftmaxSm100`; for the backward `interface._flash_attn_bwd`,
`flash_bwd_sm100`, `sm100_hd256_2cta_fmha_backward`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import torch

from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array, float32_coefficients
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated import backward_launch
from fa4verify.kernels.emulated.fa4_sm90 import ALIGNMENT, FA4_VERSION
from fa4verify.kernels.emulated.launch import DTYPES, EIGHT_BITS, Descales, Launch, attention, check
from fa4verify.kernels.emulated.tuning_sm100 import B200_SMS, TILE_M, TILE_N, configure, emulated_columns
from fa4verify.kernels.emulated.visibility import resolve
from fa4verify.vocabulary import Output

P_DTYPES = ("bf16", "fp16", "e4m3", "e5m2")
O_DTYPES = ("bf16", "fp16", "fp32")
_HEX = re.compile(r"[+-]?0x[0-9a-f]+(\.[0-9a-f]*)?p[+-]?\d{1,4}", re.IGNORECASE)
Columns = Literal["all", "none"] | Sequence[int] | None


class Fa4Sm100:
    """The kernel object of room 2."""

    name = "fa4-sm100"

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
        degree: int = 3,
        coefficients: Sequence[float | str] | None = None,
        range_reduction: str = "floor",
        ex2_emu_freq: int | None = None,
        ex2_emu_res: int = 4,
        ex2_emu_start_frg: int | None = None,
        emulated_columns: Columns = None,
        rescale_threshold: float | None = None,
        max_offset: float | None = None,
        p_dtype: str | None = None,
        o_dtype: str | None = None,
        disable_2cta: bool = False,
        pack_gqa: bool | None = None,
        num_sms: int = B200_SMS,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
        accumulator_bits: int | None = None,
    ) -> Output:
        """Return o (batch, seqlen_q, heads, head_dim_v) in the dtype of q, and lse (batch, heads, seqlen_q)."""
        check(q, k, v, softcap, learnable_sink, eight_bits=True)
        batch, seqlen_q, heads, head_dim = q.shape
        heads_kv, head_dim_v = v.shape[2:]
        eight_bits = DTYPES[q.dtype] in EIGHT_BITS
        _check_head_dims(head_dim, head_dim_v, 16 if eight_bits else ALIGNMENT)
        if eight_bits and -(-head_dim // 16) * 16 % 32:
            raise Unsupported(
                f"8-bit head_dim {head_dim} does not compile on SM100: failed to partition (128,{head_dim})"
            )
        if eight_bits and p_dtype not in (None, DTYPES[q.dtype]):
            raise ValueError(f"p_dtype {p_dtype!r}: with {DTYPES[q.dtype]} inputs P has their dtype")
        if accumulator_bits is not None and not (eight_bits and 1 <= accumulator_bits <= 25):
            raise ValueError(f"accumulator_bits {accumulator_bits}: expected 1 to 25, and 8-bit inputs")
        descales = Descales(q_descale, k_descale, v_descale)
        descales.check(q, k)
        for option, name, allowed in (("p_dtype", p_dtype, P_DTYPES), ("o_dtype", o_dtype, O_DTYPES)):
            if name is not None and name not in allowed:
                raise ValueError(f"{option} {name!r}: expected one of {', '.join(allowed)}")
        mask = resolve(causal, window_size)
        chosen = configure(
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            seqlen_q=seqlen_q,
            batch=batch,
            heads=heads,
            heads_kv=heads_kv,
            causal=mask.causal,
            local=mask.local,
            modified=bool(softcap) or learnable_sink is not None,
            pack_gqa=pack_gqa,
            disable_2cta=disable_2cta,
            num_sms=num_sms,
            eight_bits=eight_bits,
        )
        columns = _columns(
            emulated_columns,
            chosen.freq if ex2_emu_freq is None else ex2_emu_freq,
            ex2_emu_res,
            chosen.start if ex2_emu_start_frg is None else ex2_emu_start_frg,
        )
        polynomial = _polynomial(degree, coefficients)
        launch = Launch(
            "sm100",
            chosen.tile_m,
            TILE_N,
            packed=chosen.pack_gqa,
            lazy=True,
            threshold=(0.0 if eight_bits else 8.0) if rescale_threshold is None else rescale_threshold,
            max_offset=(8.0 if eight_bits else 0.0) if max_offset is None else max_offset,
            p_dtype=p_dtype,
            o_dtype=o_dtype,
            emulated=columns,
            coefficients=polynomial,
            nearest=_nearest(range_reduction),
            empty_loads_first=chosen.ping_pong,
            accumulator_bits=accumulator_bits,
        )
        provenance = {
            "model": f"flash-attn-4 {FA4_VERSION} forward, sm_100a, {'2' if chosen.two_cta else '1'}-CTA",
            "tiles": f"128x{TILE_N}, {chosen.tile_m} rows share their KV tiles",
            "emulated_columns": f"{len(columns)} of {TILE_N}",
            "polynomial": _described(polynomial, range_reduction),
            "mufu": "H200",
            "not_bit_exact": "tensor core, MUFU and cta_group::2 not compared with a Blackwell device",
        }
        if eight_bits:
            provenance["accumulator_bits"] = f"{accumulator_bits or 25} (25: Khattak and Mikaitis, arXiv 2512.07004)"
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
            descales=descales,
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
        disable_2cta: bool = False,
        grad_dtype: str | None = None,
    ) -> Output:
        """Return dq, dk, dv in the dtype of q, delta (batch, heads, seqlen_q) and, with a sink, dsink (heads,).

        o and lse as `forward` gave them. deterministic=False adds in a random order, drawn by `seed` (None: 0);
        grad_dtype="fp32" leaves the gradients unrounded.
        """
        head_dim, head_dim_v = q.shape[-1], v.shape[-1]
        _check_head_dims(head_dim, head_dim_v)
        mask = resolve(causal, window_size)
        setup = backward_setup(head_dim, disable_2cta=disable_2cta)
        if setup.two_kernels:
            for name, there in (
                ("softcap", bool(softcap)),
                ("learnable_sink", learnable_sink is not None),
                ("dlse", dlse is not None),
                ("local attention", mask.local),
            ):
                if there:
                    raise Unsupported(f"SM100 backward with head_dim=256 does not support {name}")
        provenance = {
            "model": f"flash-attn-4 {FA4_VERSION} backward, sm_100a",
            "tiles": f"{setup.tile_m}x{setup.tile_n}" + (", two kernels" if setup.two_kernels else ""),
            "order": "deterministic" if deterministic or setup.two_kernels else f"random, seed {seed or 0}",
            "not_bit_exact": "not compared with a Blackwell device",
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

    def exp2(
        self,
        x: torch.Tensor,
        degree: int = 3,
        coefficients: Sequence[float | str] | None = None,
        range_reduction: str = "floor",
    ) -> Output:
        """Return what replaces MUFU on emulated columns (`utils.ex2_emulation_2`)."""
        polynomial = _polynomial(degree, coefficients)
        nearest = _nearest(range_reduction)
        y = torch.from_numpy(ex2_emulation_array(x.detach().cpu().numpy(), polynomial, nearest=nearest))
        described = _described(polynomial, range_reduction)
        return Output(y=y, provenance={"model": f"flash-attn-4 {FA4_VERSION} ex2_emulation, {described}"})


def backward_setup(head_dim: int, *, disable_2cta: bool = False) -> backward_launch.Setup:
    """Tiles of the backward (`interface._flash_attn_bwd`): from head dim 128 on, a pair of CTAs shares a dQ partial.

    Head dim 256 has kernels of its own, which always run as pairs.
    """
    if head_dim == 256:
        return backward_launch.Setup("sm100", TILE_M, TILE_N, two_kernels=True)
    if head_dim == 192 and disable_2cta:
        raise Unsupported("SM100 backward must use 2CTA for hdim 192 / 256")
    pair = head_dim >= 128 and not disable_2cta
    return backward_launch.Setup("sm100", TILE_M, 2 * TILE_N if pair else TILE_N, sink_threads=128)


def _check_head_dims(head_dim: int, head_dim_v: int, alignment: int = ALIGNMENT) -> None:
    dims = (head_dim, head_dim_v)
    small = all(8 <= d <= 128 for d in dims)
    if not (small or dims in ((192, 128), (256, 256))) or any(d % alignment for d in dims):
        raise Unsupported(
            f"(head_dim, head_dim_v)={dims} is not supported on SM100: both must be between 8 and 128 and divisible "
            f"by {alignment}, or (192, 128), or (256, 256)"
        )


def _polynomial(degree: int, coefficients: Sequence[float | str] | None) -> tuple[float, ...]:
    """Return the polynomial; a number that float32 does not hold is refused: rounding it would hide a misprint."""
    if coefficients is not None:
        return tuple(float(c) for c in float32_coefficients([_number(c) for c in coefficients]))
    if degree not in POLY_EX2:
        raise ValueError(f"degree {degree}: expected one of {', '.join(map(str, POLY_EX2))}, or coefficients")
    return POLY_EX2[degree]


def _number(word: float | str) -> float:
    """Read a number; text without 0x would be read as hex digits all the same, so it is refused."""
    if not isinstance(word, str):
        return float(word)
    if not _HEX.fullmatch(word):
        raise ValueError(f"coefficient {word!r}: expected a number or a C hex float such as '0x1.63ea32p-1'")
    return float.fromhex(word)


def _nearest(range_reduction: str) -> bool:
    if range_reduction not in ("floor", "nearest"):
        raise ValueError(f"range_reduction {range_reduction!r}: expected 'floor' or 'nearest'")
    return range_reduction == "nearest"


def _described(polynomial: tuple[float, ...], range_reduction: str) -> str:
    known = POLY_EX2.get(len(polynomial) - 1) == polynomial
    words = f"degree {len(polynomial) - 1}" if known else f"coefficients {' '.join(c.hex() for c in polynomial)}"
    return words if range_reduction == "floor" else f"{words}, range reduction to {range_reduction}"


def _columns(asked: Columns, freq: int, res: int, start: int) -> tuple[int, ...]:
    if asked is None:
        return emulated_columns(freq, res, start)
    if isinstance(asked, str):
        if asked not in ("all", "none"):
            raise ValueError(f"emulated_columns {asked!r}: expected 'all', 'none' or columns")
        return tuple(range(TILE_N)) if asked == "all" else ()
    if any(not 0 <= column < TILE_N for column in asked):
        raise ValueError(f"emulated_columns: expected columns of a {TILE_N}-key tile, got {list(asked)}")
    return tuple(asked)


FA4_SM100 = Fa4Sm100()
