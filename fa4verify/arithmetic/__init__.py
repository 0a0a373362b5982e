"""The floor: number formats and device arithmetic, bit for bit. Knows nothing of attention.

`formats` rounds once, `fma` holds single fp32 operations, `mufu` the special-function unit, `exp2` FA4's software
exponential and `mma` the tensor cores. docs/arithmetic.md says how each claim was measured.
"""

from pathlib import Path

from fa4verify.arithmetic.compiled import discard_stale

_FLOOR = Path(__file__).parent
for _room in sorted(_FLOOR.parent.glob("*/__init__.py")):  # compiled functions call those of their own room and ours
    discard_stale(_room.parent, _FLOOR)
