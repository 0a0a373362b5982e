"""Record fuzz_cases on a GPU: `python record_fuzz.py FIRST END OUT.json` (needs flash-attn-4; run in this folder).

Writes {"recorded": {case: [digest of O, digest of LSE]}, "crashed": {case: FA4's words}} and appends to an existing
OUT.json. A crash of the kernel spoils the process, so the script stops there: start it again at the next case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from flash_attn.cute import flash_attn_func
from fuzz_cases import digest, fuzz_case


def main(first: int, end: int, path: Path) -> None:
    """Record cases first to end - 1, or up to the first crash."""
    out = json.loads(path.read_text()) if path.exists() else {"recorded": {}, "crashed": {}}
    for i in range(first, end):
        tensors, options = fuzz_case(i)
        options = {name: value.cuda() if torch.is_tensor(value) else value for name, value in options.items()}
        try:
            o, lse = flash_attn_func(*(tensor.cuda() for tensor in tensors), return_lse=True, **options)
            torch.cuda.synchronize()
            out["recorded"][str(i)] = [digest(o), digest(lse)]
        except Exception as error:
            shapes = [list(tensor.shape) for tensor in tensors]
            out["crashed"][str(i)] = f"{shapes}: {str(error).splitlines()[0]}"
            print("stopped at case", i, out["crashed"][str(i)])
            break
    path.write_text(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
