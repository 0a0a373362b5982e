"""FA4's backward on Hopper, each of whose roundings can be switched off alone: which of them is to blame.

Contract: with `exact = ()` dQ, dK, dV and delta are those of fa4-sm90 in every bit, and every stage that `exact` names
is done in float64 instead:

    weights       P in fp32: the score product on the tensor core, FFMA, EX2, the fp32 LSE (softcap: TANH and its slope)
    p             P rounded to 16 bits for dV; dS uses the unrounded P on the device too
    delta         rowsum(O * dO) of the forward's 16-bit O, in fp32
    difference    dP on the tensor core, dP - delta, P times it, all fp32
    ds            dS rounded to 16 bits for dQ and dK
    accumulation  products for dQ, dK, dV on the tensor core, fp32 additions over KV tiles and query heads
    output        times the scale in fp32, rounded to 16 bits; exact: gradients and delta are returned as float64, or as
                  fp32 with grad_dtype = "fp32"

`exact` is a list of stages, one stage, "none" or "all"; with all, float64 attention is left. Where operands are not
rounded to 16 bits there is no tensor core to ask; the error of the accumulation is then that of the rounded operands,
added to the float64 product.

Holds whole Sq x Sk arrays, about 60 bytes an element. No sink: nothing of it is rounded to 16 bits.
Fails first where a stage is not what fa4-sm90 does: tests/kernels/test_staged.py compares bits.
Source: fa4_sm90.py, backward.py beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fa4verify.arithmetic.fma import fma_array
from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.arithmetic.mma import matmul
from fa4verify.arithmetic.mufu import ex2_array
from fa4verify.arithmetic.mufu_tanh import tanh_array
from fa4verify.kernels.emulated.backward_order import dq_turns, visited
from fa4verify.kernels.emulated.backward_preprocess import preprocess, threads_of_row
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90, FA4_VERSION, backward_setup
from fa4verify.kernels.emulated.launch import DTYPES, check
from fa4verify.kernels.emulated.softmax_sm90 import LOG2_E
from fa4verify.kernels.emulated.visibility import resolve
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fa4verify.kernels.emulated.backward_launch import Setup
    from fa4verify.kernels.emulated.visibility import Mask

    Array = NDArray[np.float64]
    Single = NDArray[np.float32]

STAGES = ("weights", "p", "delta", "difference", "ds", "accumulation", "output")
K_STEP = 16  # terms of one tensor-core step


@dataclass(frozen=True)
class _Head:
    """One query head and its key head: operands and the forward's statistics in float32, and how to compute."""

    q: Single  # (seqlen_q, head_dim)
    dout: Single
    o: Single
    k: Single  # (seqlen_k, head_dim)
    v: Single
    lse: Single  # (seqlen_q,)
    dlse: Single
    visible: NDArray[np.bool_]  # (seqlen_q, seqlen_k)
    turns: NDArray[np.int64]
    setup: Setup
    dtype: str
    scale: float
    softcap: float
    exact: frozenset[str]

    def gradients(self) -> tuple[Array, Array, Array, Array]:
        """Return dQ and dK without the scale, dV, delta; float64 arrays, of fp32 values where the device made them."""
        p64, slope64 = self._float64_weights()
        p, slope = (p64, slope64) if "weights" in self.exact else self._device_weights()
        delta = self._delta(p64)
        ds = self._ds(p, slope, delta - self.dlse if "delta" in self.exact else _single(delta - self.dlse))
        p16, ds16 = (round_to(x, FORMATS[self.dtype]) for x in (p, ds))
        p = p if "p" in self.exact else p16
        ds = ds if "ds" in self.exact else ds16
        dk = self._product(ds.T, ds16.T, self.q)
        return self._dq(ds, ds16), dk, self._product(p.T, p16.T, self.dout), delta

    def _float64_weights(self) -> tuple[Array, Array]:
        """Return P and the slope of softcap."""
        x = self.scale * _wide(self.q) @ _wide(self.k).T
        slope = np.ones_like(x)
        if self.softcap:
            t = np.tanh(x / self.softcap)
            x, slope = self.softcap * t, 1.0 - t * t
        x = np.where(self.visible, x, -np.inf)
        peak = x.max(axis=1, keepdims=True, initial=-np.inf)
        p = np.exp(x - np.where(np.isneginf(peak), 0.0, peak))
        total = p.sum(axis=1, keepdims=True)
        return p / np.where(total == 0, 1.0, total), slope

    def _device_weights(self) -> tuple[Array, Array]:
        scale, softcap = np.float32(self.scale), np.float32(self.softcap)
        s, slope, c = self._mma(self.q, self.k.T), np.ones(1), scale * LOG2_E
        if self.softcap:
            t = tanh_array(s * scale / softcap)
            s, slope, c = softcap * t, _wide(fma_array(-t, t, np.float32(1))), LOG2_E
        lse_log2 = np.where(np.isneginf(self.lse), np.float32(0), self.lse * LOG2_E)
        exponent = fma_array(np.where(self.visible, s, np.float32(-np.inf)), c, -lse_log2[:, None])
        return _wide(ex2_array(exponent)), slope

    def _delta(self, p64: Array) -> Array:
        if "delta" in self.exact:
            return np.einsum("id,id->i", p64 @ _wide(self.v), _wide(self.dout))
        delta, unused = np.empty_like(self.lse), np.empty_like(self.lse)
        threads = threads_of_row(self.o.shape[1], self.setup.padded_to)
        preprocess(self.o, self.dout, self.lse, np.zeros_like(self.lse), threads, delta, unused)
        return _wide(delta)

    def _ds(self, p: Array, slope: Array, delta: Array) -> Array:
        """P (dP - delta), times the slope; each of the device's steps is a float64 one on fp32 values, rounded."""
        if "difference" in self.exact:
            return np.where(self.visible, p * (_wide(self.dout) @ _wide(self.v).T - delta[:, None]) * slope, 0.0)
        dp = _wide(self._mma(self.dout, self.v.T))
        ds = _single(p * _single(dp - delta[:, None]))
        return np.where(self.visible, _single(ds * slope), 0.0)

    def _mma(self, a: NDArray[Any], b: NDArray[Any]) -> Single:
        """Return a . b on the tensor core; operands hold 16-bit values, the inner dimension is padded with zeros."""
        short = (0, -a.shape[1] % K_STEP)
        return matmul(
            np.pad(a, [(0, 0), short]), np.pad(b, [short, (0, 0)]), architecture=self.setup.architecture,
            dtype=self.dtype,
        )  # fmt: skip

    def _product(self, a: Array, a16: Array, b: Single) -> Array:
        """Return a . b; on the device with the error of a16 . b, if a is not that already."""
        if "accumulation" in self.exact:
            return a @ _wide(b)
        return (a - a16) @ _wide(b) + self._mma(a16, b)

    def _dq(self, ds: Array, ds16: Array) -> Array:
        """Return dS . K, added up from a partial for each KV tile; each query tile in its own order."""
        if "accumulation" in self.exact:
            return ds @ _wide(self.k)
        n, m = self.setup.tile_n, self.setup.tile_m
        partials = [self._mma(ds16[:, i : i + n], self.k[i : i + n]) for i in range(0, len(self.k), n)]
        total = np.zeros_like(self.q)
        for tile, turns in enumerate(self.turns):
            for turn in turns[turns >= 0]:
                total[tile * m : (tile + 1) * m] += partials[turn][tile * m : (tile + 1) * m]
        return (ds - ds16) @ _wide(self.k) + total


