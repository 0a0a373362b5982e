"""Inputs by seed: the same bits on every machine."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from fa4verify.vocabulary import Case, Inputs

TORCH_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


def draw(case: Case) -> Inputs:
    """Draw the tensors of a case: float64 by NumPy Philox, rounded to float32, then to the case's dtype."""
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(case.id.encode()) + case.seed))
    shape = case.shape
    sizes = {
        "q": (shape.batch, shape.seqlen_q, shape.heads, shape.head_dim),
        "k": (shape.batch, shape.seqlen_k, shape.heads_kv, shape.head_dim),
        "v": (shape.batch, shape.seqlen_k, shape.heads_kv, shape.head_dim_v),
    }
    return Inputs(
        {
            name: torch.from_numpy(generator.standard_normal(size).astype(np.float32)).to(TORCH_DTYPE[case.dtype])
            for name, size in sizes.items()
        }
    )
