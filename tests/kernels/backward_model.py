"""FA4's backward once more, element by element and without tiles: the second opinion on the emulated gradients' bits.

Plain Python over NumPy scalars; shares with the kernels only the floor (one FMA, MUFU, whole matrix products on the
tensor-core model). A KV tile exists here only as the number of keys that share one dQ partial: a tile that a query
does not see adds +0, which changes nothing, so nobody needs to know which tiles are visited. Also a plain float64
backward by autograd, with the error that a correct kernel may make at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.arithmetic.mma import matmul
from fa4verify.arithmetic.mufu_tanh import tanh

from .attention64 import MMA, UNIT, attention64
from .scalar_model import INF, LOG2_E, NAMES, F, ex2, fma

EX2 = 2.0**-22  # relative error of MUFU.EX2 and of the factors around it


@dataclass(frozen=True)
class BackwardModel:
    """One architecture and mask; `descending` is FA4's order of dQ's adds for causal and local masks."""

    arch: str
    keys_per_add: int
    row_threads: int
    left: int | None = None
    right: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    one_chain: bool = False

    @property
    def descending(self) -> bool:
        """Order of dQ's adds."""
        return self.left is not None or self.right is not None

    def delta(self, o, dout):
        """One row: vectors of 8 columns dealt to threads like cards; a pairwise tree over threads."""
        sums = []
        for thread in range(self.row_threads):
            own = [x for x in range(len(o)) if x // 8 % self.row_threads == thread]
            total = F(0)
            for x in sorted(own, key=lambda x: (x % 8, x)):
                total = fma(o[x], dout[x], total)
            sums.append(total)
        while len(sums) > 1:
            sums = [F(a + b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    def element(self, s, dp, delta, l2, scale, visible):
        """P and dS of one score."""
        slope = F(1)
        if self.softcap:
            t = F(tanh(F(F(s * scale) / F(self.softcap))))
            s, slope = F(F(self.softcap) * t), fma(-t, t, F(1))
        c = LOG2_E if self.softcap else F(scale * LOG2_E)
        p = ex2(fma(s if visible else -INF, c, -l2))
        return p, F(F(p * F(dp - delta)) * slope)

    def head(self, q, k, v, dout, o, lse, dlse):
        """One query head: dQ, and dK, dV before scale and rounding; all (rows, columns) float32."""
        dtype = NAMES[q.dtype]
        scale = F(q.shape[1] ** -0.5 if self.scale is None else self.scale)
        (sq, d), sk = q.shape, k.shape[0]
        q, k, v, dout, o = (x.float().numpy() for x in (q, k, v, dout, o))
        lse, dlse = lse.numpy(), np.zeros(sq, F) if dlse is None else dlse.numpy()

        def product(a, b):
            pad = -a.shape[1] % 16
            a, b = np.pad(a, ((0, 0), (0, pad))), np.pad(b, ((0, pad), (0, 0)))
            return matmul(a, b, architecture=self.arch, dtype=dtype)

        def rounded(x):
            return round_to(x, FORMATS[dtype]).astype(F)

        s, dp = product(q, k.T), product(dout, v.T)
        p, ds = np.zeros((sq, sk), F), np.zeros((sq, sk), F)
        deltas = np.array([self.delta(o[i], dout[i]) for i in range(sq)], F)
        for i in range(sq):
            l2 = F(0) if lse[i] == -INF else F(lse[i] * LOG2_E)
            for j in range(sk):
                gap = j - (i + sk - sq)
                visible = (self.left is None or gap >= -self.left) and (self.right is None or gap <= self.right)
                p[i, j], ds[i, j] = self.element(s[i, j], dp[i, j], F(deltas[i] - F(dlse[i])), l2, scale, visible)
        if self.one_chain:
            dq = product(rounded(ds * scale), k)
        else:
            starts = list(range(0, sk, self.keys_per_add))
            dq = np.zeros((sq, d), F)
            for start in reversed(starts) if self.descending else starts:
                keys = slice(start, start + self.keys_per_add)
                dq = dq + product(rounded(ds[:, keys]), k[keys])
            dq = dq * scale
        return rounded(dq), rounded(ds).T, rounded(p).T, deltas, scale, product

    def __call__(self, q, k, v, dout, o, lse, dlse=None):
        """All query heads (rows, heads, d) of one KV head: dq, dk, dv and delta, gradients in the dtype of q."""
        dtype, heads = q.dtype, q.shape[1]
        dqs, deltas, ds, p = [], [], [], []
        for h in range(heads):
            extra = None if dlse is None else dlse[h]
            dq, ds_h, p_h, delta, scale, product = self.head(q[:, h], k, v, dout[:, h], o[:, h], lse[h], extra)
            dqs.append(dq)
            deltas.append(delta)
            ds.append(ds_h)
            p.append(p_h)
        queries, douts = ([x[:, h].float().numpy() for h in range(heads)] for x in (q, dout))
        if self.one_chain:  # heads follow each other in one chain, padded to whole steps
            pad = -len(q) % 16
            dk, dv = (
                product(
                    np.concatenate([np.pad(x, ((0, 0), (0, pad))) for x in left], 1),
                    np.concatenate([np.pad(x, ((0, pad), (0, 0))) for x in right]),
                )
                for left, right in ((ds, queries), (p, douts))
            )
        else:
            dk, dv = (
                np.add.reduce([product(a, b) for a, b in zip(left, right, strict=True)], axis=0, dtype=F)
                for left, right in ((ds, queries), (p, douts))
            )
        dk, dv = (torch.from_numpy(np.ascontiguousarray(x)).to(dtype) for x in (dk * scale, dv))
        return torch.from_numpy(np.stack(dqs, 1)).to(dtype), dk, dv, torch.from_numpy(np.stack(deltas))


def gradients64(q, k, v, dout, *, left=None, right=None, scale=None, softcap=0.0, sink=None, dlse=None):
    """Gradients of plain attention by autograd in float64: dq, dk, dv and, with a sink, dsink."""
    leaves = [x.double().requires_grad_() for x in (q, k, v, *([sink] if sink is not None else []))]
    q, k, v = leaves[:3]
    group = q.shape[2] // k.shape[2]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2))
    s = s * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    gap = torch.arange(s.shape[3])[None] - (torch.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2])
    visible = torch.ones_like(gap, dtype=torch.bool)
    if left is not None:
        visible &= gap >= -left
    if right is not None:
        visible &= gap <= right
    empty = ~visible.any(1)[:, None]
    s = s.masked_fill(~visible, -torch.inf)
    if sink is None:
        s = s.masked_fill(empty, 0.0)  # every row needs a number; what it gives is cut below
    logits = s if sink is None else torch.cat([s, leaves[3][None, :, None, None].expand(*s.shape[:3], 1)], 3)
    lse = torch.logsumexp(logits, 3)
    p = torch.exp(s - lse[..., None]).masked_fill(empty, 0.0)
    o = torch.einsum("bhqk,bkhd->bqhd", p, v.repeat_interleave(group, 2))
    loss = (o * dout.double()).sum()
    if dlse is not None:
        loss = loss + ((lse if sink is not None else lse.masked_fill(empty[:, 0], 0.0)) * dlse.double()).sum()
    return torch.autograd.grad(loss, leaves)


def bounds(q, k, v, dout, *, exp2_error=EX2, dlse=None, **options):
    """Return the largest error of dq, dk, dv, dsink of a correct kernel, each element, chained from its own forward.

    dS = P (dP - delta) slope. P: scores and LSE as in attention64, EX2, then one rounding u. dP and other products: MMA
    for each step of 16 terms, of the sum of magnitudes. delta: O's own error against dO, and one rounding for each
    of its terms. dS: one rounding u (fp16: 2^-25 at least). dQ: 2^-23 for each add. Everything at its worst at once.
    """
    unit, softcap = UNIT[q.dtype], options.get("softcap", 0.0)
    scale = q.shape[3] ** -0.5 if options.get("scale") is None else options["scale"]
    _, lse, o_bound, lse_bound = attention64(q, k, v, exp2_error=exp2_error, **options)
    q, k, v, dout = (x.double().numpy() for x in (q, k, v, dout))
    group = q.shape[2] // k.shape[2]
    keys, values = (np.repeat(x, group, axis=2) for x in (k, v))
    sq, sk = q.shape[1], k.shape[1]
    s = np.einsum("bqhd,bkhd->bhqk", q, keys) * scale
    s_error = np.einsum("bqhd,bkhd->bhqk", abs(q), abs(keys)) * abs(scale) * MMA * -(-q.shape[3] // 16)
    slope, slope_error = 1.0, 0.0
    if softcap:
        t = np.tanh(s / softcap)
        s_error = s_error + 1.2e-5 * softcap
        s, slope, slope_error = softcap * t, 1 - t * t, 2 * (1.2e-5 + s_error / softcap) + 2.0**-22
    gap = np.arange(sk)[None] - (np.arange(sq)[:, None] + sk - sq)
    hidden = np.zeros((sq, sk), bool)
    if options.get("left") is not None:
        hidden |= gap < -options["left"]
    if options.get("right") is not None:
        hidden |= gap > options["right"]
    finite = np.where(np.isfinite(lse), lse, 0.0)[..., None]
    p = np.where(hidden, 0.0, np.exp(np.minimum(s - finite, 1.0)))
    p_error = s_error + lse_bound[..., None] + EX2 + 2.0**-22 * (abs(s) + abs(finite))
    dp = np.einsum("bqhd,bkhd->bhqk", dout, values)
    magnitude = np.einsum("bqhd,bkhd->bhqk", abs(dout), abs(values))
    o = np.einsum("bhqk,bkhd->bqhd", p, values)
    delta = np.einsum("bqhd,bqhd->bhq", o, dout)[..., None]
    delta_error = np.einsum("bqhd,bqhd->bhq", o_bound + abs(o) * v.shape[3] * 2.0**-24, abs(dout))[..., None]
    if dlse is not None:
        delta = delta - dlse.double().numpy()[..., None]
    inner = abs(dp - delta)
    inner_error = magnitude * MMA * -(-v.shape[3] // 16) + delta_error + 2.0**-23 * (abs(dp) + abs(delta))
    least = np.where(hidden, 0.0, 2.0**-24)
    ds = p * inner * slope
    ds_error = p * (inner_error * slope + inner * slope_error) + ds * (p_error + unit + 2.0**-22) + least

    def product(kind, left, left_error, right, steps):
        value = np.einsum(kind, left, abs(right))
        return np.einsum(kind, left_error, abs(right)) + MMA * steps * value, value

    def heads(x):
        return x.reshape(*x.shape[:2], -1, group, x.shape[3]).sum(3)

    dv, dv_size = (heads(x) for x in product("bhqk,bqhd->bkhd", p, p * (p_error + unit) + least, dout, sq / 16 + 6))
    dk, dk_size = (heads(x) for x in product("bhqk,bqhd->bkhd", ds, ds_error, q, sq / 16 + 6))
    dq, dq_size = product("bhqk,bkhd->bqhd", ds, ds_error, keys, sk / 16 + sk / 48 + 6)
    dsink = None
    if options.get("sink") is not None:
        p = np.exp(np.asarray(options["sink"], float)[None, :, None] - finite[..., 0])
        relative = lse_bound + EX2 + 2.0**-22 * (1 + abs(finite[..., 0])) + sq * 2.0**-24
        dsink = (p * (delta_error[..., 0] + abs(delta[..., 0]) * relative)).sum((0, 2))
    floor = 2.0**-24  # fp16's last place below 2^-14
    return (
        abs(scale) * (dq + 2 * unit * dq_size) + floor,
        abs(scale) * (dk + 2 * unit * dk_size) + floor,
        dv + 2 * unit * dv_size + floor,
        dsink,
    )
