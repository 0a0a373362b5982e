"""Record O and LSE of flash-attn-4 on a GPU: `python record_forward.py OUT_FOLDER` (needs a GPU and flash-attn-4).

Writes forward_<device>.npz, holding for each case of forward_cases.CASES the bits of O (int16) and LSE (uint32), and
forward_<device>.json with device, driver, versions, date, and the cases that FA4 refused with its own words. Each case
runs twice; outputs that differ between the runs are not recorded but reported.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from flash_attn.cute import flash_attn_func
from forward_cases import CASES, Recorded, draw


def run(case: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits of O (int16) and LSE (uint32) of one launch."""
    tensors = {name: tensor.cuda() for name, tensor in draw(case).items()}
    q, k, v = (tensors.pop(name) for name in "qkv")
    o, lse = flash_attn_func(q, k, v, return_lse=True, **case.options, **tensors)
    torch.cuda.synchronize()
    return o.view(torch.int16).cpu().numpy(), lse.cpu().numpy().view(np.uint32)


def main(out: Path) -> None:
    """Record every case into `out`."""
    recorded, refused, unstable = {}, {}, []
    for case in CASES:
        try:
            first, second = run(case), run(case)
        except Exception:  # recorded with FA4's own words; the other cases go on
            refused[case.name] = traceback.format_exc(limit=-1).strip()
            print("refused", case.name, refused[case.name], flush=True)
            continue
        if not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
            unstable.append(case.name)
            continue
        recorded[f"{case.name}/o"], recorded[f"{case.name}/lse"] = first
        print("recorded", case.name, flush=True)
    device = torch.cuda.get_device_name()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    about = {
        "device": device,
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "versions": {
            name: version(name) for name in ("flash-attn-4", "nvidia-cutlass-dsl", "torch", "numpy", "quack-kernels")
        },
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "script": "tests/golden/record_forward.py",
        "refused": refused,
        "unstable": unstable,
    }
    slug = device.split()[-1].lower()
    np.savez_compressed(out / f"forward_{slug}.npz", **recorded)
    (out / f"forward_{slug}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
