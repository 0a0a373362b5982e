"""Progress: a bar on a terminal, a line now and then in a log, never silent at the end."""

from __future__ import annotations

import io
from itertools import count

import pytest
from rich.console import Console

from fa4verify.reports.progress import Progress
from tests.reports.make import record


def lines(total: int, *outcomes: str, step: float = 1.0, every_s: float = 10.0) -> list[str]:
    """Run without a terminal; the clock moves by `step` each time somebody looks at it."""
    stream, ticks = io.StringIO(), count()
    console = Console(file=stream, force_terminal=False, width=40)
    with Progress(total, console=console, every_s=every_s, clock=lambda: next(ticks) * step) as progress:
        for index, outcome in enumerate(outcomes):
            progress.record(record(f"c{index}", outcome))
    assert "\x1b" not in stream.getvalue()
    return stream.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then() -> None:
    shown = lines(100, *["PASS"] * 100, every_s=10)
    assert 5 <= len(shown) <= 12
    assert shown[0] == "10/100 10 passed after 11 s, about 1 min 39 s left"
    assert shown[-1].startswith("100/100 100 passed after ")


def test_the_last_line_counts_everything_once() -> None:
    assert lines(3, "PASS", "FAIL", "TIMEOUT", every_s=1e9) == ["3/3 1 passed, 1 failed, 1 timed out after 3 s"]


@pytest.mark.parametrize("done", [0, 1])
def test_an_interrupted_run_says_how_far_it_came(done: int) -> None:
    (line,) = lines(4, *["PASS"] * done, every_s=1e9)
    assert line.startswith(f"{done}/4 ")


def test_no_cases_is_no_division_by_zero() -> None:
    assert lines(0) == []


def test_a_terminal_gets_a_bar_with_counts() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with Progress(2, console=console) as progress:
        progress.record(record("a"))
        progress.record(record("b", "FAIL"))
    assert "2/2" in stream.getvalue()
    assert "1 passed, 1 failed" in stream.getvalue()


def test_no_color_is_honoured() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    with Progress(1, console=console) as progress:
        progress.record(record("a"))
    assert "\x1b[3" not in stream.getvalue().replace("\x1b[?25", "")
