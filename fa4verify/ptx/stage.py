"""Where the matrix instructions prepare their operands: scratch that a worker allocates once.

Contract: `new_stage` and `tensor_core_steps` fill the fields `stage` and `steps` of a State. Nothing in a stage
outlives an instruction. `left`, `right` and `step_of` give the arrays the shapes that `mma.accumulate_panel` wants.
Numbers: which tensor core runs a target: mma.py; sm_120 rounds as sm_100 does, in steps of 16 (MMA-Sim, "RTX
Blackwell"; not measured by us).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from fa4verify.arithmetic.mma import ARCHITECTURES, Left, Right, Step
from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.operations import MmaDtype

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_M, MAX_N, MAX_K = 128, 256, 32
PANELS = MAX_N // LANES
ROW_BYTES = 32  # of k in one instruction: 16 codes of 16 bits or 32 of 8
_MAX_STEPS = 4  # steps of one instruction
_TENSOR_CORE = {"sm_80": "sm80", "sm_89": "sm89", "sm_90": "sm90"} | dict.fromkeys(
    ("sm_100", "sm_103", "sm_120"), "sm100"
)
_DTYPES = {MmaDtype.BF16: "bf16", MmaDtype.F16: "fp16", MmaDtype.E4M3: "e4m3", MmaDtype.E5M2: "e5m2"}


class Stage(NamedTuple):
    """Flat arrays, each aligned to 64 bytes; their largest shapes in brackets."""

    left_codes: npt.NDArray[np.uint8]  # [MAX_M, ROW_BYTES]
    left_source: npt.NDArray[np.float32]  # [MAX_M, MAX_K]
    left_values: npt.NDArray[np.float32]
    left_exponents: npt.NDArray[np.int32]
    left_scales: npt.NDArray[np.int32]  # [MAX_M, steps]
    right_words: npt.NDArray[np.uint8]  # [PANELS, ROW_BYTES * LANES] as operands.decode_right reads them
    right_values: npt.NDArray[np.float32]  # [PANELS, MAX_K, LANES]
    right_exponents: npt.NDArray[np.int32]
    right_largest: npt.NDArray[np.int32]  # [PANELS, steps]
    panel: npt.NDArray[np.float32]  # [MAX_M, LANES] accumulators
    spare: npt.NDArray[np.uint32]  # [32] a slot for accumulators that a last half panel lacks


def _aligned(count: int, dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    size = count * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype)


def new_stage() -> Stage:
    """Scratch for one worker: 200 kB."""
    right, left = PANELS * MAX_K * LANES, MAX_M * MAX_K
    shapes = {
        "left_codes": (MAX_M * ROW_BYTES, np.uint8),
        "left_source": (left, np.float32),
        "left_values": (left, np.float32),
        "left_exponents": (left, np.int32),
        "left_scales": (MAX_M * _MAX_STEPS, np.int32),
        "right_words": (PANELS * ROW_BYTES * LANES, np.uint8),
        "right_values": (right, np.float32),
        "right_exponents": (right, np.int32),
        "right_largest": (PANELS * _MAX_STEPS, np.int32),
        "panel": (MAX_M * LANES, np.float32),
        "spare": (32, np.uint32),
    }
    return Stage(**{name: _aligned(count, dtype) for name, (count, dtype) in shapes.items()})  # type: ignore[arg-type]


def tensor_core_steps(target: str) -> npt.NDArray[np.int64]:
    """Fields of the `Step` of each MmaDtype on a PTX target ("sm_90a"); zeros where it has none (or we no model)."""
    steps = np.zeros((len(MmaDtype), len(Step._fields)), np.int64)
    name = _TENSOR_CORE.get(target.rstrip("af"))
    if name is None:
        return steps
    for dtype, spelled in _DTYPES.items():
        if spelled in ("bf16", "fp16") or ARCHITECTURES[name].fp8_k_step:
            steps[dtype] = ARCHITECTURES[name].step(spelled)
    return steps


@njit(cache=True)
def step_of(state, dtype):  # type: ignore[no-untyped-def]
    """Step of an MmaDtype; its k_step is 0 where the target has no such tensor core."""
    row = state.steps[dtype]
    return Step(row[0], row[1], row[2], row[3], row[4])


@njit(cache=True)
def left(state, rows, length, steps):  # type: ignore[no-untyped-def]
    """A's arrays as (rows, length) and (rows, steps)."""
    stage = state.stage
    count = rows * length
    return Left(
        stage.left_source[:count].reshape(rows, length),
        stage.left_values[:count].reshape(rows, length),
        stage.left_exponents[:count].reshape(rows, length),
        stage.left_scales[: rows * steps].reshape(rows, steps),
    )


@njit(cache=True)
def right(state, panels, length, steps):  # type: ignore[no-untyped-def]
    """B's arrays as (panels, length, LANES) and (panels, steps)."""
    stage = state.stage
    count = panels * length * LANES
    return Right(
        stage.right_values[:count].reshape(panels, length, LANES),
        stage.right_exponents[:count].reshape(panels, length, LANES),
        stage.right_largest[: panels * steps].reshape(panels, steps),
    )
