"""FA4's Python interface, made to compile for a GPU that is not there.

Contract: inside `interface(target, ...)` FA4's module thinks it is on that GPU: it allocates tensors that say they are
on it, asks its caches for kernels (compiler.py answers) and compiles for the target's architecture, without a device, a
driver or an environment variable. Afterwards everything is as it was, whether or not something was raised: FA4, the DSL
and torch can be used with a real GPU in the same process. One scope at a time; other threads wait. A real launch of FA4
in another thread at the same time would see the GPU that is not there.

What is replaced, and nothing else: seven names in FA4's modules, `HardwareInfo` of cutlass.utils, five settings of the
DSL. A name that is gone is an InterfaceChanged, so that a new release of FA4 cannot be run half. Older releases have
less to replace (`_OLDER` says what, and what they ask instead), so that an audit can look back.
Fails first there: tests/kernels/shipped/test_host.py.
Source: flash-attn-4 4.0.0b36, `flash_attn.cute.interface`; nvidia-cutlass-dsl 4.8.1, `cutlass.base_dsl.env_manager`.
"""

from __future__ import annotations

import tempfile
import threading
import warnings
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.shipped.device_tensors import CudaLabelled, TorchOnDevice, on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fa4verify.kernels.shipped.target import Target

_scope = threading.RLock()
_ABSENT = object()
CACHE = "compile_cache"
_READ = "4.0.0b36"  # the release whose names these are
# Names that releases before it (and the DSLs they need) lack: they ask torch.cuda for the SM count, which
# TorchOnDevice answers, have no copy of HardwareInfo, or no switch.
_OLDER = {
    ("flash_attn.cute.interface", "get_num_sms_for_selection"),
    ("flash_attn.cute.utils", "_fa_disable_2cta_cuda12"),
    ("flash_attn.cute.utils", "_fa_disable_2cta_enabled"),
    ("flash_attn.cute.tile_scheduler", "HardwareInfo"),
    ("flash_attn.cute.cute_dsl_utils", "from_dlpack"),
    ("flash_attn.cute.utils", "from_dlpack"),
}


class InterfaceChanged(RuntimeError):  # noqa: N818 - says what it is: this FA4 is not the one that was read
    """The installed FA4 or DSL lacks something that this scope replaces."""


@contextmanager
def interface(target: Target, cache: Callable[[str], Any], *, disable_2cta: bool = False) -> Iterator[Any]:
    """Yield `flash_attn.cute.interface`, set for the target.

    Parameters
    ----------
    target
        The GPU.
    cache
        Called with the name of each function that compiles; returns what FA4 uses as its dict of compiled kernels.
    disable_2cta
        FA4's own switch (FA_DISABLE_2CTA): no pairs of CTAs on Blackwell.

    Raises
    ------
    InterfaceChanged
        FA4 or the DSL lacks a name that has to be replaced.
    """
    with compiling(target), _replaced(_interface_replacements(target, cache, disable_2cta)):
        import flash_attn.cute.interface as fa4

        yield fa4


@contextmanager
def compiling(target: Target) -> Iterator[None]:
    """Compile CuTe kernels inside for the target, keeping their PTX; tensors may be DeviceTensors."""
    with _scope, warnings.catch_warnings(), tempfile.TemporaryDirectory() as dump:
        warnings.simplefilter("ignore")  # FA4 uses names that the DSL deprecates
        with _replaced(_compiler_replacements(target, dump)):
            yield


def _interface_replacements(
    target: Target, cache: Callable[[str], Any], disable_2cta: bool
) -> list[tuple[Any, str, Any]]:
    import flash_attn.cute.interface as fa4
    from flash_attn.cute import utils

    compiling_functions = [(name, function) for name, function in vars(fa4).items() if hasattr(function, CACHE)]
    if not compiling_functions:
        raise InterfaceChanged(f"flash_attn.cute.interface has no function with a {CACHE}")
    return [
        (fa4, "torch", TorchOnDevice(target)),
        (fa4, "_get_device_arch", lambda: target.number),
        (fa4, "get_num_sms_for_selection", lambda _device, _arch: target.sm_count),
        # FA4 asks torch for its CUDA version and the environment, both of which say nothing about the target.
        (utils, "_fa_disable_2cta_cuda12", False),
        (utils, "_fa_disable_2cta_enabled", disable_2cta),
        *((fa4, name, _taking_any_tensor(function, cache(name))) for name, function in compiling_functions),
    ]


