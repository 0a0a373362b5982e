"""Names of kernels, and the way from a name to the object.

Contract: looking up names imports nothing; `kernel(name)` imports the one module that it needs. A name with a colon,
`package.module:attribute`, is a user's kernel: a function or an object with `.forward`. Nothing here touches
`sys.path`; the doors put the current directory on it, as `python -m` does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fa4verify.gpus import listed
from fa4verify.kernels.interface import Kernel, UnknownKernel, Unsupported
from fa4verify.kernels.user import UserKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass(frozen=True)
class _Entry:
    """One row of the registry: where the kernel lives and what it needs to run.

    `needs` are modules, `distributions` packages by the name that pip knows; the latter only exist for Linux. `gpu`: it
    computes where its tensors are, which is the device of the run.
    """

    home: str
    about: str
    needs: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    gpu: bool = False


_EMULATION = ("numba", "numpy", "torch")
_SHIPPED = ("flash-attn-4", "nvidia-cutlass-dsl")
_REGISTRY = {
    "standard": _Entry(
        "fa4verify.kernels.emulated.standard:STANDARD",
        "attention with S, scaled S, P and O each stored in the 16-bit dtype",
        _EMULATION,
    ),
    "fa4-sm90": _Entry(
        "fa4verify.kernels.emulated.fa4_sm90:FA4_SM90",
        "FlashAttention-4 on Hopper, forward and backward, bit for bit",
        _EMULATION,
    ),
    "fa4-sm100": _Entry(
        "fa4verify.kernels.emulated.fa4_sm100:FA4_SM100",
        "FlashAttention-4 on Blackwell, forward (emulated exp2, conditional rescale) and backward",
        _EMULATION,
    ),
    "flash2": _Entry(
        "fa4verify.kernels.emulated.flash2:FLASH2",
        "FlashAttention-2: online softmax, MUFU exp2, rescale always, KV left to right",
        _EMULATION,
    ),
    "fa3": _Entry(
        "fa4verify.kernels.emulated.fa3:FA3",
        "FlashAttention-3's algorithm on Hopper: 16 bits, and FP8 with scales of tensors or blocks",
        _EMULATION,
    ),
    "standard-fp8": _Entry(
        "fa4verify.kernels.emulated.standard_fp8:STANDARD_FP8",
        "attention as separate operations: 8-bit matrix products, softmax in fp16, P rounded to 8 bits",
        _EMULATION,
    ),
    "fa4-staged": _Entry(
        "fa4verify.kernels.emulated.staged:FA4_STAGED",
        "FlashAttention-4 backward on Hopper with chosen roundings done in float64",
        _EMULATION,
    ),
    "flash-attn-4": _Entry(
        "fa4verify.kernels.gpu.flash_attn_4:FLASH_ATTN_4",
        "FlashAttention-4 itself on a GPU, forward and backward",
        ("torch",),
        distributions=_SHIPPED,
        gpu=True,
    ),
    **{
        f"sdpa-{backend}": _Entry(
            f"fa4verify.kernels.gpu.torch_sdpa:SDPA_{backend.upper()}",
            f"torch's scaled_dot_product_attention on a GPU, {about}; backward by autograd",
            ("torch",),
            gpu=True,
        )
        for backend, about in (
            ("flash", "FlashAttention-2"),
            ("cudnn", "cuDNN's flash attention"),
            ("efficient", "xFormers' memory-efficient attention"),
            ("math", "in float32 by plain products"),
        )
    },
    "flex-attention": _Entry(
        "fa4verify.kernels.gpu.flex:FLEX_ATTENTION",
        "torch's flex_attention on a GPU, compiled to Triton; backward by autograd",
        ("torch",),
        gpu=True,
    ),
    "standard-gpu": _Entry(
        "fa4verify.kernels.gpu.standard:STANDARD_GPU",
        "attention with S, scaled S, P and O in 16 bits, on a GPU; backward by autograd",
        ("torch",),
        gpu=True,
    ),
    "exp2-gpu": _Entry(
        "fa4verify.kernels.gpu.functions:EXP2_GPU",
        "ex2.approx on a GPU, or FA4's ex2_emulation of a degree",
        ("torch",),
        distributions=_SHIPPED,
        gpu=True,
    ),
    **{
        f"fa4@{architecture}": _Entry(
            f"fa4verify.kernels.shipped.attention:FA4_{architecture.upper()}",
            f"FlashAttention-4's own kernels for {gpu}, their PTX executed on a CPU: {passes}",
            _EMULATION,
            distributions=_SHIPPED,
        )
        for architecture, gpu, passes in (
            ("sm_80", "Ampere", "forward"),
            ("sm_90a", "Hopper", "forward and backward"),
            ("sm_100a", "Blackwell", "forward and backward"),
            ("sm_103a", "Blackwell Ultra", "forward and backward"),
            ("sm_120a", "GeForce Blackwell", "forward, and a backward that is not deterministic"),
        )
    },
}


def names() -> dict[str, str]:
    """Return every registered name with its one-line description."""
    return {name: entry.about for name, entry in _REGISTRY.items()}


def availability(name: str) -> str | None:
    """Return None where the registered kernel can run here, else the reason why not."""
    missing = _missing(name)
    if missing is None and needs_gpu(name) and not listed():
        return "needs a GPU: nvidia-smi lists none"
    return missing


def _missing(name: str) -> str | None:
    """Return what is not installed, None if nothing is missing."""
    entry = _REGISTRY[name]
    missing = [package for package in (*entry.needs, entry.home.split(":")[0]) if find_spec(package) is None]
    if missing:
        return f"needs {', '.join(missing)}, which cannot be imported here"
    absent = [name for name in entry.distributions if not _installed(name)]
    if absent:
        return f"needs {' and '.join(absent)}, not installed" + ("" if sys.platform == "linux" else "; Linux only")
    return None


def computes_where_its_tensors_are(name: str) -> bool:
    """Return whether to give the kernel tensors on the device of the run: a GPU kernel, or a user's own."""
    return ":" in name or needs_gpu(name)


