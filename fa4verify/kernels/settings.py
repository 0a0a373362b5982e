"""What a kernel may have set in torch for its whole process, put back.

Contract: after the block default device and dtype, threads, gradients, flushing of denormals and determinism are what
they were before it, so that the baseline, the truth and the next case are computed as in a fresh process. Only what
changed is set. Fails for what torch does not tell: settings of a backend, hooks, patched functions.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore torch's settings at the end of the block, whatever happened in it."""
    import torch

    device, dtype, threads = torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads()
    gradients, flushes = torch.is_grad_enabled(), _flushes()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        if torch.get_default_device() != device:
            # None, not "cpu": a default that is set costs every call of torch something
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.is_grad_enabled() != gradients:
            torch.set_grad_enabled(gradients)
        if _flushes() != flushes:
            torch.set_flush_denormal(flushes)
        if (
            torch.are_deterministic_algorithms_enabled() != deterministic
            or torch.is_deterministic_algorithms_warn_only_enabled() != warns
        ):
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)


def _flushes() -> bool:
    """Return whether this thread's floating point unit takes denormals for 0; torch cannot be asked."""
    return sys.float_info.min / 2 == 0.0
