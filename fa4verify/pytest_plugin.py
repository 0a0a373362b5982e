"""The pytest door (entry point `pytest11`)."""

from __future__ import annotations

from typing import Any


def pytest_configure(config: Any) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "accuracy: a case of a fa4verify suite, judged against float64 truth")