class Fa4Staged:
    """The kernel object: fa4-sm90's forward, and its backward in stages."""

    name = "fa4-staged"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        softmax_scale: float | None = None,
    ) -> Output:
        """Return fa4-sm90's o and lse."""
        return FA4_SM90.forward(
            q, k, v, causal=causal, window_size=window_size, softcap=softcap, softmax_scale=softmax_scale
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
        softmax_scale: float | None = None,
        deterministic: bool = True,
        seed: int | None = None,
        dlse: torch.Tensor | None = None,
        exact: Sequence[str] | str = (),
        grad_dtype: str | None = None,
    ) -> Output:
        """Return dq, dk, dv in the dtype of q, or fp32 with grad_dtype = "fp32", and delta float32.

        Without grad_dtype and with "output" exact all are float64. o and lse as `forward` gave them.
        """
        check(q, k, v, softcap, None)
        stages, mask = stages_of(exact), resolve(causal, window_size)
        setup = backward_setup(q.shape[-1], mask.causal, mask.local, intended=True)
        seqlen_q, seqlen_k, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        visible = _visible(mask, seqlen_q, seqlen_k)
        met = visited(mask, tile_m=setup.tile_m, tile_n=setup.tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
        dlse = torch.zeros_like(lse) if dlse is None else dlse
        dq, dk, dv, delta = (np.zeros(tuple(x.shape)) for x in (q, k, v, lse))
        add = np.add if "accumulation" in stages else _add_single
        for b, h in np.ndindex(q.shape[0], q.shape[2]):
            kv = h // group
            turns = dq_turns(
                met, descending=mask.causal or mask.local, seed=None if deterministic else (seed or 0),
                stream=(b, kv, h % group),
            )  # fmt: skip
            head = _Head(
                q=_array(q[b, :, h]), dout=_array(dout[b, :, h]), o=_array(o[b, :, h]),
                k=_array(k[b, :, kv]), v=_array(v[b, :, kv]), lse=_array(lse[b, h]), dlse=_array(dlse[b, h]),
                visible=visible, turns=turns, setup=setup, dtype=DTYPES[q.dtype], scale=scale, softcap=softcap,
                exact=stages,
            )  # fmt: skip
            dq[b, :, h], dk_part, dv_part, delta[b, h] = head.gradients()
            dk[b, :, kv], dv[b, :, kv] = add(dk[b, :, kv], dk_part), add(dv[b, :, kv], dv_part)
        dtype = torch.float32 if grad_dtype == "fp32" else torch.float64 if "output" in stages else q.dtype
        finish = _exact if "output" in stages else _rounded
        return Output(
            dq=finish(dq, scale).to(dtype),
            dk=finish(dk, scale).to(dtype),
            dv=finish(dv, 1.0).to(dtype),
            delta=torch.from_numpy(delta).to(torch.float64 if dtype is torch.float64 else torch.float32),
            provenance={
                "model": f"flash-attn-4 {FA4_VERSION} backward, sm_90a, in stages",
                "exact": ", ".join(stage for stage in STAGES if stage in stages) or "none",
            },
        )


def stages_of(exact: Sequence[str] | str) -> frozenset[str]:
    """Return the stages that `exact` names; ValueError for one that there is not."""
    words = {"none": (), "all": STAGES}
    named = words.get(exact, (exact,)) if isinstance(exact, str) else tuple(exact)
    for stage in named:
        if stage not in STAGES:
            raise ValueError(f"no stage {stage!r}; the stages are {', '.join(STAGES)}")
    return frozenset(named)


def _visible(mask: Mask, seqlen_q: int, seqlen_k: int) -> NDArray[np.bool_]:
    beyond = np.arange(seqlen_k) - (np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q)
    visible = np.ones_like(beyond, dtype=np.bool_)
    if mask.left is not None:
        visible &= beyond >= -mask.left
    if mask.right_bound is not None:
        visible &= beyond <= mask.right_bound
    return visible


def _array(x: torch.Tensor) -> Single:
    return np.ascontiguousarray(x.detach().cpu().float().numpy())


def _wide(x: NDArray[Any]) -> Array:
    return x.astype(np.float64)


def _single(x: Array) -> Array:
    """Round float64 to fp32, held in float64."""
    return _wide(x.astype(np.float32))


def _add_single(total: Array, part: Array) -> Array:
    return _single(total + part)


def _rounded(x: Array, scale: float) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float32) * np.float32(scale))


def _exact(x: Array, scale: float) -> torch.Tensor:
    return torch.from_numpy(x * scale)


FA4_STAGED = Fa4Staged()
