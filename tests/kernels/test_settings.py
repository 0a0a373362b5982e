"""torch's settings after a kernel are those before it."""

import sys

import pytest
import torch

from fa4verify.kernels.settings import settings_restored


def settings():
    return (
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        sys.float_info.min / 2 == 0.0,
        torch.empty(0).device,
    )


def set_everything(threads):
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.set_flush_denormal(True)


def test_everything_that_a_kernel_set_is_put_back():
    before = settings()
    with settings_restored():
        set_everything(before[2] + 1)
        assert all(new != old for new, old in zip(settings(), before, strict=True))
    assert settings() == before


def raises_with_everything_set():
    with settings_restored():
        set_everything(3)
        raise RuntimeError("in the kernel")


def test_it_is_put_back_after_an_exception_too():
    before = settings()
    with pytest.raises(RuntimeError, match="in the kernel"):
        raises_with_everything_set()
    assert settings() == before
