# mypy: disable-error-code="no-untyped-def, attr-defined"
# The DSL reads signatures itself, and exports its names without saying so.
"""A CuTe kernel around one PTX instruction, so that it can be run on any input.

Contract: y = instruction(x), element by element; x has a multiple of ELEMENTS_A_BLOCK elements. The instruction is
written out in PTX, so that no compiler chooses another. FA4's own exponential is `shipped.micro_kernels.Exponential`.
Imports the DSL; annotations are objects here, because the DSL reads them.
"""

from typing import Any

import cutlass
from cutlass import Float32, cute

THREADS = 128
ELEMENTS_A_THREAD = 32


class Instruction:
    """y = instruction(x) for a PTX instruction from float32 to float32, named with its types."""

    ELEMENTS_A_BLOCK = THREADS * ELEMENTS_A_THREAD

    def __init__(self, text: str) -> None:
        self.text = text

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: Any):
        """Launch one thread for 32 elements."""
        grid = cute.size(x) // self.ELEMENTS_A_BLOCK
        self.kernel(x, y).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        """Load, one instruction, store."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        for i in cutlass.range_constexpr(ELEMENTS_A_THREAD):
            at = (block * ELEMENTS_A_THREAD + i) * THREADS + thread
            y[at] = cute.arch.inline_ptx(
                f"{self.text} {{$w0}}, {{$r0}};", write_only_types=[Float32], read_only_args=[x[at]]
            )
