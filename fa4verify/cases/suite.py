"""Suites in TOML become Cases."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec

from fa4verify.vocabulary import Suite


def load_suite(source: str) -> Suite:
    """Load a shipped suite by name, or a suite from a TOML file.

    Raises
    ------
    msgspec.ValidationError
        For an unknown key or a wrong type; the message holds the path of the key.
    """
    if source.endswith(".toml"):
        text = Path(source).read_text()
    else:
        text = files("fa4verify.cases").joinpath("suites", f"{source}.toml").read_text()
    return msgspec.convert(tomllib.loads(text), Suite)
