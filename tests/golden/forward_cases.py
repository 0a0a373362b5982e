"""The forward problems recorded on a real GPU, and how their inputs are drawn.

Shared by the recorder (needs a GPU) and the replay (needs none). Inputs come from NumPy Philox by seed: drawn in
float64, rounded to float32, then to the 16-bit dtype, so that only the outputs need to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Recorded:
    """One recorded problem; `options` are arguments of flash_attn_func."""

    dtype: str
    head_dim: int
    seqlen_q: int = 384
    seqlen_k: int = 384
    heads: int = 2
    heads_kv: int = 2
    head_dim_v: int | None = None
    kind: str = "normal"
    options: dict[str, Any] = field(default_factory=dict)
    sink: bool = False

    @property
    def name(self) -> str:
        """A readable name, unique in CASES."""
        head_dim = f"d{self.head_dim}" + (f"_{self.head_dim_v}" if self.head_dim_v else "")
        options = [f"{key}{value}" for key, value in self.options.items()]
        words = [self.dtype, head_dim, f"s{self.seqlen_q}x{self.seqlen_k}", f"h{self.heads}_{self.heads_kv}", self.kind]
        text = "-".join([*words, *options, *(["sink"] if self.sink else [])])
        return text.replace("(", "").replace(")", "").replace(", ", "_").replace("True", "")


def _window(left: int | None, right: int | None) -> dict[str, Any]:
    return {"window_size": (left, right)}


CAUSAL = {"causal": True}
CASES = [
    *(
        Recorded(dtype, head_dim, kind=kind, options=options)
        for dtype in ("bf16", "fp16")
        for head_dim in (64, 128)
        for options in ({}, CAUSAL)
        for kind in ("normal", "outlier")
    ),
    # Other tile widths: 144 (d 96), 112 (d 192), 96 (d 192 local), 80 (d 256), 64 (d 256 local); padded head dims.
    Recorded("fp16", 96, kind="outlier"),
    Recorded("bf16", 96, 333, 333, kind="outlier", options=CAUSAL),
    Recorded("bf16", 192, kind="outlier"),
    Recorded("fp16", 192, head_dim_v=128, options=CAUSAL),
    Recorded("bf16", 192, options=_window(70, 30), heads=1, heads_kv=1),
    Recorded("fp16", 256, heads=1, heads_kv=1),
    Recorded("bf16", 256, kind="outlier", options=CAUSAL, heads=1, heads_kv=1),
    Recorded("bf16", 256, options=_window(100, 50), heads=1, heads_kv=1),
    Recorded("bf16", 40, kind="outlier"),
    Recorded("fp16", 72, options=CAUSAL),
    # Grouped queries (packed into rows) and ragged lengths.
    Recorded("bf16", 64, 200, 200, 6, 2, kind="outlier", options=CAUSAL),
    Recorded("fp16", 64, 77, 501, 8, 1, kind="outlier"),
    Recorded("fp16", 128, 77, 501, 4, 2, kind="outlier", options=CAUSAL),
    Recorded("bf16", 128, 333, 333, kind="outlier"),
    Recorded("bf16", 64, 300, 129, options=CAUSAL),
    Recorded("bf16", 128, 5, 1000, kind="outlier"),
    Recorded("fp16", 128, 130, 1),
    # Windows: two-sided, one-sided, shifted off the diagonal.
    Recorded("bf16", 128, kind="outlier", options=_window(100, 50)),
    Recorded("fp16", 64, 300, 400, options=_window(64, 0)),
    Recorded("bf16", 64, 300, 300, 4, 2, options=_window(None, 17)),
    Recorded("fp16", 128, 300, 300, options=_window(50, None)),
    Recorded("bf16", 64, 260, 260, options=_window(-10, 40)),
    # Scales, large logits, sinks, softcap.
    Recorded("bf16", 64, options={"softmax_scale": 0.5}),
    Recorded("fp16", 128, kind="scaled8"),
    Recorded("bf16", 128, kind="scaled8", options=CAUSAL),
    Recorded("bf16", 64, 256, 256, options={"softmax_scale": -0.1}),
    Recorded("bf16", 64, kind="outlier", options=CAUSAL, sink=True),
    Recorded("fp16", 128, sink=True),
    Recorded("bf16", 128, kind="outlier", options={"softcap": 15.0}),
    # What is not finite, and what hides behind a mask.
    Recorded("bf16", 64, 300, 300, kind="nonfinite", options=CAUSAL),
    Recorded("fp16", 128, 300, 300, kind="nonfinite"),
    Recorded("fp16", 64, 2048, 2048, 1, 1, kind="outlier", options=CAUSAL),
]


def draw(case: Recorded) -> dict[str, torch.Tensor]:
    """Return q, k, v (1, seqlen, heads, head_dim) and, where the case has one, learnable_sink float32 (heads,)."""
    sizes = {
        "q": (1, case.seqlen_q, case.heads, case.head_dim),
        "k": (1, case.seqlen_k, case.heads_kv, case.head_dim),
        "v": (1, case.seqlen_k, case.heads_kv, case.head_dim_v or case.head_dim),
    }
    tensors = {}
    for seed, (name, size) in enumerate(sizes.items(), start=100):
        generator = np.random.Generator(np.random.Philox(seed))
        x = generator.standard_normal(size)
        if case.kind == "outlier":
            x += 10 * generator.standard_normal(size) * (generator.random(size) < 1e-3)
        elif case.kind == "scaled8" and name != "v":
            x *= 8
        elif case.kind == "nonfinite":
            row = {"q": 20, "k": 150, "v": 280}[name]
            x[0, row, 0, 3] = {"q": np.nan, "k": np.inf, "v": np.inf}[name]
            x[0, row + 9, 1, 5] = {"q": np.inf, "k": np.nan, "v": np.nan}[name]
        tensors[name] = torch.from_numpy(x.astype(np.float32)).to(DTYPES[case.dtype])
    if case.sink:
        generator = np.random.Generator(np.random.Philox(200))
        tensors["learnable_sink"] = torch.from_numpy(generator.standard_normal(case.heads).astype(np.float32) * 2)
    return tensors
