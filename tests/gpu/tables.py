"""The special-function tables of the first GPU, read off its answers: `python -m tests.gpu.tables FOLDER`.

`fa4verify record-device` without its proof on all 2^32 inputs, which `fa4verify admit` gives for the shipped tables.
The exit code is 0 if these are the shipped ones.
"""

import json
import sys
import time
from importlib.resources import files
from pathlib import Path

from fa4verify.admission.exhaust import on_gpu
from fa4verify.admission.record import write_tables


def main(folder: Path) -> int:
    """Write FOLDER/mufu_tables.json; return whether a row differs from the shipped ones."""
    start = time.perf_counter()
    shipped = json.loads(files("fa4verify.arithmetic").joinpath("mufu_tables.json").read_text())
    differing = write_tables(folder, on_gpu("cuda:0"), shipped, "cuda:0")
    print("functions with other rows than shipped:", differing, f"{time.perf_counter() - start:.1f} s")
    return 1 if differing is None or differing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
