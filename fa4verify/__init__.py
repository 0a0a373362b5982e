"""Numerical accuracy validation of FlashAttention-4 kernels against float64 truth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fa4verify.cases import draw, load_suite
    from fa4verify.flow import verify
    from fa4verify.kernels import Unsupported, kernel
    from fa4verify.vocabulary import Budget, Case, Distribution, Inputs, Output, Record, Shape, Truth, Verdict

# Where each public name lives. Resolved on first use, so that importing the package (as pytest does for every
# run, through the plugin) costs nothing.
_HOME = {
    "Budget": "fa4verify.vocabulary",
    "Case": "fa4verify.vocabulary",
    "Distribution": "fa4verify.vocabulary",
    "Inputs": "fa4verify.vocabulary",
    "Output": "fa4verify.vocabulary",
    "Record": "fa4verify.vocabulary",
    "Shape": "fa4verify.vocabulary",
    "Truth": "fa4verify.vocabulary",
    "Unsupported": "fa4verify.kernels",
    "Verdict": "fa4verify.vocabulary",
    "draw": "fa4verify.cases",
    "kernel": "fa4verify.kernels",
    "load_suite": "fa4verify.cases",
    "verify": "fa4verify.flow",
}

__all__ = [
    "Budget",
    "Case",
    "Distribution",
    "Inputs",
    "Output",
    "Record",
    "Shape",
    "Truth",
    "Unsupported",
    "Verdict",
    "draw",
    "kernel",
    "load_suite",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fa4verify' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
