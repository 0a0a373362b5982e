"""Stub."""

from importlib.metadata import version

PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")


def installed() -> dict[str, str]:
    """Return the versions that decide what is compiled."""
    return {package: version(package) for package in PACKAGES}
