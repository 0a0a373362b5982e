"""Every format of one small run is what it was, byte for byte; tests/reports/golden.py says how to change one."""

from __future__ import annotations

import difflib
import json

import matplotlib as mpl
import pytest

from tests.reports import golden

AGAIN = "python -m tests.reports.golden, then read git diff tests/reports/golden"


@pytest.fixture(scope="module")
def texts():
    return golden.texts()


@pytest.mark.parametrize(
    "name",
    [
        "report.html",
        "report.md",
        "report.xml",
        "report.txt",
        "report.json",
        "changes.md",
        "changes.txt",
        "changes.json",
    ],
)
def test_bytes(texts, name):
    expected = (golden.FOLDER / name).read_bytes()
    if texts[name].encode() != expected:
        lines = (text.splitlines(keepends=True) for text in (expected.decode(), texts[name]))
        pytest.fail(f"{AGAIN}\n" + "".join(list(difflib.unified_diff(*lines, "golden", "now", n=1))[:60]))


def test_every_file_is_compared(texts):
    assert {path.name for path in golden.FOLDER.iterdir()} == {*texts, "figures.json"}


def test_figures():
    expected = json.loads((golden.FOLDER / "figures.json").read_text())
    if expected["matplotlib"] != mpl.__version__:
        pytest.skip(f"matplotlib {mpl.__version__} draws here, {expected['matplotlib']} drew the golden figures")
    assert golden.digests() == expected, AGAIN


def test_the_run_has_all_that_a_format_must_show(texts):
    summary, comparison = golden.example()
    assert min(summary.counts.values()) >= 1
    assert set(summary.operations) == {"forward", "backward", "exp2", "repeat", ""}
    assert comparison.broken
    assert comparison.worse
    assert comparison.vanished
    assert "DRIFTED" in texts["report.xml"]
