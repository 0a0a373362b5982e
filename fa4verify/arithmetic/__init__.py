"""The floor: number formats and device arithmetic, bit for bit. Knows nothing of attention.

`formats` rounds once, `fma` holds single fp32 operations, `mufu` the special-function unit, `exp2` FA4's software
exponential and `mma` the tensor cores. docs/arithmetic.md says how each claim was measured.
"""

from pathlib import Path

from fa4verify.arithmetic.compiled import discard_stale

# The kernels inline the floor's functions: one stamp for the whole package.
discard_stale(Path(__file__).parents[1])
