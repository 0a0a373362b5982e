"""A stand-in for the CUDA runtime, to which FA4's compiled host code hands its launches.

Contract: `load` links an object that the CuTe DSL compiled for the host and returns its function; `run` calls one and
hands every kernel launch to a receiver, in the calling thread. What the receiver raises comes out of `run`; the host
code then sees a failed launch and stops. A runtime function that no stand-in exists for is a RuntimeMismatch at `load`,
and so is a device attribute or a launch attribute that is not known: nothing is answered by guess.

Nothing is patched and no compiler is needed: the host code's imports are renamed (objects.py) and bound to ctypes
callbacks, so that the real runtime, loaded or not, is neither used nor disturbed.

Fails first when a release of the DSL calls something new: tests/kernels/shipped/test_runtime.py.
Source: symbols and signatures of libcute_dsl_runtime.so, nvidia-cutlass-dsl 4.8.1, whose functions are those of the
CUDA Runtime API behind an underscore; `cudaLaunchConfig_t`, `cudaLaunchAttribute` in driver_types.h of CUDA 13.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.shipped.objects import absolute_library, renamed, undefined_symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_PREFIX = "fa4verify_"
_FOREIGN = ("_cu", "cuda_dialect_", "CuteDSLRT_")  # what the DSL's runtime library exports
_EXPORTED = "__tvm_ffi_"

_SHARED_MEMORY_PER_BLOCK_OPTIN, _MULTIPROCESSORS, _MAJOR, _MINOR = 97, 16, 75, 76
_STATIC_SHARED_BYTES = 1  # of cuKernelGetAttribute
_COOPERATIVE, _CLUSTER, _CLUSTER_POLICY, _PROGRAMMATIC = 2, 4, 5, 6
_IGNORED = {0, _CLUSTER_POLICY, _PROGRAMMATIC}  # 0: none; a launch that waits for its predecessors is what we do
_ATTRIBUTE_BYTES = 72
_FAILED = 719  # cudaErrorLaunchFailure: what the host code sees of an exception of ours


class RuntimeMismatch(RuntimeError):  # noqa: N818 - says what it is: this FA4 or DSL is not the one we stand in for
    """FA4's host code asks the CUDA runtime for something that has no stand-in."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch as the host code gave it; `arguments` points to one pointer for each kernel parameter."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    cooperative: bool
    shared_bytes: int
    arguments: int

    def parameters(self, layout: Iterable[tuple[str, int, int]], size: int) -> bytes:
        """Return the kernel's parameter block; `layout` gives name, offset and bytes of each parameter in order."""
        block = bytearray(size)
        pointers = ctypes.cast(self.arguments, ctypes.POINTER(ctypes.c_void_p))
        for index, (_, offset, length) in enumerate(layout):
            block[offset : offset + length] = ctypes.string_at(pointers[index], length)
        return bytes(block)


@dataclass(frozen=True)
class Device:
    """What the host code may ask the device."""

    compute_capability: tuple[int, int]
    sm_count: int
    shared_bytes: int  # most dynamic shared memory of a block

    def attribute(self, number: int) -> int:
        """Answer cudaDeviceGetAttribute."""
        answers = {
            _SHARED_MEMORY_PER_BLOCK_OPTIN: self.shared_bytes,
            _MULTIPROCESSORS: self.sm_count,
            _MAJOR: self.compute_capability[0],
            _MINOR: self.compute_capability[1],
        }
        if number not in answers:
            raise RuntimeMismatch(f"host code asks for device attribute {number}; known: {sorted(answers)}")
        return answers[number]


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


class _Current(threading.local):
    """The call that runs in this thread."""

    device: Device | None = None
    receiver: Callable[[Launch], None] | None = None
    error: BaseException | None = None


_current = _Current()
_kernels: list[str] = [""]  # a kernel's handle is its index; 0 would be a null pointer
_loaded = threading.Lock()
_library: _Library | None = None


