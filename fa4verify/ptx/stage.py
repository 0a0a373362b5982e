"""Where the matrix instructions prepare their operands: scratch that a worker allocates once.

Contract: `new_stage` and `tensor_core_steps` fill the fields `stage` and `steps` of a State. Nothing in a stage
outlives an instruction. `Place` says at which byte of it what lies.
Numbers: which tensor core runs a target: mma.py; sm_120 rounds as sm_100 does, in steps of 16 (MMA-Sim, "RTX
Blackwell"; not measured by us).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.mma import ARCHITECTURES, Step
from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.operations import MmaDtype

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_M, MAX_N, MAX_K = 128, 256, 32
PANELS = MAX_N // LANES
ROW_BYTES = 32  # of k in one instruction: 16 codes of 16 bits or 32 of 8
PANEL_BYTES = ROW_BYTES * LANES
MAX_STEPS = 4  # of one instruction
_LEFT, _RIGHT = 4 * MAX_M * MAX_K, 4 * PANELS * MAX_K * LANES
_TENSOR_CORE = {
    "sm_80": "sm80",
    "sm_89": "sm89",
    "sm_90": "sm90",
    **dict.fromkeys(("sm_100", "sm_103", "sm_120"), "sm100"),
}
_DTYPES = {MmaDtype.BF16: "bf16", MmaDtype.F16: "fp16", MmaDtype.E4M3: "e4m3", MmaDtype.E5M2: "e5m2"}

# First byte of each part of a stage; multiples of 64. Largest shapes in brackets.
LEFT_CODES = 0  # codes [MAX_M, ROW_BYTES]
LEFT_SOURCE = LEFT_CODES + MAX_M * ROW_BYTES  # float32 [MAX_M, MAX_K]
LEFT_VALUES = LEFT_SOURCE + _LEFT
LEFT_EXPONENTS = LEFT_VALUES + _LEFT  # int32
LEFT_SCALES = LEFT_EXPONENTS + _LEFT  # int32 [MAX_M, steps]
RIGHT_WORDS = LEFT_SCALES + 4 * MAX_M * MAX_STEPS  # [PANELS, PANEL_BYTES] as operands.decode_right reads them
RIGHT_VALUES = RIGHT_WORDS + PANELS * PANEL_BYTES  # float32 [PANELS, MAX_K, LANES]
RIGHT_EXPONENTS = RIGHT_VALUES + _RIGHT  # int32
RIGHT_LARGEST = RIGHT_EXPONENTS + _RIGHT  # int64 [PANELS, steps]
ACCUMULATORS = RIGHT_LARGEST + 8 * PANELS * MAX_STEPS  # float32 [MAX_M, LANES]
ZEROS = ACCUMULATORS + 4 * MAX_M * LANES  # a slot that is only read, for columns that a last half panel lacks
SPARE = ZEROS + 128  # a slot that is only written
REPORT = SPARE + 128  # int64 [8]: what a unit called by address has to say
STAGE_BYTES = REPORT + 64


def new_stage() -> npt.NDArray[np.uint8]:
    """Scratch for one worker, zeros, aligned to 64 bytes: 200 kB."""
    memory = np.zeros(STAGE_BYTES + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + STAGE_BYTES]


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
