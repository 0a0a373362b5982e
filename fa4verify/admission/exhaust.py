"""All 2^32 inputs of a device's function against the floor's, block by block.

Contract: `exhaust(name, answers)` asks `answers(name, first, count)` for the bits of the function's results to the
inputs whose bits are first ... first + count - 1, and compares each with `arithmetic.exhaust`. Threads share the
blocks; the floor's code runs without the interpreter's lock. `on_gpu` makes such a function of a device.
A block is 2^23 inputs: one sign and exponent, as in tests/golden/mufu_h200.json, whose checksums these are.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fa4verify.arithmetic import exhaust as floor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Answers = Callable[[str, int, int], NDArray[np.uint32]]

BLOCK = 1 << 23
BLOCKS = range(1 << 9)


class Agreement(msgspec.Struct, frozen=True):
    """What one function gave; `first` is input, device's answer and floor's answer as hex digits."""

    function: str
    inputs: int
    unlike: int
    first: tuple[str, str, str] | None
    seconds: float
    checksums: tuple[str, ...]

    def __str__(self) -> str:
        rate = f"{self.inputs} inputs, {self.unlike} unlike, {self.seconds:.1f} s"
        if self.first is None:
            return f"{self.function}: {rate}"
        return f"{self.function}: {rate}; first at {self.first[0]}: device {self.first[1]}, floor {self.first[2]}"


def exhaust(name: str, answers: Answers, *, threads: int, blocks: Iterable[int] = BLOCKS) -> Agreement:
    """Compare one function on the given blocks of 2^23 inputs; all of them by default."""
    start = time.perf_counter()
    chosen = list(blocks)

    def compare(block: int) -> floor.Difference:
        given = answers(name, block * BLOCK, BLOCK)
        if given.dtype != np.uint32 or given.shape != (BLOCK,):
            raise ValueError(f"{name}: {given.dtype} {given.shape} for {BLOCK} inputs, expected one uint32 each")
        return floor.compare(name, block * BLOCK, given)

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(compare, chosen))
    unlike = [difference.first for difference in found if difference.first is not None]
    words = tuple(f"{value:08x}" for value in unlike[0]) if unlike else None
    return Agreement(
        function=name,
        inputs=len(found) * BLOCK,
        unlike=sum(difference.unlike for difference in found),
        first=None if words is None else (words[0], words[1], words[2]),
        seconds=round(time.perf_counter() - start, 3),
        checksums=tuple(f"{difference.checksum:016x}" for difference in found),
    )


def on_gpu(device: str) -> Answers:
    """Return a function that asks a GPU."""
    import torch

    from fa4verify.kernels.gpu.functions import evaluate

    def answers(name: str, first: int, count: int) -> NDArray[np.uint32]:
        bits = torch.arange(first, first + count, dtype=torch.int64, device=device).to(torch.int32)
        found: NDArray[np.uint32] = evaluate(name, bits.view(torch.float32)).view(torch.int32).cpu().numpy()
        return found.view(np.uint32)

    return answers
