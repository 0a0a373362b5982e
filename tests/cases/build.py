"""Cases for tests, and attention written out in float64 (all scores in memory, so small sizes only)."""

import math

import numpy as np

from fa4verify.cases import draw
from fa4verify.vocabulary import Case, Distribution, Shape


def case(distribution="normal", *, dtype="bf16", sizes=None, operation="forward", fields=None, **arguments):
    """Return a case; `sizes` are fields of the shape, `fields` of the case, the rest arguments of the distribution."""
    sizes = {"batch": 1, "seqlen_q": 64, "seqlen_k": 256, "heads": 2, "head_dim": 64} | (sizes or {})
    shape = Shape(**{"heads_kv": sizes["heads"], "head_dim_v": sizes["head_dim"], **sizes})
    return Case(
        id="x",
        operation=operation,
        kernel="any",
        distribution=Distribution(distribution, arguments),
        dtype=dtype,
        shape=shape,
        **(fields or {}),
    )


def arrays(a_case):
    """Return the drawn tensors in float64, as the kernel sees them."""
    return {name: tensor.double().numpy() for name, tensor in draw(a_case).tensors.items()}


def raw_scores(tensors):
    """Return q . k in float64: (batch, heads, seqlen_q, seqlen_k)."""
    group = tensors["q"].shape[2] // tensors["k"].shape[2]
    return np.einsum("bqhd,bkhd->bhqk", tensors["q"], np.repeat(tensors["k"], group, axis=2))


def nats(a_case):
    """Return the softmax scale."""
    return 1 / math.sqrt(a_case.shape.head_dim) if a_case.softmax_scale is None else a_case.softmax_scale


def attention(a_case, tensors):
    """Return O (batch, seqlen_q, heads, head_dim_v) and LSE (batch, heads, seqlen_q)."""
    scores = raw_scores(tensors) * nats(a_case)
    seqlen_q, seqlen_k = scores.shape[2:]
    if a_case.causal:
        hidden = np.arange(seqlen_k) > (np.arange(seqlen_q) + seqlen_k - seqlen_q)[:, None]
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    group = tensors["q"].shape[2] // tensors["v"].shape[2]
    v = np.repeat(tensors["v"], group, axis=2)
    o = np.einsum("bhqk,bkhd->bqhd", weights / np.where(total == 0, 1, total), v)
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + np.where(np.isfinite(top), top, 0))[..., 0]