def needs_gpu(name: str) -> bool:
    """Return whether the kernel is a registered one for a GPU."""
    return name in _REGISTRY and _REGISTRY[name].gpu


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def kernel(name: str) -> Kernel:
    """Return the kernel of a registered name or of an import string `package.module:attribute`.

    Raises
    ------
    UnknownKernel
        The name is not registered, or the import string leads nowhere.
    Unsupported
        The name is registered but cannot run here.
    """
    if ":" in name:
        return _imported(name)
    if name not in _REGISTRY:
        close = get_close_matches(name, _REGISTRY, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_REGISTRY)}"
        raise UnknownKernel(f"unknown kernel {name!r}; {hint} Your own kernel: package.module:attribute")
    reason = _missing(name)
    if reason:
        raise Unsupported(f"{name}: {reason}")
    module, attribute = _REGISTRY[name].home.split(":")
    found: Kernel = getattr(import_module(module), attribute)
    return found


def _imported(name: str) -> UserKernel:
    """Resolve `package.module:attribute`, dots in the attribute included; every failure becomes one line."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = import_module(module_name)
    except SystemExit as error:  # a script without the __main__ guard: left alone it would end us, perhaps with 0
        raise UnknownKernel(f"kernel {name!r}: {module_name!r} exits when imported (code {error.code!r})") from error
    except Exception as error:
        line = " ".join(str(error).split())
        raise UnknownKernel(
            f"kernel {name!r}: cannot import {module_name!r}: {type(error).__name__}: {line}"
        ) from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            close = get_close_matches(attribute, dir(found), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UnknownKernel(f"kernel {name!r}: no attribute {attribute!r} in {module_name!r}{hint}")
        found = getattr(found, attribute)
    return UserKernel(name, found)


def compile_ahead(*, backward: bool = True, only: Collection[str] | None = None) -> None:
    """Run every emulation on one key, so that what numba compiles is compiled (or loaded) before a clock runs.

    Parameters
    ----------
    backward
        The backwards as well: they cost more than the forwards, and a run without one does not need them.
    only
        Names of the kernels that will run; by default all of them.
    """
    import torch

    for name, entry in _REGISTRY.items():
        if not entry.home.startswith("fa4verify.kernels.emulated.") or availability(name) is not None:
            continue
        if only is not None and name not in only:
            continue
        found = kernel(name)
        differentiate: Callable[..., Any] | None = getattr(found, "backward", None) if backward else None
        for head_dim in (64, 256) if differentiate else (64,):  # FA4 has a backward of its own for 256
            one = torch.zeros(1, 1, 1, head_dim, dtype=torch.bfloat16)
            try:
                output = found.forward(one, one, one)
            except Unsupported:  # 8 bits alone: what it calls is compiled for the others
                continue
            if differentiate:
                differentiate(one, one, one, one, output.o, output.lse)
