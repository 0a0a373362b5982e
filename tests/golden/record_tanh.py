"""Record tanh.approx.f32 on a GPU: `python record_tanh.py OUT.json` (needs an NVIDIA GPU, nvcc and NumPy).

Dumps every positive octave from 2^-17 to 2^8 and packs what tests/arithmetic/test_mufu_tanh.py replays: a hash of all
2^23 results of each octave, CRC-32 of each 2^12 distinct results, and some results in the clear. The recording here was
made on 2026-11-29; mufu_exhaustive.py proves the model on all 2^32 inputs.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

OCTAVES = range(-17, 8)
# Segments of each octave that is neither the identity nor 1; the 17 fraction bits below theirs are the last read.
SEGMENTS = dict(zip(range(-8, 3), (1, 1, 1, 2, 2, 4, 4, 4, 8, 16, 8), strict=True))
SPECIALS = [
    *("00000000", "80000000", "00000001", "007fffff", "00800000", "7f800000", "ff800000"),
    *("7fc00000", "7f800001", "bf000000", "3f000000", "41100000", "41200000"),
]
CUDA = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
__global__ void evaluate(unsigned first, unsigned* y) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = __uint_as_float(first + i), t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x));
  y[i] = __float_as_uint(t);
}
int main(int argc, char** argv) {  // FIRST (hex) COUNT FILE: results of COUNT inputs, a multiple of 256 or 1
  unsigned first = strtoul(argv[1], 0, 16), count = strtoul(argv[2], 0, 10), *y;
  if (cudaMalloc(&y, 4ull * count)) return 1;
  evaluate<<<count < 256 ? 1 : count / 256, count < 256 ? count : 256>>>(first, y);
  std::vector<unsigned> host(count);
  if (cudaMemcpy(host.data(), y, 4ull * count, cudaMemcpyDeviceToHost)) return 1;
  FILE* out = fopen(argv[3], "wb");
  return !out || fwrite(host.data(), 4, count, out) != count || fclose(out);
}
"""


def lows() -> list[int]:
    """Return the 17-bit values whose results are stored in the clear: ends, carries and single bits first."""
    edges = {0, 1, 2, 3, 0x1FFFF, 0x1FFFE, 0x10000, 0xFFFF, 511, 512, 513}
    bits = range(17)
    edges |= {1 << k for k in bits} | {0x1FFFF >> k for k in bits} | {0x1FFFF ^ (1 << k) for k in bits}
    generator = np.random.default_rng(0)
    while len(edges) < 64:
        edges.add(int(generator.integers(0, 1 << 17)))
    return sorted(edges)


def rolling_hash(results: np.ndarray) -> str:
    """Return s = s * 1000003 + result mod 2^64 over all results, from 0."""
    total = 0
    for result in results.tolist():
        total = (total * 1000003 + result) & 0xFFFFFFFFFFFFFFFF
    return f"{total:016x}"


def packed(octaves: dict[int, np.ndarray]) -> dict[str, object]:
    """Pack the results of whole octaves (2^23 words each) into what the tests replay."""
    crc32: dict[int, list[str]] = {}
    values: dict[int, list[list[str]]] = {}
    for exponent, segments in SEGMENTS.items():
        step = 2**23 // (segments << 17)
        distinct = np.ascontiguousarray(octaves[exponent][::step].astype("<u4"))
        if not np.array_equal(np.repeat(distinct, step), octaves[exponent]):
            raise ValueError(f"octave {exponent}: results depend on more bits than those of {segments} segments")
        crc32[exponent] = [f"{zlib.crc32(distinct[i : i + 4096].tobytes()):08x}" for i in range(0, distinct.size, 4096)]
        values[exponent] = [[f"{int(distinct[(j << 17) + low]):08x}" for low in lows()] for j in range(segments)]
    return {
        "segments": SEGMENTS,
        "lows": lows(),
        "hashes": [[exponent, rolling_hash(results)] for exponent, results in octaves.items()],
        "crc32": crc32,
        "values": values,
    }


def main(out: Path) -> None:
    """Compile, dump, pack, write."""
    with tempfile.TemporaryDirectory() as folder:
        source, program, dump = (Path(folder, name) for name in ("tanh.cu", "tanh", "dump"))
        source.write_text(CUDA)
        subprocess.run(["nvcc", "-O2", "-arch=native", "-o", program, source], check=True)

        def results(first: int, count: int) -> np.ndarray:
            subprocess.run([program, f"{first:x}", str(count), dump], check=True)
            return np.fromfile(dump, "<u4")

        octaves = {exponent: results((exponent + 127) << 23, 2**23) for exponent in OCTAVES}
        specials = [[code, f"{int(results(int(code, 16), 1)[0]):08x}"] for code in SPECIALS]
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    name, driver, capability = (word.strip() for word in answer.splitlines()[0].split(","))
    about = {
        "device": name,
        "compute_capability": capability,
        "driver": driver,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "instruction": "tanh.approx.f32",
        "specials": specials,
    }
    out.write_text(json.dumps({**about, **packed(octaves)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
