"""Which flash-attn-4 and which DSL are installed, and whether they are known to work here.

Contract: names and versions only; imports neither. "Known" are pairs that passed the replay of the H200's recordings
(tests/golden/test_shipped_h200.py) and the comparison with the emulations. Another pair may work: whatever does not
says so itself (docs/shipped.md, private interfaces).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl")
KNOWN = {("4.0.0b36", "4.8.1")}


def installed() -> list[tuple[Literal["ok", "warn", "absent"], str, str]]:
    """Return status, name and what was found, for a table of `fa4verify doctor`."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return [("absent", "fa4@...", f"{package} is not installed")]
    pair = " with ".join(f"{package} {found[package]}" for package in PACKAGES)
    if tuple(found.values()) in KNOWN:
        return [("ok", "fa4@...", f"{pair}: equal to an H200's recordings in every bit")]
    known = ", ".join(" with ".join(versions) for versions in sorted(KNOWN))
    return [("warn", "fa4@...", f"{pair}: not known; known are {known}. pytest -m exhaustive tests/golden tells")]
