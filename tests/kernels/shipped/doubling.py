"""A small CuTe kernel, compiled as FA4's are: y = x + x, one thread an element."""

from typing import Any

import cutlass
from cutlass import cute

THREADS = 64


class Doubling:
    """Compile-time options: cluster size and bytes of dynamic shared memory."""

    def __init__(self, cluster: int = 1, shared_bytes: int = 0) -> None:
        self.cluster = cluster
        self.shared_bytes = shared_bytes

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, stream: Any):
        """Launch blocks of 64."""
        grid = cute.ceil_div(cute.size(x), THREADS)
        self.kernel(x, y, factor).launch(
            grid=[grid, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1] if cutlass.const_expr(self.cluster > 1) else None,
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
        """Add."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        at = block * THREADS + thread
        if at < cute.size(x):
            y[at] = (x[at] + x[at]) * factor