def _compiler_replacements(target: Target, dump: str) -> list[tuple[Any, str, Any]]:
    import cutlass.utils
    from cutlass.cutlass_dsl import CuTeDSL
    from flash_attn.cute import cute_dsl_utils, tile_scheduler, utils

    dsl = CuTeDSL._get_dsl()
    hardware = _hardware(target)
    return [
        (tile_scheduler, "HardwareInfo", hardware),
        (cutlass.utils, "HardwareInfo", hardware),
        *((of, "from_dlpack", _labelling(of)) for of in (cute_dsl_utils, utils)),
        (dsl.envar, "_arch" if hasattr(dsl.envar, "_arch") else "arch", target.compiled_for),
        (dsl.envar, "keep_ptx", True),
        (dsl.envar, "dump_dir", dump),
        (dsl.envar, "no_cache", True),
        *_without_engine(dsl),
    ]


def _without_engine(dsl: Any) -> list[tuple[Any, str, Any]]:
    """Return what keeps the DSL from making an engine: the object file is linked by runtime.py."""
    if hasattr(dsl, "_runtime_can_run_compiled"):
        return [(dsl, "_runtime_can_run_compiled", lambda *_: False)]
    compile_and_cache = getattr(dsl, "compile_and_cache", None)  # nvidia-cutlass-dsl up to 4.7
    if compile_and_cache is None or "no_jit_engine" not in signature(compile_and_cache).parameters:
        return [(dsl, "_runtime_can_run_compiled", None)]  # which is missing, as InterfaceChanged will tell

    @wraps(compile_and_cache)
    def call(*arguments: Any, **options: Any) -> Any:
        bound = signature(compile_and_cache).bind(*arguments, **options)
        bound.arguments["no_jit_engine"] = True
        return compile_and_cache(*bound.args, **bound.kwargs)

    from cutlass.cutlass_dsl import tvm_ffi_provider

    # Up to 4.5 a function with keywords insists on an engine's function, which is never called here.
    insists = getattr(tvm_ffi_provider, "TVMFFIJitCompiledFunctionWithKwargs", None)
    insisting = [] if insists is None else [(insists, "_create_tvm_ffi_function", lambda _: _never_called)]
    return [(dsl, "compile_and_cache", call), *insisting]


def _never_called(*_: Any) -> None:
    raise InterfaceChanged("a kernel was called that is to be linked by fa4verify")


def _taking_any_tensor(function: Callable[..., Any], kernels: Any) -> Callable[..., Any]:
    """Return FA4's function with another cache, which also takes what autograd saved: that is no DeviceTensor."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(*on_device(arguments), **{name: on_device(value) for name, value in options.items()})

    setattr(call, CACHE, kernels)
    return call


def _hardware(target: Target) -> type:
    class HardwareInfo:
        """Answers what FA4's schedulers ask while they are compiled."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def get_device_multiprocessor_count(self) -> int:
            return target.sm_count

        def get_max_active_clusters(self, cluster_size: int, *_: Any, **__: Any) -> int:
            return target.sm_count // cluster_size

        def get_l2_cache_size_in_bytes(self) -> int:
            return target.l2_bytes

    return HardwareInfo


def _labelling(of: Any) -> Callable[..., Any]:
    import torch

    from_dlpack = getattr(of, "from_dlpack", None)

    def labelled(tensor: Any, **options: Any) -> Any:
        assert from_dlpack is not None  # else it is not replaced
        return from_dlpack(CudaLabelled(tensor) if isinstance(tensor, torch.Tensor) else tensor, **options)

    return labelled


def _is_older() -> bool:
    from packaging.version import Version

    return Version(version("flash-attn-4")) < Version(_READ)


@contextmanager
def _replaced(replacements: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set each attribute, and put back what was there."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in replacements:
            if not hasattr(owner, name):
                if (getattr(owner, "__name__", ""), name) in _OLDER and _is_older():
                    continue
                raise InterfaceChanged(f"{getattr(owner, '__name__', type(owner).__name__)} has no {name}")
            before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
