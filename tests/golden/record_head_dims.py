"""Gradients of flash-attn-4 against float64 at every head dim up to 128, on a GPU.

`python record_head_dims.py OUT.json` (needs a GPU and flash-attn-4). Writes the relative L2 errors of dQ, dK, dV for
bf16 N(0, 1) of 320 tokens, or FA4's own words where it refuses. docs/fa4.md reads the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from flash_attn.cute import flash_attn_func

S = 320
# head dim, causal, heads, KV heads
PROBLEMS = [
    *((head_dim, True, 2, 2) for head_dim in range(8, 129, 8)),
    *((40, False, 2, 2), (48, False, 2, 2), (40, True, 4, 2), (72, True, 4, 2), (104, False, 2, 2)),
]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool) -> tuple:
    """Return dQ, dK, dV in float64 by autograd of the plain formula."""
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    for x in (q, k, v):
        x.requires_grad_()
    keys, values = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, keys) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(~torch.ones(S, S, device=s.device, dtype=torch.bool).tril(), -torch.inf)
    o = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), values)
    return torch.autograd.grad(o, (q, k, v), dout)


def main(out: Path) -> None:
    """Measure every problem and write the table."""
    rows = []
    for head_dim, causal, heads, heads_kv in PROBLEMS:
        torch.manual_seed(head_dim)
        q = torch.randn(1, S, heads, head_dim, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(1, S, heads_kv, head_dim, device="cuda", dtype=torch.bfloat16)
        v, dout = torch.randn_like(k), torch.randn_like(q)
        row = {"d": head_dim, "causal": causal, "heads": heads, "heads_kv": heads_kv}
        try:
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            o, _ = flash_attn_func(*inputs, causal=causal, deterministic=True, return_lse=True)
            gradients = torch.autograd.grad(o, inputs, dout)
            torch.cuda.synchronize()
        except Exception as error:  # FA4's own words; the other problems go on
            row["refused"] = str(error).strip().splitlines()[-1]
        else:
            for name, got, want in zip(("dq", "dk", "dv"), gradients, exact(q, k, v, dout, causal), strict=True):
                row[name] = float((got.double() - want).norm() / want.norm())
        rows.append(row)
        print(row, flush=True)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    about = {
        "device": torch.cuda.get_device_name(),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "versions": {name: version(name) for name in ("flash-attn-4", "nvidia-cutlass-dsl", "torch")},
        "relative_l2": rows,
    }
    out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
