# mypy: disable-error-code="no-untyped-def, attr-defined"
# The DSL reads signatures itself, and exports its names without saying so.
"""CuTe kernels around single device functions of FA4, so that they can be run on any input.

Contract: the arithmetic is FA4's (`flash_attn.cute.utils`, `flash_attn.cute.softmax`), compiled by the DSL as in its
own kernels; ours is only the loading and storing around it. One thread a pair of elements, a row, or a quarter of one.
Imports the DSL and FA4; annotations are objects here, because the DSL reads them.
Source: flash-attn-4 4.0.0b36, `flash_fwd_sm100.softmax_step`, whose order of calls `SoftmaxStep` repeats.
"""

from typing import Any

import cutlass
from cutlass import Float32, cute
from flash_attn.cute import utils
from flash_attn.cute.softmax import Softmax, SoftmaxSm100

THREADS = 128
PAIRS_A_THREAD = 16
QUAD = 4


class Exponential:
    """y = 2^x by `ex2_emulation_2` (packed) or `ex2_emulation`; x has a multiple of 4096 elements."""

    ELEMENTS_A_BLOCK = THREADS * PAIRS_A_THREAD * 2

    def __init__(self, degree: int, packed: bool) -> None:
        self.degree = degree
        self.packed = packed

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: Any):
        """Launch one thread for 32 elements."""
        grid = cute.size(x) // self.ELEMENTS_A_BLOCK
        self.kernel(x, y).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        """Two elements at a time, as the SM100 softmax does."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        for i in cutlass.range_constexpr(PAIRS_A_THREAD):
            at = ((block * PAIRS_A_THREAD + i) * THREADS + thread) * 2
            if cutlass.const_expr(self.packed):
                y[at], y[at + 1] = utils.ex2_emulation_2(x[at], x[at + 1], poly_degree=self.degree)
            else:
                y[at] = utils.ex2_emulation(x[at], poly_degree=self.degree)
                y[at + 1] = utils.ex2_emulation(x[at + 1], poly_degree=self.degree)


class SoftmaxStep:
    """One KV tile of `SoftmaxSm100`, a thread a row: maximum, conditional rescale, exponentials, sum."""

    def __init__(self, columns: int, is_first: bool, threshold: float, offset: int, freq: int, res: int, start: int):
        self.columns = columns
        self.is_first = is_first
        self.threshold = threshold
        self.offset = offset
        self.pattern = {"ex2_emu_freq": freq, "ex2_emu_res": res, "ex2_emu_start_frg": start}

    @cute.jit
    def __call__(
        self,
        scores: cute.Tensor,
        row_max: cute.Tensor,
        row_sum: cute.Tensor,
        rescale: cute.Tensor,
        exponentials: cute.Tensor,
        probabilities: cute.Tensor,
        scale_log2: Float32,
        stream: Any,
    ):
        """Launch one thread a row; row_max and row_sum are updated in place."""
        grid = cute.size(row_max) // THREADS
        self.kernel(scores, row_max, row_sum, rescale, exponentials, probabilities, scale_log2).launch(
            grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        scores: cute.Tensor,
        row_max: cute.Tensor,
        row_sum: cute.Tensor,
        rescale: cute.Tensor,
        exponentials: cute.Tensor,
        probabilities: cute.Tensor,
        scale_log2: Float32,
    ):
        """Call what `softmax_step` calls, in its order."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        softmax = SoftmaxSm100.create(scale_log2, rescale_threshold=self.threshold, max_offset=self.offset)
        softmax.row_max[0] = row_max[row]
        softmax.row_sum[0] = row_sum[row]
        s = cute.make_rmem_tensor(self.columns, Float32)
        p = cute.make_rmem_tensor(self.columns, probabilities.element_type)
        for j in cutlass.range_constexpr(self.columns):
            s[j] = scores[row, j]
        reference, factor = softmax.update_row_max(s.load(), self.is_first)
        softmax.scale_subtract_rowmax(s, reference)
        softmax.apply_exp2_convert(s, p, **self.pattern)
        softmax.update_row_sum(s.load(), factor, self.is_first)
        row_max[row] = softmax.row_max[0]
        row_sum[row] = softmax.row_sum[0]
        rescale[row] = Float32(factor)
        for j in cutlass.range_constexpr(self.columns):
            exponentials[row, j] = s[j]
            probabilities[row, j] = p[j]


class Finalize:
    """`Softmax.finalize` of SM90: four threads share a row; gives the factor of O and LSE."""

    def __init__(self, has_sink: bool) -> None:
        self.has_sink = has_sink

    @cute.jit
    def __call__(
        self,
        row_max: cute.Tensor,
        partial_sums: cute.Tensor,
        sinks: cute.Tensor,
        factor: cute.Tensor,
        lse: cute.Tensor,
        scale_log2: Float32,
        stream: Any,
    ):
        """Launch four threads a row."""
        grid = cute.size(row_max) // (THREADS // QUAD)
        self.kernel(row_max, partial_sums, sinks, factor, lse, scale_log2).launch(
            grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        row_max: cute.Tensor,
        partial_sums: cute.Tensor,
        sinks: cute.Tensor,
        factor: cute.Tensor,
        lse: cute.Tensor,
        scale_log2: Float32,
    ):
        """Each of the four threads holds the row's maximum and its own share of the sum."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = (block * THREADS + thread) // QUAD
        part = thread % QUAD
        softmax = Softmax.create(scale_log2, 1, arch=90)
        softmax.row_max[0] = row_max[row]
        softmax.row_sum[0] = partial_sums[row, part]
        scale = softmax.finalize(sink_val=sinks[row] if cutlass.const_expr(self.has_sink) else None)
        if part == 0:
            factor[row] = scale[0]
            lse[row] = softmax.row_sum[0]


class Reduction:
    """`fadd_reduce` or `fmax_reduce` of a row held by one thread, as FA4 compiles it for `arch`."""

    def __init__(self, columns: int, adds: bool, arch: int, has_initial: bool) -> None:
        self.columns = columns
        self.adds = adds
        self.arch = arch
        self.has_initial = has_initial

    @cute.jit
    def __call__(self, x: cute.Tensor, initial: cute.Tensor, out: cute.Tensor, stream: Any):
        """Launch one thread a row."""
        grid = cute.size(out) // THREADS
        self.kernel(x, initial, out).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, initial: cute.Tensor, out: cute.Tensor):
        """Load the row, reduce it."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        values = cute.make_rmem_tensor(self.columns, Float32)
        for j in cutlass.range_constexpr(self.columns):
            values[j] = x[row, j]
        first = initial[row] if cutlass.const_expr(self.has_initial) else None
        if cutlass.const_expr(self.adds):
            out[row] = utils.fadd_reduce(values.load(), first, arch=self.arch)
        else:
            out[row] = utils.fmax_reduce(values.load(), first, arch=self.arch)