def run(
    function: Callable[..., Any], arguments: Sequence[Any], *, device: Device, receiver: Callable[[Launch], None]
) -> None:
    """Call a host function; every launch goes to `receiver`, whose exceptions come out here."""
    before = _current.device, _current.receiver, _current.error
    _current.device, _current.receiver, _current.error = device, receiver, None
    try:
        try:
            function(*arguments)
        except Exception:
            if _current.error is None:
                raise
        if _current.error is not None:
            raise _current.error
    finally:
        _current.device, _current.receiver, _current.error = before


def load(object_file: bytes, name: str) -> Any:
    """Link an object that `export_to_c` of the CuTe DSL wrote; return its TVM-FFI function.

    Raises
    ------
    RuntimeMismatch
        The object needs a runtime function that has no stand-in.
    """
    import tvm_ffi
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

    global _library
    with _loaded:
        _library = _library or _Library()
    wanted = {symbol for symbol in undefined_symbols(object_file) if symbol.startswith(_FOREIGN)}
    unknown = sorted(wanted - _library.names)
    if unknown:
        raise RuntimeMismatch(f"host code calls {', '.join(unknown)}, which fa4verify does not stand in for")
    own = renamed(object_file, {symbol: _PREFIX + symbol for symbol in wanted})
    engine = BinaryExecutionEngine(own, [_library.path], True)
    return tvm_ffi.Function.__from_extern_c__(engine.lookup(_EXPORTED + name), keep_alive_object=engine)


