"""Small attention problems with truth, moments and a correct flash-style output, in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.vocabulary import Budget, Case, Distribution, Output, Shape, Truth

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}


def case(**changes: Any) -> Case:
    fields = {"id": "judged", "operation": "forward", "kernel": "under-test", "distribution": Distribution("normal")}
    return Case(**(fields | changes))


def budget(tensor: str, metric: str, kind: str = "absolute", limit: float = 1.0, **changes: Any) -> Budget:
    return Budget(
        **{
            "name": f"{tensor}-{metric}",
            "tensor": tensor,
            "metric": metric,
            "kind": kind,
            "limit": limit,
            "provenance": "a test",
            **changes,
        }
    )


def to_torch(values: np.ndarray, dtype: str) -> torch.Tensor:
    """Exactly representable values as a tensor of that dtype."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(TORCH.get(dtype, torch.float32))


@dataclass(frozen=True)
class Problem:
    """A case with its truth, a correct output, and what P and V were.

    `p` holds the unrounded numerators exp(s - max), (batch, heads, seqlen_q, seqlen_k).
    """

    case: Case
    truth: Truth
    output: Output
    p: np.ndarray
    v: np.ndarray

    def with_case(self, **changes: Any) -> Problem:
        """Return the problem with fields of its case changed."""
        return replace(self, case=msgspec.structs.replace(self.case, **changes))

    def with_o(self, o: np.ndarray) -> Output:
        """Return the output with another O, rounded to the dtype."""
        return replace(self.output, o=to_torch(round_to(o, FORMATS[self.case.dtype]), self.case.dtype))

    def with_lse(self, lse: np.ndarray) -> Output:
        """Return the output with another LSE, rounded to float32."""
        return replace(self.output, lse=torch.from_numpy(lse.astype(np.float32)))


def problem(
    dtype: str = "bf16",
    seqlen_q: int = 64,
    seqlen_k: int = 256,
    heads: int = 2,
    head_dim: int = 16,
    *,
    causal: bool = False,
    q_scale: float = 1.0,
    v: np.ndarray | None = None,
    seed: int = 0,
    p_error: float = 1.0,
) -> Problem:
    """Draw, solve in float64, and attend correctly: fp32 P, rounded for PV only, row sum unrounded.

    `p_error` multiplies the rounding error of P: 2 is a kernel twice as bad as it need be.
    """
    generator = np.random.default_rng(seed)
    fmt = FORMATS[dtype]
    q, k, drawn = (
        round_to(generator.standard_normal((1, rows, heads, head_dim)).astype(np.float32), fmt)
        for rows in (seqlen_q, seqlen_k, seqlen_k)
    )
    q = round_to(q * q_scale, fmt)
    v = drawn if v is None else round_to(np.broadcast_to(v, drawn.shape).astype(np.float32), fmt)
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(head_dim)
    if causal:
        i, j = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
        s = np.where(j <= i + seqlen_k - seqlen_q, s, -np.inf)
    row_max = s.max(axis=-1, keepdims=True)
    e = np.where(np.isfinite(s), np.exp(s - np.where(np.isfinite(row_max), row_max, 0.0)), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.where(total > 0, e / total, 0.0)
        lse = np.where(total > 0, row_max + np.log(total), -np.inf)[..., 0]
    o = np.einsum("bhqk,bkhd->bqhd", w, v)
    spread = np.sqrt(np.einsum("bhqk,bkhd->bqhd", w * w, v * v))
    rounded = e + p_error * (round_to(e, fmt) - e)
    with np.errstate(divide="ignore", invalid="ignore"):
        got = np.where(total > 0, np.einsum("bhqk,bkhd->bhqd", rounded, v) / total, 0.0)
    got = round_to(np.moveaxis(got, 1, 2), fmt)
    return Problem(
        case=case(
            dtype=dtype,
            causal=causal,
            shape=Shape(1, seqlen_q, seqlen_k, heads, heads, head_dim, head_dim),
        ),
        truth=Truth({"o": o, "lse": lse}, moments={"spread": spread, "row_max": row_max[..., 0]}),
        output=Output(o=to_torch(got, dtype), lse=torch.from_numpy(lse.astype(np.float32))),
        p=e,
        v=v,
    )


def plain(o: np.ndarray, got: np.ndarray, dtype: str = "bf16", **changes: Any) -> tuple[Case, Output, Truth]:
    """Return a forward of which only O is looked at; `o` and `got` are (batch, seqlen_q, heads, head_dim_v)."""
    batch, seqlen_q, heads, head_dim = o.shape
    shape = Shape(batch, seqlen_q, seqlen_q, heads, heads, head_dim, head_dim)
    return case(dtype=dtype, shape=shape, **changes), Output(o=to_torch(got, dtype)), Truth({"o": o})
