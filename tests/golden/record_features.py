"""Record FA4's features on a GPU, `python -m tests.golden.record_features OUT_FOLDER [--workers 8]`.

Needs flash-attn-4. Writes features_<device>.npz with the fingerprints of feature_cases (CRC-32 of 16 tokens of a head)
of every output of every case, and features_<device>.json with CRC-32 of whole tensors, device, driver, versions, date,
what FA4 refused in its own words, and outputs that differed between three runs, which are not recorded.
Compiling takes a second or more a kernel, so the cases are shared out among processes; one that dies (a fault on the
device ends its context) is started again behind the case that killed it. `--cases WORD` records those with that word.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
import traceback
import zlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from .feature_cases import CASES, Feature, bits, draw, fingerprint, launch

SECONDS = 170.0  # for all workers together
RUNS = 3


def record(case: Feature) -> tuple[dict[str, np.ndarray], list[str], dict[str, int]]:
    """Return the bits of every output that is the same in every run, the names of the others, and how many are NaN."""
    runs = []
    for _ in range(RUNS):
        outputs = launch(case, {name: tensor.cuda() for name, tensor in draw(case).items()})
        torch.cuda.synchronize()
        runs.append({name: bits(tensor) for name, tensor in outputs.items()})
    unstable = [name for name in runs[0] if any(not np.array_equal(runs[0][name], r[name]) for r in runs[1:])]
    nan = {name: count for name, tensor in outputs.items() if (count := int(torch.isnan(tensor).sum()))}
    return {name: array for name, array in runs[0].items() if name not in unstable}, unstable, nan


def shares(workers: int) -> list[int]:
    """Return the worker of each case; cases that FA4 compiles alike go to the same one."""
    configurations = [repr(replace(case, name="", kind="", seed=0)) for case in CASES]
    order = {text: number for number, text in enumerate(dict.fromkeys(configurations))}
    return [order[text] % workers for text in configurations]


def work(share: int, workers: int, word: str, out: Path) -> None:
    """Record the cases of one share that have no file yet."""
    for index, (case, owner) in enumerate(zip(CASES, shares(workers), strict=True)):
        file = out / f"case_{index}.json"
        if owner != share or word not in case.name or file.exists():
            continue
        file.write_text(json.dumps({"refused": "the process died"}))  # replaced unless it does
        start = time.perf_counter()
        try:
            found, unstable, nan = record(case)
        except Exception as error:  # recorded with FA4's own words; the other cases go on
            words = "".join(traceback.format_exception_only(error)).strip()[:600]
            file.write_text(json.dumps({"refused": words}))
            print("refused", case.name, words[:200], flush=True)
            torch.cuda.synchronize()  # raises where the device faulted: this process can do no more
            continue
        np.savez(out / f"case_{index}.npz", **{name: fingerprint(name, array) for name, array in found.items()})
        crc = {name: f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}" for name, array in found.items()}
        file.write_text(json.dumps({"crc32": crc, "unstable": unstable, "nan": nan}))
        print(f"recorded {case.name} {time.perf_counter() - start:.1f} s {unstable or ''}", flush=True)


def spread(workers: int, word: str, out: Path) -> None:
    """Run the workers until each has finished or the time is up."""
    base = [sys.executable, "-m", __spec__.name, str(out), "--workers", str(workers), "--cases", word]
    deadline = time.monotonic() + SECONDS
    running = {share: subprocess.Popen([*base, "--share", str(share)]) for share in range(workers)}
    while running and time.monotonic() < deadline:
        time.sleep(0.2)
        for share, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[share]
            if process.returncode != 0:
                running[share] = subprocess.Popen([*base, "--share", str(share)])
    for process in running.values():
        process.kill()


def join(out: Path, word: str) -> None:
    """Write the two files of the recording from those of the cases."""
    recorded, crc32, refused, unstable, nan = {}, {}, {}, {}, {}
    for index, case in enumerate(CASES):
        file = out / f"case_{index}.json"
        if word not in case.name:
            continue
        found = json.loads(file.read_text()) if file.exists() else {"refused": "no time was left"}
        if "refused" in found:
            refused[case.name] = found["refused"]
            continue
        crc32[case.name] = found["crc32"]
        if found["unstable"]:
            unstable[case.name] = found["unstable"]
        if found["nan"]:
            nan[case.name] = found["nan"]
        with np.load(out / f"case_{index}.npz") as arrays:
            recorded |= {f"{case.name}/{name}": arrays[name] for name in arrays.files}
    for file in out.glob("case_*"):
        file.unlink()
    device = torch.cuda.get_device_name()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    about = {
        "device": device,
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "versions": {n: version(n) for n in ("flash-attn-4", "nvidia-cutlass-dsl", "torch", "numpy", "quack-kernels")},
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "script": "tests/golden/record_features.py",
        "refused": refused,
        "unstable": unstable,
        "nan": nan,
        "crc32": crc32,
    }
    slug = device.split()[-1].lower()
    np.savez_compressed(out / f"features_{slug}.npz", **recorded)
    (out / f"features_{slug}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{len(crc32)} cases recorded, {len(refused)} refused, {len(unstable)} with unstable outputs")


def main() -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--share", type=int)
    parser.add_argument("--cases", default="")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.share is not None:
        work(arguments.share, arguments.workers, arguments.cases, arguments.out)
        return
    spread(arguments.workers, arguments.cases, arguments.out)
    join(arguments.out, arguments.cases)


if __name__ == "__main__":
    main()
