"""Attention in float64 with the error that a correct kernel may make at most, element by element.

The bound adds up, for one row with weights w_j, values v_j, scores s_j (log2 units) and n KV tiles:
  scores     each MMA step truncates 17 terms at 2^-25 of the largest and its sum at 2^-23: 5.25 * 2^-23 of
             sum |q_d k_d| for each of the D/16 steps; c, the FMA and fl(max c) add 4 * 2^-24 of the largest |s| a tile
  weights    e = 2^score error (natural) + 8.8e-5 (polynomial) or 2^-22 (MUFU), twice: numerator and denominator
  P          one rounding, unit roundoff u; fp16 loses up to 2^-25 absolute below 2^-14
  PV         MMA as above for each of the n * tile/16 steps; factors and sums: 2^-23 for each tile and chain element
  O          one rounding, u
Everything is taken at its worst at once, so a correct kernel stays well inside; a lost key, a wrong mask or scale does
not.
"""

from __future__ import annotations

import numpy as np
import torch

UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
MMA = 5.25 * 2.0**-23


def attention64(q, k, v, *, left=None, right=None, scale=None, softcap=0.0, sink=None, exp2_error=2.0**-22):
    """Return o, lse and the bounds on both, float64; `left`, `right` bound the window."""
    unit = UNIT[q.dtype]
    q, k, v = (x.double().numpy() for x in (q, k, v))
    sq, sk, d = q.shape[1], k.shape[1], q.shape[3]
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = d**-0.5 if scale is None else scale
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    s_error = np.einsum("bqhd,bkhd->bhqk", abs(q), abs(k)) * abs(scale) * MMA * -(-d // 16)
    if softcap:
        s = softcap * np.tanh(s / softcap)
        s_error = s_error + 4 * 2.0**-24 * softcap
    gap = np.arange(sk)[None] - (np.arange(sq)[:, None] + sk - sq)
    hidden = np.zeros((sq, sk), bool)
    if left is not None:
        hidden |= gap < -left
    if right is not None:
        hidden |= gap > right
    s = np.where(hidden, -np.inf, s)
    tiles = -(-sk // 64)
    top = np.where(np.isfinite(s), abs(s), 0).max(-1, keepdims=True, initial=0)
    weight_error = s_error.max(-1, keepdims=True, initial=0) + tiles * 4 * 2.0**-24 * (top + 1) + exp2_error
    peak = s.max(-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        peak = np.maximum(peak, np.asarray(sink, float)[None, :, None, None])
    e = np.exp(s - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.asarray(sink, float)[None, :, None, None] - peak)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.where(total > 0, e / total, 0)
        lse = np.where(total > 0, np.log(total) + peak, -np.inf)[..., 0]
    o = np.einsum("bhqk,bkhd->bqhd", w, v)
    relative = unit + 2 * weight_error + MMA * sk / 16 + (sk / 4 + 8) * 2.0**-23
    o_bound = unit * abs(o) + np.einsum("bhqk,bkhd->bqhd", w * relative, abs(v))
    o_bound += np.einsum("bhqk,bkhd->bqhd", np.where(hidden, 0.0, 2.0**-24) + 0 * w, abs(v))
    lse_bound = weight_error[..., 0] + sk / 4 * 2.0**-23 + 2.0**-21 * (1 + np.where(np.isfinite(lse), abs(lse), 0))
    return o, lse, o_bound, lse_bound


def check(output, truth):
    """Assert that a kernel's output lies within the bounds and its empty rows are declared empty."""
    o, lse, o_bound, lse_bound = truth
    error = abs(output.o.double().numpy() - o)
    assert (error <= o_bound).all(), f"O off by {(error / (o_bound + 1e-300)).max():.3g} of what a correct kernel may"
    empty = np.isneginf(lse)
    assert np.array_equal(np.isneginf(output.lse.numpy()), empty)
    lse_error = abs(np.where(empty, 0, output.lse.double().numpy()) - np.where(empty, 0, lse))
    assert (lse_error <= lse_bound).all(), f"LSE off by {lse_error.max():.3g}, allowed {lse_bound.max():.3g}"
    assert not output.o.numpy(force=True).any() if output.o.numel() == 0 else True
