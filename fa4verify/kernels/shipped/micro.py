"""Single device functions of FA4 on arrays: its exponential, one softmax step, its reductions, its `finalize`.

Contract: float32 arrays in and out, any length (padded to whole blocks for the launch); what FA4's own code computes,
compiled for the target and run on the PTX machine. Kernels are compiled once and kept as those of attention.py are.
Compare `fa4verify.arithmetic.exp2` and `fa4verify.kernels.emulated.softmax_sm100`, which say the same a second time.

Fails first where FA4 changes one of these functions: tests/kernels/shipped/test_micro.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from fa4verify.kernels.shipped.compiler import KernelCache, cache_folder
from fa4verify.kernels.shipped.device_tensors import on_device
from fa4verify.kernels.shipped.execution import current, execute, running
from fa4verify.kernels.shipped.host import compiling
from fa4verify.kernels.shipped.refusals import refusals
from fa4verify.kernels.shipped.target import TARGETS

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}
_caches: dict[str, KernelCache] = {}


def ex2_emulation(x: npt.ArrayLike, degree: int = 3, *, packed: bool = True, target: str = "sm_100a") -> Floats:
    """Return `utils.ex2_emulation_2(x)` (packed) or `utils.ex2_emulation(x)`, shaped like x."""
    values = np.asarray(x, np.float32)
    padded = _padded(values.reshape(-1), 4096)
    y = torch.empty_like(padded)
    _run(target, "Exponential", {"degree": degree, "packed": packed}, (padded, y))
    return y.numpy()[: values.size].reshape(values.shape)


class Step(NamedTuple):
    """What a KV tile gave: maximum and sum of each row, the factor that rescales O, and P before and after rounding."""

    row_max: Floats
    row_sum: Floats
    rescale: Floats
    exponentials: Floats
    probabilities: Floats


def softmax_step(
    scores: Floats,
    row_max: Floats | None,
    row_sum: Floats | None,
    scale_log2: float,
    *,
    threshold: float = 8.0,
    offset: int = 0,
    ex2_emu_freq: int = 0,
    ex2_emu_res: int = 4,
    ex2_emu_start_frg: int = 0,
    p_dtype: str = "bf16",
    target: str = "sm_100a",
) -> Step:
    """Return one step of `SoftmaxSm100` on scores (rows, columns), columns a multiple of 32.

    row_max and row_sum are those of the tiles before; None: this is the first one. The sum that a first tile gives
    does not depend on them.
    """
    rows, columns = scores.shape
    first = row_max is None
    given = _padded(np.asarray(scores, np.float32), 128)
    length = given.shape[0]
    largest, total = (
        _padded(np.zeros(rows, np.float32) if x is None else np.asarray(x, np.float32), 128) for x in (row_max, row_sum)
    )
    rescale, exponentials = torch.empty(length), torch.empty(length, columns)
    probabilities = torch.empty(length, columns, dtype=_TORCH[p_dtype])
    options = {
        "columns": columns,
        "is_first": first,
        "threshold": threshold,
        "offset": offset,
        "freq": ex2_emu_freq,
        "res": ex2_emu_res,
        "start": ex2_emu_start_frg,
    }
    tensors = (given, largest, total, rescale, exponentials, probabilities)
    _run(target, "SoftmaxStep", options, tensors, scale_log2)
    found = (largest, total, rescale, exponentials, probabilities.float())
    return Step(*(tensor.numpy()[:rows] for tensor in found))


def finalize(
    row_max: Floats, partial_sums: Floats, scale_log2: float, sink: Floats | None = None, *, target: str = "sm_90a"
) -> tuple[Floats, Floats]:
    """Return the factor of O and LSE of `Softmax.finalize`; partial_sums (rows, 4), sink (rows,) or None."""
    rows = len(row_max)
    largest, sums = _padded(row_max, 32), _padded(partial_sums, 32)
    sinks = torch.zeros_like(largest) if sink is None else _padded(sink, 32)
    factor, lse = torch.empty_like(largest), torch.empty_like(largest)
    _run(target, "Finalize", {"has_sink": sink is not None}, (largest, sums, sinks, factor, lse), scale_log2)
    return factor.numpy()[:rows], lse.numpy()[:rows]


def reduction(x: Floats, initial: Floats | None = None, *, adds: bool, target: str = "sm_100a") -> Floats:
    """Return `fadd_reduce` or `fmax_reduce` of each row of x (rows, columns), in the order FA4 has for the target."""
    rows, columns = x.shape
    values = _padded(x, 128)
    first = _padded(np.zeros(rows, np.float32) if initial is None else initial, 128)
    out = torch.empty_like(first)
    options = {"columns": columns, "adds": adds, "arch": TARGETS[target].number, "has_initial": initial is not None}
    _run(target, "Reduction", options, (values, first, out))
    return out.numpy()[:rows]


def _padded(x: npt.NDArray[Any], multiple: int) -> torch.Tensor:
    """Return a copy whose first axis is a multiple, filled up with zeros."""
    length = -(-max(1, len(x)) // multiple) * multiple
    padded = np.zeros((length, *x.shape[1:]), np.float32)
    padded[: len(x)] = x
    return torch.from_numpy(padded)


def _run(target: str, kernel: str, options: dict[str, Any], tensors: tuple[torch.Tensor, ...], *scalars: float) -> None:
    """Compile the kernel unless it is kept, and run it."""
    chosen = TARGETS[target]
    if target not in _caches:
        _caches[target] = KernelCache("micro", cache_folder(chosen), partial(execute, target=chosen))
    cache = _caches[target]
    there = on_device(tensors)
    key = (kernel, *options.items(), tuple(str(tensor.dtype) for tensor in tensors))
    with compiling(chosen), running(current()), refusals(target):
        if key not in cache:
            cache[key] = _compiled(kernel, options, there, scalars)
        cache[key](*there, *scalars)


def _compiled(
    kernel: str, options: dict[str, Any], tensors: tuple[torch.Tensor, ...], scalars: tuple[float, ...]
) -> Any:
    from cutlass import Float32, cute
    from flash_attn.cute.cute_dsl_utils import to_cute_tensor

    from fa4verify.kernels.shipped import micro_kernels

    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    arguments = (*map(to_cute_tensor, tensors), *map(Float32, scalars))
    return cute.compile(getattr(micro_kernels, kernel)(**options), *arguments, stream, options="--enable-tvm-ffi")
