"""A machine for PTX: it reads a kernel's text and runs it on a CPU, as the instructions say and bit for bit.

Contract: knows PTX and the hardware, nothing of attention. `load(text)` returns a Kernel, `kernel.launch(...)` runs it.
Nothing heavy is imported before the first name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa4verify.ptx.errors import MachineFault, PtxError
    from fa4verify.ptx.kernel import Kernel, load
    from fa4verify.ptx.launch import Limits, Schedule, Statistics

_HOME = {
    "Kernel": "fa4verify.ptx.kernel",
    "Limits": "fa4verify.ptx.launch",
    "MachineFault": "fa4verify.ptx.errors",
    "PtxError": "fa4verify.ptx.errors",
    "Schedule": "fa4verify.ptx.launch",
    "Statistics": "fa4verify.ptx.launch",
    "load": "fa4verify.ptx.kernel",
}

__all__ = ["Kernel", "Limits", "MachineFault", "PtxError", "Schedule", "Statistics", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fa4verify.ptx' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
