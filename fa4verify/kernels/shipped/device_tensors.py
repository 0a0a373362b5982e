"""CPU tensors that FA4 takes for CUDA tensors.

Contract: `on_device` returns tensors that share memory with what it is given and say `is_cuda`; every tensor that torch
derives from one says so too, so torch itself stays as it is. `TorchOnDevice` stands for the module `torch` inside FA4:
what it allocates is such a tensor, filled with 0xFF bytes (NaN, -1), so that an output that no kernel wrote shows.
`exported` turns them into what compiled host code takes: DLPack tensors that are labelled CUDA device 0. They keep
their `device` cpu: FA4 only compares devices with each other.

Fails first where FA4 asks a tensor something else: tests/kernels/shipped/test_device_tensors.py.
Source: DLPack 1.0, `DLManagedTensor` (data, device type, device id, ...); kDLCUDA is 2.
"""

from __future__ import annotations

import ctypes
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fa4verify.kernels.shipped.target import Target

_CUDA = 2
_DEVICE_TYPE_AT = 8  # bytes, in a DLManagedTensor: behind the pointer to the data
_ALLOCATED_EMPTY = ("empty", "empty_like", "empty_strided")
_ALLOCATED = ("zeros", "zeros_like", "full", "ones", "tensor", "arange")


class DeviceTensor(torch.Tensor):
    """A CPU tensor that says it is on a GPU; `is_cuda` is all that FA4's interface asks."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True, whatever the device."""
        return True


def on_device(value: Any) -> Any:
    """Return tensors, also those in tuples, lists and named tuples, as DeviceTensor; anything else as it is."""
    return _mapped(lambda tensor: tensor.detach().as_subclass(DeviceTensor), value)


def on_host(value: Any) -> Any:
    """Return tensors as plain tensors again."""
    return _mapped(lambda tensor: tensor.as_subclass(torch.Tensor), value)


def _mapped(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(change, entry) for entry in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(change, entry) for entry in value)
    return value


class TorchOnDevice(types.ModuleType):
    """`torch`, except that what it allocates is a DeviceTensor, and that `torch.cuda` describes the target."""

    def __init__(self, target: Target | None = None) -> None:
        super().__init__("torch")
        self._cuda = None if target is None else _CudaOfTarget(target)

    def __getattr__(self, name: str) -> Any:
        if name == "cuda" and self._cuda is not None:
            return self._cuda
        found = getattr(torch, name)
        if name in _ALLOCATED_EMPTY:
            return _allocating(found, poison=True)
        return _allocating(found, poison=False) if name in _ALLOCATED else found


class _CudaOfTarget(types.ModuleType):
    """`torch.cuda`, as far as releases of FA4 before 4.0.0b36 ask it about the GPU."""

    def __init__(self, target: Target) -> None:
        super().__init__("torch.cuda")
        self._target = target

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        """Return the compute capability."""
        return divmod(self._target.number, 10)

    def get_device_properties(self, *_: Any) -> Any:
        """Return the number of SMs and the compute capability."""
        major, minor = self.get_device_capability()
        return types.SimpleNamespace(multi_processor_count=self._target.sm_count, major=major, minor=minor)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _allocating(function: Callable[..., torch.Tensor], *, poison: bool) -> Callable[..., torch.Tensor]:
    def allocate(*arguments: Any, **options: Any) -> torch.Tensor:
        tensor: torch.Tensor = function(*arguments, **options).as_subclass(DeviceTensor)
        if poison:
            ctypes.memset(tensor.untyped_storage().data_ptr(), 0xFF, tensor.untyped_storage().nbytes())
        return tensor

    return allocate


class CudaLabelled:
    """The DLPack protocol of a CPU tensor, with the label of CUDA device 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return CUDA device 0."""
        return _CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        """Return torch's own capsule; it owns the memory, only the label is another."""
        capsule = self._tensor.detach().as_subclass(torch.Tensor).__dlpack__()
        address = _capsule_pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(address + _DEVICE_TYPE_AT).value = _CUDA
        return capsule


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def exported(value: Any) -> Any:
    """Return what compiled host code takes for these arguments."""
    import tvm_ffi

    def label(tensor: torch.Tensor) -> Any:
        return tvm_ffi.from_dlpack(CudaLabelled(tensor))

    if isinstance(value, tuple | list):
        return tuple(exported(entry) for entry in value)
    return label(value) if isinstance(value, torch.Tensor) else value


def extents(value: Any) -> list[tuple[int, int]]:
    """Return address and bytes of the memory that the elements of each tensor span, merged where they overlap."""
    spans = sorted(_spans(value))
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return [(start, end - start) for start, end in merged]


def _spans(value: Any) -> list[tuple[int, int]]:
    if isinstance(value, tuple | list):
        return [span for entry in value for span in _spans(entry)]
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return []
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return [(value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size())]
