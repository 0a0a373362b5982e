"""The machine: what it is, what it is called, and whether its arithmetic can be trusted.

Contract: `fingerprint` and `machine_slug` read names and versions only and never import torch or numba; `self_test`
does (seconds) and changes no setting that it does not put back. A check fails where a verdict could be wrong:
subnormals flushed, TF32 on, a multiply-add that is not fused or fused unasked. It warns where only the last digits of
the float64 truth may move: a matmul whose bits depend on the number of threads (OpenBLAS and MKL on a 2-core Xeon do).
Fails first under a library built with -ffast-math, which switches FTZ on for the thread that loads it.
The FMA triple is ours: a * b + c = 1 + 2^-23 + 2^-24 - 2^-70 lies just below the midpoint of two fp32 numbers, and both
a rounded product and a sum in float64 lift it onto the midpoint, which rounds the other way.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fa4verify.gpus import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGES = ("numpy", "torch", "numba", "scipy", "flash-attn-4", "nvidia-cutlass-dsl", "triton")
CPU_FEATURES = ("fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")

FMA_TRIPLE = (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23)
FUSED, NOT_FUSED = 1 + 2.0**-23, 1 + 2.0**-22


@dataclass(frozen=True)
class Check:
    """One line of `fa4verify doctor`; `found` says what was seen, and what it means where that is not fine."""

    name: str
    status: Literal["ok", "warn", "fail", "absent"]
    found: str


def fingerprint(*, gpus: bool = False) -> dict[str, str]:
    """Say what ran: versions, CPU, operating system; `gpus` also what `nvidia-smi` lists."""
    model, features = _cpu()
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "cpu": model,
        "cpu features": " ".join(features) or "unknown",
        "cores": str(_cores()),
    }
    facts |= {name: _version(name) for name in PACKAGES}
    if facts["numpy"] != "not installed":
        facts["blas"] = _blas()
    return facts | _gpus() if gpus else facts


def machine_slug() -> str:
    """Name the machine for a folder: operating system, CPU model and cores, the same in every container."""
    words = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", _cpu()[0].lower())
    parts = (platform.system().lower(), platform.machine().lower(), *re.findall(r"[a-z0-9]+", words), f"{_cores()}c")
    return "-".join(part for part in parts if part)


def git_commit(folder: Path) -> str:
    """Return the short commit of the checkout that holds `folder`, "-dirty" if tracked files differ, "" without one."""
    described = _ask("git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return described.strip() if described else ""


def self_test() -> list[Check]:
    """Run every check; one whose library is missing or breaks is reported, never raised."""
    checks: list[Check] = []
    for name, check in _CHECKS:
        try:
            checks.extend(Check(name, *result) for result in check())
        except ImportError as error:
            checks.append(Check(name, "absent", f"not run: {error}"))
        except Exception as error:  # a doctor reports; whatever breaks here is a finding
            checks.append(Check(name, "fail", f"{type(error).__name__}: {error}"))
    return checks


_Result = tuple[Literal["ok", "warn", "fail", "absent"], str]


def _subnormals_numpy() -> Iterator[_Result]:
    import numpy as np

    for kind in (np.float32, np.float64):
        tiny = np.full(64, np.nextafter(kind(0), kind(1)))
        normal = np.full(64, np.finfo(kind).tiny)
        yield _subnormals(np.dtype(kind).name, bool((tiny * kind(1) > 0).all()), bool((normal / kind(2) > 0).all()))


def _subnormals_torch() -> Iterator[_Result]:
    import torch

    # Long enough that torch shares the work among its threads, each of which has its own FTZ flag.
    for kind in (torch.float32, torch.float64):
        tiny = torch.full((1 << 18,), torch.finfo(kind).smallest_normal * torch.finfo(kind).eps, dtype=kind)
        normal = torch.full((1 << 18,), torch.finfo(kind).smallest_normal, dtype=kind)
        yield _subnormals(str(kind).removeprefix("torch."), bool((tiny * 1 > 0).all()), bool((normal / 2 > 0).all()))


def _subnormals_numba() -> Iterator[_Result]:
    import numba
    import numpy as np

    @numba.njit
    def product(a: Any, b: Any) -> Any:
        return a * b

    one, half = np.float32(1), np.float32(0.5)
    tiny, normal = np.nextafter(np.float32(0), one), np.finfo(np.float32).tiny
    yield _subnormals("float32", product(tiny, one) > 0, product(normal, half) > 0)


def _subnormals(kind: str, kept_as_input: bool, kept_as_result: bool) -> _Result:
    if kept_as_input and kept_as_result:
        return "ok", f"{kind} subnormals are kept"
    flushed = " and ".join(["inputs (DAZ)"] * (not kept_as_input) + ["results (FTZ)"] * (not kept_as_result))
    return "fail", f"{kind} subnormal {flushed} are flushed to zero: small truths and weights would vanish"


def _tf32() -> Iterator[_Result]:
    import torch

    precision = torch.get_float32_matmul_precision()
    allowed = torch.backends.cuda.matmul.allow_tf32
    found = f'float32_matmul_precision "{precision}", cuda.matmul.allow_tf32 {allowed}'
    if precision == "highest" and not allowed:
        yield "ok", found
    else:
        yield "fail", f'{found}: a float32 product on a GPU keeps 10 bits; expected "highest" and False'


def _threads_numpy() -> Iterator[_Result]:
    from threadpoolctl import threadpool_limits

    def product(threads: int) -> bytes:
        with threadpool_limits(limits=threads, user_api="blas"):
            return bytes((a @ b).tobytes())

    a, b = _factors()
    yield _threads(product)


def _threads_torch() -> Iterator[_Result]:
    import torch

    a, b = map(torch.from_numpy, _factors())
    before = torch.get_num_threads()

    def product(threads: int) -> bytes:
        torch.set_num_threads(threads)
        return bytes((a @ b).numpy().tobytes())

    try:
        yield _threads(product)
    finally:
        torch.set_num_threads(before)


def _factors() -> tuple[Any, Any]:
    """Draw two float64 factors, odd-sized and with a long sum: what a library would split among threads."""
    import numpy as np

    generator = np.random.Generator(np.random.Philox(0))
    return generator.standard_normal((65, 4099)), generator.standard_normal((4099, 67))


def _threads(product: Callable[[int], bytes]) -> _Result:
    cores = _cores()
    if cores == 1:
        return "absent", "one core: nothing to compare"
    if product(1) == product(cores):
        return "ok", f"float64 matmul has the same bits with 1 and {cores} threads"
    return (
        "warn",
        f"float64 matmul differs in bits between 1 and {cores} threads: so may the truth's last digits",
    )


def _fma() -> Iterator[_Result]:
    import numba
    import numpy as np
    from numba.core import types
    from numba.extending import intrinsic

    def typed(_: Any, a: Any, b: Any, c: Any) -> Any:
        def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return types.float32(a, b, c), emit

    fma: Any = intrinsic(typed)

    @numba.njit
    def fused(a: Any, b: Any, c: Any) -> Any:
        return fma(a, b, c)

    @numba.njit
    def apart(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    triple = [np.float32(x) for x in FMA_TRIPLE]
    for what, function, expected in (("llvm.fma", fused, FUSED), ("a * b + c", apart, NOT_FUSED)):
        got = float(function(*triple))
        note = f"{what} rounds {'once' if got == FUSED else 'twice'}: {got.hex()}"
        yield ("ok", note) if got == expected else ("fail", f"{note}, expected {expected.hex()}")


_CHECKS: tuple[tuple[str, Callable[[], Iterator[_Result]]], ...] = (
    ("subnormals, numpy", _subnormals_numpy),
    ("subnormals, numba", _subnormals_numba),
    ("subnormals, torch", _subnormals_torch),
    ("TF32, torch", _tf32),
    ("threads, numpy", _threads_numpy),
    ("threads, torch", _threads_torch),
    ("FMA, numba", _fma),
)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> tuple[str, list[str]]:
    """Return the CPU's model and which of CPU_FEATURES it has; Linux tells more than `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    model = facts.get("model name") or platform.processor() or platform.machine() or "unknown"
    return " ".join(model.split()), [feature for feature in CPU_FEATURES if feature in flags]


def _blas() -> str:
    import numpy as np

    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}"
    except (KeyError, TypeError):
        return "unknown"


def _gpus() -> dict[str, str]:
    found = listed()
    return {f"gpu {number}": str(gpu) for number, gpu in enumerate(found)} or {"gpu": "none (nvidia-smi gave no list)"}


def _ask(*command: str) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
