"""Record what a GPU answers to every instruction of opcode_list and opcode_units: needs an NVIDIA driver and NumPy.

    python -m tests.golden.record_opcodes OUT_FOLDER      on the GPU
    python -m tests.golden.record_opcodes --check         anywhere with ptxas: does every kernel assemble?

Writes opcodes_<device>.json with a CRC-32 of every result of each family of inputs and eight samples of the first
result (opcode_program.fingerprint), and two opcodes_bits_*.npz with the results themselves (of random families the
first SHORT), which are for finding a fault and are not kept here. The driver compiles the text of one instruction at a
time, so what it refuses is recorded in its own words and the rest goes on. Each part runs in its own process with a
time limit, because a fault on the device (or a barrier that never opens) ends the context of the process that met it.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .mufu_exhaustive import Device, driver_version
from .opcode_inputs import BITS
from .opcode_list import OPCODES, Opcode
from .opcode_program import SHARED, THREADS, families_of, fingerprint, inputs, program, stored
from .opcode_units import UNITS

PARTS = {"lanes": OPCODES, **UNITS}
SECONDS = {"lanes": 150.0}  # of one part; 40 for the others
SHORT = 512
WHOLE = ("edges", "nan", "by_zero", "uniform")  # families whose results are kept in full


class Assembled(Device):
    """GPU 0, with kernels from PTX text and NumPy arrays as arguments."""

    def assemble(self, text: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Compile one kernel `probe`; RuntimeError with the compiler's words."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        log, size = ctypes.create_string_buffer(4096), 4096
        options = (ctypes.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), ctypes.c_void_p(size))
        status = self.lib.cuModuleLoadDataEx(
            ctypes.byref(module), ctypes.c_char_p(text.encode()), ctypes.c_uint(2), options, values
        )
        if status:
            raise RuntimeError(f"cuModuleLoadDataEx: error {status} {log.value.decode(errors='replace').strip()}")
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"probe")
        return module, kernel

    def run(
        self, kernel: ctypes.c_void_p, given: list[np.ndarray], wanted: list[np.dtype], rows: int
    ) -> list[np.ndarray]:
        """Launch rows threads on copies of `given`; the results."""
        pointers = []
        results = [np.zeros(rows, dtype) for dtype in wanted]
        for array in (*given, *results):
            pointer = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
            self.call("cuMemcpyHtoD_v2", pointer, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
            pointers.append(pointer)
        arguments = [ctypes.cast(ctypes.pointer(pointer), ctypes.c_void_p) for pointer in pointers]
        sizes = (ctypes.c_uint(size) for size in (rows // THREADS, 1, 1, THREADS, 1, 1, SHARED))
        nothing, packed = ctypes.c_void_p(None), (ctypes.c_void_p * len(arguments))(*arguments)
        self.call("cuLaunchKernel", kernel, *sizes, nothing, packed, nothing)
        self.call("cuCtxSynchronize")
        for array, pointer in zip(results, pointers[len(given) :], strict=True):
            self.call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(array.nbytes))
        for pointer in pointers:
            self.call("cuMemFree_v2", pointer)
        return results


def record(device: Assembled, opcode: Opcode) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Return fingerprints by family, and bits to look at."""
    module, kernel = device.assemble(program(opcode))
    fingerprints, bits = {}, {}
    wanted = [np.dtype("<u8" if BITS[kind] == 64 else "<u4") for kind in opcode.results]
    for family in families_of(opcode):
        operands, rows = inputs(opcode, family)
        kinds = (*opcode.operands, *(["b32"] if opcode.exchange else []))
        given = [stored(x, kind) for x, kind in zip(operands, kinds, strict=True)]
        results = [x[:rows] for x in device.run(kernel, given, wanted, len(operands[0]))]
        fingerprints[family] = fingerprint([x.astype(np.uint64) for x in results])
        kept = rows if family in WHOLE or opcode not in OPCODES else SHORT
        bits |= {f"{opcode.name}/{family}/{i}": x[:kept] for i, x in enumerate(results)}
    device.call("cuModuleUnload", module)
    return fingerprints, bits


def run_part(part: str, out: Path) -> None:
    """Record one part into `out`/part_<part>.json and .npz."""
    device = Assembled()
    recorded, refused, kept = {}, {}, {}
    for opcode in PARTS[part]:
        if opcode.sm > 90:
            refused[opcode.name] = f"needs sm_{opcode.sm}"
            continue
        try:
            recorded[opcode.name], bits = record(device, opcode)
        except RuntimeError as reason:  # recorded in the driver's own words; the other instructions go on
            refused[opcode.name] = str(reason)
            print("refused", opcode.name, refused[opcode.name], flush=True)
            continue
        kept |= bits
    np.savez(out / f"part_{part}.npz", **kept)
    found = {"device": device.name(), "recorded": recorded, "refused": refused}
    (out / f"part_{part}.json").write_text(json.dumps(found))


def record_all(out: Path) -> int:
    """Run every part in a process of its own and join what they wrote."""
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {}
    recorded: dict[str, object] = {}
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    bits: dict[str, dict[str, np.ndarray]] = {"lanes": {}, "units": {}}
    for part in PARTS:
        start = time.perf_counter()
        command = [sys.executable, "-m", __spec__.name, str(out), "--part", part]
        try:
            subprocess.run(command, check=True, timeout=SECONDS.get(part, 40.0))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as reason:
            failed[part] = str(reason)
        file = out / f"part_{part}.json"
        if file.exists():
            found = json.loads(file.read_text())
            file.unlink()
            recorded |= found["recorded"]
            refused |= found["refused"]
            about["device"] = found["device"]
            with np.load(out / f"part_{part}.npz") as arrays:
                bits["lanes" if part == "lanes" else "units"] |= dict(arrays)
            (out / f"part_{part}.npz").unlink()
        print(f"{part}: {time.perf_counter() - start:.1f} s {failed.get(part, 'ok')}", flush=True)
    about |= {
        "driver": driver_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "script": "tests/golden/record_opcodes.py",
        "failed_parts": failed,
        "refused": refused,
    }
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in recorded.items()]
    head = json.dumps(about, indent=1).removesuffix("\n}")
    slug = str(about.get("device", "unknown")).split()[-1].lower()
    text = head + ',\n "recorded": {\n' + ",\n".join(lines) + "\n }\n}\n"
    (out / f"opcodes_{slug}.json").write_text(text)
    for name, arrays in bits.items():
        np.savez_compressed(out / f"opcodes_bits_{name}.npz", **arrays)
    print(f"{len(recorded)} recorded, {len(refused)} refused, failed parts: {failed}")
    return bool(failed)


def check(assembler: str) -> int:
    """Assemble every kernel and draw every family; print what fails."""

    def one(opcode: Opcode) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(program(opcode))
            file.flush()
            command = [assembler, f"-arch=sm_{opcode.sm}a", "-o", "/dev/null", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        for family in families_of(opcode):
            inputs(opcode, family)
        return f"{opcode.name}: {done.stderr.strip()}" if done.returncode else ""

    opcodes = [opcode for part in PARTS.values() for opcode in part]
    with ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(one, opcodes) if text]
    print("\n".join(wrong) or f"all {len(opcodes)} assemble")
    return len(wrong)


def main() -> int:
    """Parse the command line; 0 when everything was recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        return check(shutil.which("ptxas") or "ptxas")
    if arguments.out is None:
        parser.error("OUT_FOLDER or --check")
    if arguments.part:
        run_part(arguments.part, arguments.out)
        return 0
    return record_all(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
