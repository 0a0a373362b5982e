"""`python -m fa4verify.kernels.shipped.audit.run FOLDER`: run cases with what this interpreter has installed.

Contract: for each `NAME.case.json` of the folder, with its inputs in `NAME.in.safetensors`, writes the kernel's tensors
to `NAME.out.safetensors`, or what it said instead to `NAME.error`. A refusal is an error too: nobody judges here. What
`releases.executed_in` starts in a release's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from safetensors.torch import load_file, save_file

from fa4verify.kernels.call import run
from fa4verify.vocabulary import Case, Inputs

TENSORS = ("o", "lse", "dq", "dk", "dv")


def main(arguments: list[str]) -> int:
    """Run every case of the folder."""
    folder = Path(arguments[0])
    for path in sorted(folder.glob("*.case.json")):
        name = path.name.removesuffix(".case.json")
        case = msgspec.json.decode(path.read_bytes(), type=Case)
        try:
            output = run(case, Inputs(load_file(folder / f"{name}.in.safetensors")))
        except Exception as error:  # of another release anything may be raised: it is what is told
            (folder / f"{name}.error").write_text(f"{type(error).__name__}: {' '.join(str(error).split())}")
            continue
        tensors = {one: getattr(output, one) for one in TENSORS if getattr(output, one) is not None}
        save_file({one: tensor.contiguous() for one, tensor in tensors.items()}, folder / f"{name}.out.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
