"""The device that tensors are on: what it is, and faults that are not refusals.

Contract: `facts` names device, driver, CUDA, torch, FA4, DSL, TF32 flags and clocks for a Record's provenance; what
does not change is asked once a process. `on_cuda` declines tensors that are elsewhere. `finished` waits for the device,
so that a fault is raised in the kernel that made it. `lost` says whether the process can still use its device.
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from fa4verify.gpus import listed
from fa4verify.kernels.interface import NoDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl")


def on_cuda(kernel: str, tensor: torch.Tensor) -> None:
    """Decline a tensor that is not on a CUDA device."""
    if tensor.device.type != "cuda":
        raise NoDevice(f"{kernel} needs a CUDA device, its tensors are on {tensor.device}")


@contextmanager
def finished(device: torch.device) -> Iterator[None]:
    """Make `device` the current one, and wait for it at the end of the block."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
        torch.cuda.synchronize()


def is_fault(error: BaseException) -> bool:
    """Return whether an error is the device's (an illegal address, no memory), not a kernel's refusal."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"AcceleratorError", "OutOfMemoryError"}:
        return True
    said = str(error)
    return any(words in said for words in ("CUDA error", "cudaError", "CUDA_ERROR", "illegal memory access"))


def lost(device: str) -> bool:
    """Return whether this process's context on the device is gone; nothing but a new process helps then."""
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except Exception:  # whatever it says, the device does not answer
        return True
    return False


def facts(device: torch.device) -> dict[str, str]:
    """Return what a Record says of the device."""
    settings = {
        "tf32": f"matmul {torch.backends.cuda.matmul.allow_tf32}, cudnn {torch.backends.cudnn.allow_tf32}",
        "16-bit reductions": (
            f"bf16 {torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction}, "
            f"fp16 {torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction}"
        ),
    }
    return {**_constant(str(device)), **settings}


@cache
def _constant(device: str) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    found = {
        "device": f"{properties.name}, sm_{properties.major}{properties.minor}, {properties.multi_processor_count} SMs",
        "driver": next((gpu.driver for gpu in listed()), "unknown"),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "clocks": _clocks(torch.device(device).index or 0),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _clocks(index: int) -> str:
    """Return SM and memory clocks now, and the largest SM clock, in MHz, when this process first asked."""
    gpus = listed()
    if index >= len(gpus):
        return "unknown"
    fields = "clocks.sm,clocks.mem,clocks.max.sm"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", f"--id={gpus[index].uuid}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return "SM {}, memory {}, SM at most {}".format(*answer.split(", ")) if answer.count(", ") == 2 else answer
