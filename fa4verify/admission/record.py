"""A GPU's agreement with the floor, and its tables, written down.

Contract: `compare` holds the functions to the floor on all 2^32 inputs; 0 if no bit of as many answers differs, else 1.
What cannot be written is refused before the device is asked. `record` takes a folder of its own and writes
FOLDER/mufu_tables.json, read off the device's answers, then has the device compared with them in a fresh process
(numba freezes tables), which writes FOLDER/admission.json: fingerprint, counts and checksums of every block.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from fa4verify.outcome import writable, write
from fa4verify.plan import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fa4verify.admission.exhaust import Agreement, Answers

INPUTS = 1 << 32
ADMISSION = "admission.json"


def compare(device: str, *, names: Sequence[str], threads: int, tables: Path | None, json_file: Path | None) -> int:
    """Compare the functions; print a line each; return 0 if all bits are equal."""
    from fa4verify.admission.exhaust import exhaust, on_gpu
    from fa4verify.arithmetic import exhaust as floor

    if json_file is not None:
        writable(json_file)
    answers, found = on_gpu(device), []
    for name in names or floor.NAMES:
        answers(name, 0, 4096)  # compiles, on the device and here, before a clock runs
        floor.compare(name, 0, floor.model(name, 0, 1))
        found.append(exhaust(name, answers, threads=threads))
        print(found[-1], flush=True)
    if json_file is not None:
        write(json_file, json.dumps(_recording(device, tables, found), indent=1) + "\n")
    return 0 if all(one.unlike == 0 and one.inputs == INPUTS for one in found) else 1


def _recording(device: str, tables: Path | None, found: list[Agreement]) -> dict[str, Any]:
    import torch

    from fa4verify.kernels.gpu.device import facts

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tables": "shipped" if tables is None else tables.name,
        "fingerprint": facts(torch.device(device)),
        "functions": msgspec.to_builtins(found),
    }


def record(folder: Path, device: str, *, threads: int) -> int:
    """Write the tables of a device, and the proof that they are its own.

    Raises
    ------
    BadRequest
        The folder holds something already: another device's tables, their proof, or code compiled with them.
    """
    import torch

    from fa4verify.admission.exhaust import on_gpu
    from fa4verify.kernels.gpu.device import facts

    if folder.is_dir() and any(folder.iterdir()):
        raise BadRequest(f"record-device: {folder} is not empty; a device's tables get a folder of their own")
    writable(folder / ADMISSION)
    shipped = json.loads(files("fa4verify.arithmetic").joinpath("mufu_tables.json").read_text())
    known = facts(torch.device(device))
    differing = write_tables(folder, on_gpu(device), shipped, f"{known['device']}, driver {known['driver']}")
    if differing is None:
        return 1
    print(f"tables: {', '.join(differing) or 'no row'} differ from the shipped ones", flush=True)
    command = [sys.executable, "-m", "fa4verify", "admit", "--tables", str(folder), "--claimed", device]
    command += ["--json", str(folder / ADMISSION), "--threads", str(threads)]
    return subprocess.run(command, check=False).returncode


def write_tables(folder: Path, answers: Answers, shipped: dict[str, Any], device: str) -> list[str] | None:
    """Derive and write the tables; return the functions whose rows differ from `shipped`, None if no table fits."""
    from fa4verify.admission.derive import derived

    tables, unexplained = derived(answers, shipped["tanh_segment_bits"])
    for name, count in unexplained.items():
        print(f"{name}: {len(tables[name])} rows, {count} answers unexplained", flush=True)
    if any(unexplained.values()):
        print("this unit has another structure: no table describes it, nothing is written", file=sys.stderr)
        return None
    provenance = {"device": device, "date": datetime.now(UTC).date().isoformat(), "how": "fa4verify record-device"}
    text = json.dumps({"provenance": provenance, **tables})
    write(folder / "mufu_tables.json", text.replace("], [", "],\n [") + "\n")
    return [name for name in unexplained if tables[name] != shipped[name]]
