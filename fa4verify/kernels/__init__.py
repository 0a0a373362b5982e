"""Room 2: what is under test."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"standard": "fa4verify.kernels.emulated.standard:STANDARD"}


class Unsupported(Exception):  # noqa: N818 - not an error of the program: the kernel says what it does not do
    """A kernel declines a case; the message says which feature it lacks."""


def kernel(name: str) -> Any:
    """Return the kernel of that name."""
    module, attribute = _HOME[name].split(":")
    return getattr(import_module(module), attribute)
