"""Attention in float64."""

from __future__ import annotations

import numpy as np

from fa4verify.vocabulary import Case, Inputs, Truth


def solve(case: Case, inputs: Inputs) -> Truth:
    """Return O and LSE in float64 of the rounded inputs."""
    q, k, v = (inputs.tensors[name].double().numpy() for name in "qkv")
    scale = case.shape.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    row_max = s.max(axis=-1, keepdims=True)
    p = np.exp(s - row_max)
    row_sum = p.sum(axis=-1, keepdims=True)
    return Truth({"o": np.einsum("bhqk,bkhd->bqhd", p / row_sum, v), "lse": (row_max + np.log(row_sum))[..., 0]})
