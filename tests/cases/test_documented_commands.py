"""Every `fa4verify run SUITE --select "..."` in the documentation names a suite that loads, and selects cases of it."""

import re
from functools import lru_cache
from pathlib import Path

import pytest

from fa4verify.cases import load_suite, select

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r'fa4verify run ([\w./-]+)(?:[^\n|`]*?--select "([^"]+)")?')
THEIRS = ("my.toml", "mine.toml")  # a reader's own files


def commands(text):
    """Return (suite, expression) of each command in a page."""
    return [(suite, expression) for suite, expression in COMMAND.findall(text) if suite not in THEIRS]


@lru_cache
def cases_of(suite):
    """Return the cases of a suite, named as in a command given in the repository's root."""
    return load_suite(str(ROOT / suite) if suite.endswith(".toml") else suite).cases


def chosen(suite, expression):
    """Return the cases that a command runs."""
    return select(cases_of(suite), expression)


def test_the_pages_show_commands():
    assert len({command for page in PAGES for command in commands(page.read_text())}) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_selects_cases(page):
    empty = [command for command in commands(page.read_text()) if not chosen(*command)]
    assert not empty


def test_a_command_that_selects_nothing_is_seen():
    ((suite, expression),) = commands('`fa4verify run gate --out x --select "max_staircase and tensork"`: nothing')
    assert not chosen(suite, expression)
