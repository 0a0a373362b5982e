"""Record FA4's deterministic backward on a GPU, `python -m tests.golden.record_backward OUT_FOLDER`.

Needs flash-attn-4. Writes backward_<device>.npz with a CRC-32 of the bits of every row of O, dQ, dK, dV (the bits
themselves go to backward_<device>_bits.npz, not kept here: 15 MB), the bits of LSE and, where there is a sink, of dsink
(int32) of each case of backward_cases.CASES, and under NAME+dlse those of dQ and dK when LSE has a
gradient too (dV does not depend on it). backward_<device>.json beside it says what record_forward.py's does. Each case
runs three times.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from flash_attn.cute import flash_attn_func

from .backward_cases import CASES, draw, fingerprint

if TYPE_CHECKING:
    from .forward_cases import Recorded

WITH_DLSE = ("d64-", "d128-")


def bits(x: torch.Tensor) -> np.ndarray:
    """Return the bits of a 16-bit or 32-bit tensor as integers."""
    return x.detach().contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32).cpu().numpy()


def run(case: Recorded, use_dlse: bool) -> dict[str, np.ndarray]:
    """Return the bits of one forward and backward."""
    t = {name: tensor.cuda() for name, tensor in draw(case).items()}
    dout, dlse = t.pop("dout"), t.pop("dlse")
    for tensor in t.values():
        tensor.requires_grad_()
    q, k, v = (t.pop(name) for name in "qkv")
    o, lse = flash_attn_func(q, k, v, return_lse=True, deterministic=True, **case.options, **t)
    names = ["dq", "dk", "dv", *(["dsink"] if t else [])]
    outputs, grads = ([o, lse], [dout, dlse]) if use_dlse else ([o], [dout])
    gradients = torch.autograd.grad(outputs, [q, k, v, *t.values()], grads)
    return {"o": bits(o), "lse": bits(lse), **{n: bits(g) for n, g in zip(names, gradients, strict=True)}}


def main(out: Path) -> None:
    """Record every case into `out`."""
    recorded, refused, unstable = {}, {}, []
    for case in CASES:
        with_dlse = "outlier" in case.name and any(head_dim in case.name for head_dim in WITH_DLSE)
        for use_dlse in (False, True) if with_dlse else (False,):
            name = case.name + ("+dlse" if use_dlse else "")
            try:
                runs = [run(case, use_dlse) for _ in range(3)]
            except Exception:  # recorded with FA4's own words; the other cases go on
                refused[name] = traceback.format_exc(limit=-1).strip()
                print("refused", name, refused[name], flush=True)
                continue
            differing = [t for t in runs[0] for r in runs[1:] if not np.array_equal(runs[0][t], r[t])]
            if differing:
                unstable.append(f"{name}: {sorted(set(differing))}")
                continue
            keep = ("dq", "dk") if use_dlse else tuple(runs[0])
            recorded |= {f"{name}/{t}": runs[0][t] for t in keep}
            print("recorded", name, flush=True)
    device = torch.cuda.get_device_name()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    about = {
        "device": device,
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "versions": {n: version(n) for n in ("flash-attn-4", "nvidia-cutlass-dsl", "torch", "numpy", "quack-kernels")},
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "script": "tests/golden/record_backward.py",
        "refused": refused,
        "unstable": unstable,
    }
    slug = device.split()[-1].lower()
    np.savez_compressed(out / f"backward_{slug}_bits.npz", **recorded)
    np.savez_compressed(out / f"backward_{slug}.npz", **{name: fingerprint(bits) for name, bits in recorded.items()})
    (out / f"backward_{slug}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
