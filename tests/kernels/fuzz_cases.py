"""Random forward problems, drawn alike on the GPU that recorded them and here.

Case i is all that Philox(9000 + i) gives: dtype, head dims, grouping, ragged lengths, masks with negative bounds,
scales 0 and below, sinks up to +-100, and inputs with outliers, NaN, infinities, subnormals or overflow.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

NAN, INF = float("nan"), float("inf")
HEAD_DIMS = (8, 24, 64, 64, 96, 128, 128, 160, 192, 256)
WINDOWS = (
    (-1, 0), (20, 0), (0, 0), (None, -5), (-20, None), (50, 30), (-200, 250), (300, -260), (7, None), (None, 40),
)  # fmt: skip


def fuzz_case(i: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return [q, k, v] and the options of case i."""
    generator = np.random.Generator(np.random.Philox(9000 + i))

    def pick(*choices):
        return choices[generator.integers(len(choices))]

    dtype = pick(torch.bfloat16, torch.float16)
    d = pick(*HEAD_DIMS)
    dv = pick(d, d, d, 64, 128)
    heads_kv = pick(1, 2)
    heads = heads_kv * pick(1, 1, 2, 3, 5)
    sq = pick(1, 3, 64, 130, 200, 257, 300)
    sk = pick(1, 65, 128, 200, 257, 300, 515)
    options: dict[str, Any] = {}
    mask = pick("none", "causal", "causal", "window", "window", "window")
    if mask == "causal":
        options["causal"] = True
    if mask == "window":
        options["window_size"] = pick(*WINDOWS)
    if generator.random() < 0.3:
        options["softmax_scale"] = pick(0.0, -0.05, 1.0, 0.3, -0.0)
    tensors = [
        _tensor(generator, pick, name, size, dtype)
        for name, size in (("q", (1, sq, heads, d)), ("k", (1, sk, heads_kv, d)), ("v", (1, sk, heads_kv, dv)))
    ]
    if generator.random() < 0.35:
        sink = generator.standard_normal(heads) * pick(1, 5, 40)
        options["learnable_sink"] = torch.from_numpy(sink.astype(np.float32))
    return tensors, options


def _tensor(generator, pick, name, size, dtype):
    x = generator.standard_normal(size) * pick(1, 1, 4, 0.01)
    flavour = pick("plain", "plain", "plain", "outliers", "not finite", "tiny or huge", "tail")
    if flavour == "outliers":
        x += 30 * generator.standard_normal(size) * (generator.random(size) < 1e-3)
    elif flavour == "not finite":
        for _ in range(3):
            value = pick(NAN, INF, -INF)
            row, head, column = (generator.integers(size[axis]) for axis in (1, 2, 3))
            x[0, row, head, column] = value
    elif flavour == "tiny or huge":
        x *= pick(1e-4, 1e-6, 3e3) if dtype == torch.float16 else pick(1e-20, 1e-36, 1e19)
    elif flavour == "tail" and name == "k":
        x[0, -128:] = NAN
    elif flavour == "tail" and name == "v":
        x[0, pick(0, -1, size[1] // 2)] = INF
    return torch.from_numpy(x.astype(np.float32)).to(dtype)


def digest(x: torch.Tensor) -> str:
    """Fingerprint of a float tensor's bits, every NaN taken for the same."""
    values = x.detach().cpu().float().contiguous().numpy().copy()  # exact; the sign of zero stays
    values[np.isnan(values)] = np.nan
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]
