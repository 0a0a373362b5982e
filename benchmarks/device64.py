"""Float64 attention on a GPU against a float64 product of the same device: `python benchmarks/device64.py [DEVICE]`.

Prints, for each shape, TFLOP/s of the two products of a forward (and five more of a backward, which needs one first),
counting visible pairs, and their share of what an 8192 x 8192 x 8192 product reaches in the same run. Half is what is
asked for. Moments count nothing, though they are two more products in a forward and six in a backward; docs/gpu.md says
what an H200 gave.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import torch

from fa4verify.references.backward import Upstream
from fa4verify.references.device64 import _Placed
from fa4verify.references.problem import Problem, stored

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE = 8192
SHAPES = ((8192, 4, 64), (8192, 4, 128), (8192, 4, 256), (2048, 2, 128), (4096, 16, 128))


def seconds(device: str, work: Callable[[], object]) -> float:
    """Return the best of three timings, after one that does not count."""
    timings = []
    for _ in range(4):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        timings.append(time.perf_counter() - start)
    return min(timings[1:])


def main(device: str) -> None:
    """Measure and print JSON."""
    a = torch.randn(SIDE, SIDE, dtype=torch.float64, device=device)
    product = 2 * SIDE**3 / seconds(device, lambda: a @ a) / 1e12
    print(json.dumps({"device": device, "product": SIDE, "tflops": round(product, 2)}), flush=True)
    for seqlen, heads, head_dim in SHAPES:
        q, k, v, dout = (
            stored(torch.randn(1, seqlen, heads, head_dim, generator=torch.Generator().manual_seed(i)).bfloat16())
            for i in range(4)
        )
        for causal in (False, True):
            placed = _Placed(Problem(q, k, v, scale=head_dim**-0.5, right=0 if causal else None), device)
            upstream = Upstream(dout)
            pairs = heads * seqlen * (seqlen + 1) / 2 if causal else heads * seqlen**2
            for moments in (False, True):
                for name, products, work in (
                    ("forward", 2, lambda p=placed, m=moments: p.forward(moments=m)),
                    ("backward", 2 + 5, lambda p=placed, u=upstream, m=moments: p.backward(u, moments=m)),
                ):
                    rate = products * 2 * pairs * head_dim / seconds(device, work) / 1e12
                    told = {"pass": name, "seqlen": seqlen, "heads": heads, "head_dim": head_dim, "causal": causal}
                    share = {"moments": moments, "tflops": round(rate, 2), "share": round(rate / product, 3)}
                    print(json.dumps(told | share), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda:0")