def _guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Return a callback that keeps an exception for `run` and answers with an error code instead."""

    def callback(*arguments: Any) -> int:
        try:
            return function(*arguments) or 0
        except BaseException as error:  # nothing may unwind through the host code
            _current.error = _current.error or error
            return _FAILED

    return callback


_POINTER, _INT, _UINT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_INIT = ctypes.CFUNCTYPE(_INT, _POINTER)
_LOAD = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)


def _write(address: int, kind: Any, value: int) -> None:
    kind.from_address(address).value = value


def _library_load(library: int, *_: Any) -> None:
    _write(library, _POINTER, 1)  # the code in it is never run


def _library_get_kernel(kernel: int, _library: int, name: bytes) -> None:
    text = name.decode()
    if text not in _kernels:
        _kernels.append(text)
    _write(kernel, _POINTER, _kernels.index(text))


def _kernel_attribute(value: int, attribute: int, *_: Any) -> None:
    if attribute != _STATIC_SHARED_BYTES:
        raise RuntimeMismatch(f"host code asks for kernel attribute {attribute}; known: {_STATIC_SHARED_BYTES}")
    # Subtracted from what a block may have, which only gives the largest dynamic part: a limit, not a result.
    _write(value, _INT, 0)


def _device_attribute(value: int, attribute: int, _device: int) -> None:
    if _current.device is None:
        raise RuntimeMismatch("host code called outside of run()")
    _write(value, _INT, _current.device.attribute(attribute))


def _memset(address: int, value: int, size: int, *_: Any) -> None:
    ctypes.memset(address, value, size)


def _initialise_once(state: int, initialise: int, load_to_device: int, *_: Any) -> int:
    if not _POINTER.from_address(state).value:
        return int(_INIT(initialise)(state) or _LOAD(load_to_device)(state, 0))
    return 0


def _launch(config: int, kernel: int, arguments: int) -> None:
    given = _Config.from_address(config)
    cluster, cooperative = (1, 1, 1), False
    for index in range(given.attribute_count):
        raw = ctypes.string_at(given.attributes + _ATTRIBUTE_BYTES * index, _ATTRIBUTE_BYTES)
        (number,) = struct.unpack_from("<I", raw)
        if number == _CLUSTER:
            cluster = struct.unpack_from("<3I", raw, 8)
        elif number == _COOPERATIVE:
            cooperative = struct.unpack_from("<i", raw, 8)[0] != 0
        elif number not in _IGNORED:
            raise RuntimeMismatch(f"launch attribute {number} is not known")
    if _current.receiver is None:
        raise RuntimeMismatch("a kernel was launched outside of run()")
    _current.receiver(
        Launch(
            kernel=_kernels[kernel],
            grid=tuple(given.grid),
            block=tuple(given.block),
            cluster=(max(1, cluster[0]), max(1, cluster[1]), max(1, cluster[2])),
            cooperative=cooperative,
            shared_bytes=given.shared_bytes,
            arguments=arguments,
        )
    )


def _raised_error(*_: Any) -> int:
    """Tell TVM-FFI that the host function failed (it would crash on -1 alone); `run` raises what really happened."""
    message = b"a launch failed in the stand-in for the CUDA runtime"
    _tvm_library().TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", message)
    return -1


def _tvm_library() -> Any:
    import tvm_ffi

    library = ctypes.CDLL(str(tvm_ffi.libinfo.find_libtvm_ffi()))
    library.TVMFFIErrorSetRaisedFromCStr.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    library.TVMFFIErrorSetRaisedFromCStr.restype = None
    return library


def _zero_int(value: int, *_: Any) -> None:
    _write(value, _INT, 0)


def _one_int(value: int, *_: Any) -> None:
    _write(value, _INT, 1)


def _nothing(*_: Any) -> None:
    return None


_FUNCTIONS: Mapping[str, tuple[Callable[..., int | None], tuple[Any, ...]]] = {
    "_cudaLibraryLoadData": (_library_load, (_POINTER,) * 4 + (_UINT, _POINTER, _POINTER, _UINT)),
    "_cudaLibraryGetKernel": (_library_get_kernel, (_POINTER, _POINTER, ctypes.c_char_p)),
    "_cudaLibraryUnload": (_nothing, (_POINTER,)),
    "_cuKernelGetAttribute": (_kernel_attribute, (_POINTER, _INT, _POINTER, _INT)),
    "_cudaDeviceGetAttribute": (_device_attribute, (_POINTER, _INT, _INT)),
    "_cudaFuncSetAttribute": (_nothing, (_POINTER, _INT, _INT)),
    "_cudaKernelSetAttributeForDevice": (_nothing, (_POINTER, _INT, _INT, _INT)),
    "_cudaGetDevice": (_zero_int, (_POINTER,)),
    "_cudaGetDeviceCount": (_one_int, (_POINTER,)),
    "_cudaSetDevice": (_nothing, (_INT,)),
    "_cudaMemsetAsync": (_memset, (_POINTER, _INT, _SIZE, _POINTER)),
    "_cudaLaunchKernelEx": (_launch, (_POINTER, _SIZE, _POINTER)),
    "cuda_dialect_init_library_once": (_initialise_once, (_POINTER,) * 4),
    "cuda_dialect_unload_library_once": (_nothing, (_POINTER,)),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (_raised_error, (_INT,)),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError": (_raised_error, (_INT,)),
}


_ERROR_NAME = ctypes.create_string_buffer(b"a launch failed in the stand-in for the CUDA runtime")


def _error_name(*_: Any) -> int:
    return ctypes.addressof(_ERROR_NAME)


# What returns a text and cannot fail; host code of nvidia-cutlass-dsl 4.5 asks for it where a launch failed.
_TEXTS: Mapping[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "cuda_dialect_get_error_name": (_error_name, (_INT,)),
}


class _Library:
    """The callbacks and the shared object that names them, for the life of the process.

    The object lives in anonymous memory (memfd): no file is left behind, and a folder mounted noexec does no harm.
    """

    def __init__(self) -> None:
        self.names = frozenset((*_FUNCTIONS, *_TEXTS))
        self._callbacks = {
            name: ctypes.CFUNCTYPE(_INT, *kinds)(_guarded(function)) for name, (function, kinds) in _FUNCTIONS.items()
        }
        self._callbacks |= {
            name: ctypes.CFUNCTYPE(_POINTER, *kinds)(function) for name, (function, kinds) in _TEXTS.items()
        }
        addresses = {
            _PREFIX + name: ctypes.cast(callback, _POINTER).value or 0 for name, callback in self._callbacks.items()
        }
        self._descriptor = os.memfd_create("fa4verify-runtime")
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(absolute_library(addresses, "libfa4verify_runtime.so"))
        self.path = f"/proc/self/fd/{self._descriptor}"
