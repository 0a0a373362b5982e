"""What O costs when S c is not rounded before m c is subtracted: `python benchmarks/fused_subtraction.py`.

FA4 takes P = exp2(FMA(S, c, -fl(m c))): the largest P of a row is 2^e, e the rounding error of m c, where a product
rounded first gives exactly 1. A float64 model of both on the problems of suite `peers` with the largest logits, with S,
x and O rounded as a kernel rounds them and all else exact; RMSE of O over that of a correctly rounded output. It leaves
out the order of the sums and the rescales, so that a kernel errs by a little more (docs/gpu.md).
"""

from __future__ import annotations

import numpy as np

from fa4verify import cases


def main() -> None:
    """Print a line for each head dim."""
    for case in cases.load_suite("peers").cases:
        chosen = case.kernel == "flash-attn-4" and case.operation == "forward" and case.dtype == "fp16"
        if not chosen or case.distribution.name != "massive_activations":
            continue
        q, k, v = (cases.draw(case).tensors[name].double().numpy() for name in "qkv")
        scale = case.shape.head_dim**-0.5
        off: dict[str, list[float]] = {"rounded": [], "fused": [], "product rounded first": []}
        for head in range(case.shape.heads):
            s = q[0, :, head] @ k[0, :, head].T
            p = np.exp((s - s.max(1, keepdims=True)) * scale)
            truth = p @ v[0, :, head] / p.sum(1, keepdims=True)
            off["rounded"].append(np.mean((half(truth) - truth) ** 2))
            s32, c = s.astype(np.float32), np.float32(scale * np.log2(np.e))
            mc = s32.max(1, keepdims=True) * c
            # The product of two float32 is exact in float64, and so is the difference where it counts, near 0.
            fused = (s32.astype(np.float64) * float(c) - mc).astype(np.float32)
            for name, x in (("fused", fused), ("product rounded first", s32 * c - mc)):
                p = np.exp2(x.astype(np.float64))
                o = half(half(p) @ v[0, :, head] / p.sum(1, keepdims=True))
                off[name].append(np.mean((o - truth) ** 2))
        rmse = {name: float(np.sqrt(np.mean(squares))) for name, squares in off.items()}
        ratios = ", ".join(f"{name} {value / rmse['rounded']:.2f}" for name, value in rmse.items())
        print(f"d {case.shape.head_dim}: {ratios}")


def half(x: np.ndarray) -> np.ndarray:
    """Round to fp16."""
    return x.astype(np.float16).astype(np.float64)


if __name__ == "__main__":
    main()
