"""The backward problems recorded on a real GPU, each chained from its own forward. Inputs as in forward_cases.

Lengths of 320 give three KV tiles of 128 keys, the fewest at which the order of dQ's adds shows; 1100 gives nine.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from .forward_cases import CAUSAL, DTYPES, Recorded
from .forward_cases import draw as draw_forward

S = 320


def _window(left: int | None, right: int | None) -> dict[str, Any]:
    return {"window_size": (left, right)}


CASES = [
    *(
        Recorded(dtype, head_dim, S, S, 1, 1, kind=kind, options=options)
        for head_dim in (64, 128)
        for dtype in ("bf16", "fp16")
        for options in ({}, CAUSAL)
        for kind in ("normal", "outlier")
    ),
    *(
        Recorded(dtype, head_dim, S, S, 1, 1, kind=kind, options=options)
        for head_dim, dtype, options, kind in (
            (96, "bf16", {}, "outlier"),
            (96, "fp16", CAUSAL, "normal"),
            (192, "bf16", CAUSAL, "outlier"),
            (192, "fp16", {}, "normal"),
            (256, "fp16", {}, "outlier"),
            (256, "bf16", CAUSAL, "normal"),
            (40, "bf16", {}, "outlier"),
            (128, "bf16", _window(100, 50), "outlier"),
            (64, "fp16", _window(64, 0), "normal"),
            (64, "bf16", _window(None, 17), "normal"),
            (256, "bf16", _window(100, 50), "normal"),
            (192, "bf16", _window(70, 30), "normal"),
            (128, "bf16", {"softcap": 15.0}, "outlier"),
            (64, "fp16", {"softcap": 15.0, **CAUSAL}, "normal"),
            (64, "bf16", {"softmax_scale": 0.5}, "normal"),
            (128, "fp16", {}, "scaled8"),
            (128, "bf16", CAUSAL, "scaled8"),
        )
    ),
    Recorded("bf16", 192, S, S, 1, 1, head_dim_v=128, options=CAUSAL),
    Recorded("bf16", 64, 200, 300, 6, 2, kind="outlier", options=CAUSAL),
    Recorded("fp16", 64, 77, 501, 4, 1, kind="outlier"),
    Recorded("fp16", 128, 77, 501, 4, 2, kind="outlier", options=CAUSAL),
    Recorded("bf16", 128, 333, 400, 4, 2, options=_window(90, 20)),
    Recorded("bf16", 96, 333, 333, 2, 1, kind="outlier"),
    Recorded("bf16", 64, 300, 129, 1, 1, options=CAUSAL),
    Recorded("fp16", 128, 130, 1, 1, 1),
    Recorded("bf16", 128, 5, 700, 1, 1, kind="outlier"),
    Recorded("bf16", 64, S, S, 1, 1, kind="outlier", options=CAUSAL, sink=True),
    Recorded("fp16", 128, S, S, 2, 1, sink=True),
    Recorded("bf16", 128, 1100, 1100, 1, 1, kind="outlier"),
]


def draw(case: Recorded) -> dict[str, Any]:
    """Return q, k, v (and learnable_sink) of forward_cases.draw, dout (1, seqlen_q, heads, head_dim_v) and dlse."""
    tensors = draw_forward(case)
    generator = np.random.Generator(np.random.Philox(300))
    size = (1, case.seqlen_q, case.heads, case.head_dim_v or case.head_dim)
    dout = generator.standard_normal(size)
    if case.kind == "outlier":
        dout += 10 * generator.standard_normal(size) * (generator.random(size) < 1e-3)
    tensors["dout"] = torch.from_numpy(dout.astype(np.float32)).to(DTYPES[case.dtype])
    dlse = generator.standard_normal((1, case.heads, case.seqlen_q))
    tensors["dlse"] = torch.from_numpy(dlse.astype(np.float32))
    return tensors


def fingerprint(bits: np.ndarray) -> np.ndarray:
    """Return the CRC-32 of every row (batch, seqlen, head) of a 4-dimensional tensor's bits, other bits as they are.

    A thirtieth of the size, and still exact: it says which row differs.
    """
    if bits.ndim < 4:
        return bits
    rows = np.ascontiguousarray(bits).reshape(-1, bits.shape[-1])
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint32).reshape(bits.shape[:-1])
