"""Single float32 functions on a GPU: MUFU's instructions, and FA4's exponential of each degree.

Contract: `evaluate(name, x)` runs the function of that name (`arithmetic.exhaust.NAMES`) on a float32 tensor on a CUDA
device and returns a new one; `exp2` of the kernel object `exp2-gpu` is ex2.approx, or with a `degree` FA4's
`ex2_emulation`, packed where the device has packed instructions (sm_100 and later) and `packed` asks for it.
Compiled by the DSL, once a process and device, whatever the number of threads that ask.
Fails first where the DSL changes how a kernel is compiled: tests/kernels/gpu/test_functions.py reads the PTX.
"""

from __future__ import annotations

import threading
import warnings
from functools import cache
from typing import Any

import torch

from fa4verify.kernels.gpu.device import finished, on_cuda
from fa4verify.kernels.interface import Unsupported
from fa4verify.vocabulary import Output

INSTRUCTIONS = {
    "ex2": "ex2.approx.ftz.f32",
    "rcp": "rcp.approx.ftz.f32",
    "lg2": "lg2.approx.ftz.f32",
    "tanh": "tanh.approx.f32",
}
# No answer of ex2, lg2 or tanh, and one of rcp's 2^32: what a kernel leaves unwritten is no older launch's answer.
UNWRITTEN = -12345.0
_BLOCK = 4096  # elements of one CTA, of either kernel
_COMPILING = threading.Lock()  # two threads in the DSL's compiler crash it, the whole process in the worst case


def evaluate(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the function of a float32 tensor of any length, on its CUDA device."""
    on_cuda(name, x)
    flat = x.reshape(-1)
    padded = flat if flat.numel() % _BLOCK == 0 and flat.numel() else _padded(flat)
    y = torch.full_like(padded, UNWRITTEN)
    with _COMPILING:
        compiled = _compiled(name, str(x.device))
    with finished(x.device):
        compiled(padded, y)
    return y[: flat.numel()].reshape(x.shape)


def kernel_of(name: str) -> Any:
    """Return the CuTe kernel of a function by its name; `ex2_emulation_3`, `ex2_emulation_2_3` (packed)."""
    if name in INSTRUCTIONS:
        from fa4verify.kernels.gpu.elementwise import Instruction

        return Instruction(INSTRUCTIONS[name])
    from fa4verify.kernels.shipped.micro_kernels import Exponential

    form, _, degree = name.rpartition("_")
    return Exponential(int(degree), form.endswith("_2"))


class Exponentials:
    """The kernel object of operation exp2."""

    name = "exp2-gpu"

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> Output:  # noqa: ARG002
        """Decline: this is no attention."""
        raise Unsupported("exp2-gpu is an exponential, no attention")

    def exp2(self, x: torch.Tensor, *, degree: int | None = None, packed: bool = False) -> Output:
        """Return 2^x by ex2.approx.ftz.f32, or by FA4's polynomial of this degree."""
        on_cuda(self.name, x)
        if packed and torch.cuda.get_device_capability(x.device)[0] < 10:
            raise Unsupported("FA4's packed exponential needs f32x2 instructions: sm_100 and later")
        name = "ex2" if degree is None else f"ex2_emulation_{'2_' if packed else ''}{degree}"
        return Output(y=evaluate(name, x), provenance={"model": name})


def _padded(flat: torch.Tensor) -> torch.Tensor:
    length = max(_BLOCK, -(-flat.numel() // _BLOCK) * _BLOCK)
    padded = torch.zeros(length, dtype=flat.dtype, device=flat.device)
    padded[: flat.numel()] = flat
    return padded


@cache
def _compiled(name: str, device: str) -> Any:
    from fa4verify.kernels.shipped.refusals import refusals

    example = torch.zeros(_BLOCK, dtype=torch.float32, device=device)
    major, minor = torch.cuda.get_device_capability(device)
    with refusals(f"sm_{major}{minor}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the DSL deprecates names of its own
        from cutlass import cute
        from flash_attn.cute.cute_dsl_utils import to_cute_tensor

        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        arguments = (to_cute_tensor(example), to_cute_tensor(torch.empty_like(example)))
        return cute.compile(kernel_of(name), *arguments, stream, options="--enable-tvm-ffi")


EXP2_GPU = Exponentials()
