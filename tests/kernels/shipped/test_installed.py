"""What doctor says about the installed FA4."""

from importlib.metadata import PackageNotFoundError

import pytest

from fa4verify.kernels.shipped import installed


@pytest.mark.parametrize(
    ("versions", "status", "told"),
    [
        ({"flash-attn-4": "4.0.0b36", "nvidia-cutlass-dsl": "4.8.1"}, "ok", "every bit"),
        ({"flash-attn-4": "4.0.0b37", "nvidia-cutlass-dsl": "4.8.1"}, "warn", "known are 4.0.0b36 with 4.8.1"),
        ({"flash-attn-4": "4.0.0b36"}, "absent", "nvidia-cutlass-dsl is not installed"),
        ({}, "absent", "flash-attn-4 is not installed"),
    ],
)
def test_each_state_is_told(monkeypatch, versions, status, told):
    def version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(installed, "version", version)
    ((found, _, text),) = installed.installed()
    assert found == status
    assert told in text
