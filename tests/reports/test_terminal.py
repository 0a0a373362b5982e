"""The terminal's table fits, keeps what matters for last, and cannot be hijacked by a message."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fa4verify.reports import summarise, terminal
from fa4verify.vocabulary import Study
from tests.reports.make import HOSTILE, case, record, run, verdict

if TYPE_CHECKING:
    from fa4verify.runs import Run

GOLDEN = """\
verdict  forward   O rmse  /floor  /base  max ulp  LSE max  FA rule  skip
PASS     good     2.90e-5    1.04  0.500     1.50  1.25e-7     pass   75%
SKIPPED  no-gpu         -       -      -        -        -        -     -
FAIL     bad      2.90e-5    1.04  0.500     1.50  1.25e-7     pass   75%

/floor and /base: RMSE of O over that of a correctly rounded O and of the baseline kernel. FA rule: FlashAttention's own
test, max|O - ref| <= 2 max|pt - ref| + 2 max|rounding of ref|. skip: share of rescales skipped. emu: share of
exponentials emulated.

SKIPPED 1: no GPU
  no-gpu

MISSING 1: no record: the run ended before this case was done
  never

FAIL bad
  o rmse 4e-05 > 3e-05 (absolute); budget rmse: made by hand
  rerun: fa4verify run gate --select bad

gate: 4 asked: 1 passed, 1 failed, 1 skipped, 1 missing
FlashAttention's own rule would have passed 1 of the 1 failure.
slowest: bad 1.5 s, good 1.5 s, no-gpu 1.5 s
written: runs/a.jsonl
"""


def rendered(item: Run, *, width: int = 120, colour: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None)
    terminal.render(summarise(item), files=[Path("runs/a.jsonl")], console=console)
    return stream.getvalue()


def test_golden() -> None:
    skipped = record("no-gpu", "SKIPPED", verdict=verdict("SKIPPED", "no GPU"))
    shown = rendered(run(record("bad", "FAIL"), record("good"), skipped, asked=("never",)))
    assert [line.rstrip() for line in shown.splitlines()] == GOLDEN.splitlines()


def test_ids_stay_whole_and_figures_aligned_at_every_width() -> None:
    name = "fwd-fa4_sm100-bf16-b1h2s1024d128-causal-outlier-sigma10-s0"
    activity = {"rescales_done": 1, "rescales_skipped": 3, "emulated_exp2": 1, "hardware_exp2": 999999}
    item = run(record(name, activity=activity), record("short", activity=activity))
    for width in (80, 100, 120, 160):
        table = rendered(item, width=width).split("\n\n")[0].splitlines()
        assert max(map(len, table)) <= width
        assert table[0].split()[-1] == "emu" or table[1].split()[-1] == "emu"
        assert sum(name in line for line in table) == 1
        figures = [line for line in table if line.rstrip().endswith("%")]
        assert len(figures) == 2
        assert len({len(line.rstrip()) for line in figures}) == 1
    assert len(rendered(item, width=160).split("\n\n")[0].splitlines()) == 3
    assert len(rendered(item, width=120).split("\n\n")[0].splitlines()) == 4, "only the long id takes a second line"


def test_foreign_text_is_shown_not_obeyed() -> None:
    hostile = record(HOSTILE, "FAIL", verdict=verdict("FAIL", HOSTILE), command=HOSTILE)
    shown = rendered(run(hostile, notes=(HOSTILE,)))
    assert "\x1b" not in shown
    assert "\x00" not in shown
    assert "[red]x[/red] :smile:" in shown, "neither rich markup nor emoji codes are interpreted"
    shown.encode()  # a lone surrogate would raise


def test_tables_fit_100_columns_and_a_pipe_has_them(monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    console = terminal.screen(stream)
    assert console.width == terminal.WIDTH == 100
    names = ("fwd-fa4_sm100-bf16-b1h2s1024d128-causal-outlier-sigma10-s0", "short", "x" * 300)
    terminal.render(summarise(run(*map(record, names))), console=console)
    table = stream.getvalue().split("\n\n")[0].splitlines()
    assert [len(line) for line in table if "x" * 300 not in line if len(line) > 100] == []
    assert "\x1b" not in stream.getvalue()
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal.screen(io.StringIO()).width == 60


def test_a_message_of_100_kb_does_not_fill_the_screen() -> None:
    long = "\x1b[31m<script>" * 10_000
    shown = rendered(run(record(long, "FAIL", verdict=verdict("FAIL", long), command=long)))
    assert len(shown) < 20_000
    assert "\x1b" not in shown
    assert "characters, all of them in the run file" in shown


def test_the_line_to_run_next() -> None:
    passed, path = summarise(run(record("a"))), Path("runs/a b.jsonl")
    assert terminal.next_step(passed, path) == "next: fa4verify report 'runs/a b.jsonl' --html report.html"
    assert terminal.next_step(passed, path, Path("base.jsonl")) == (
        "next: fa4verify diff base.jsonl 'runs/a b.jsonl' --html changes.html"
    )
    failed = summarise(run(record("a"), record("b", "FAIL")))
    assert terminal.next_step(failed, path) == "next: fa4verify run gate --select id=b"
    assert "\x1b" not in terminal.next_step(summarise(run(record("a"), record(HOSTILE, "FAIL"))), path)


def test_colour_on_a_terminal_only() -> None:
    item = run(record("a"), record("b", "FAIL"))
    assert "\x1b[32mPASS" in rendered(item, colour=True)
    assert "\x1b[1;31mFAIL" in rendered(item, colour=True)
    assert "\x1b" not in rendered(item)


def test_a_narrow_terminal_loses_no_verdict() -> None:
    shown = rendered(run(record("fwd-" + "x" * 80), record("b", "FAIL")), width=60)
    assert "PASS" in shown
    assert "FAIL" in shown


def test_hundreds_of_missing_cases_are_named_once() -> None:
    shown = rendered(run(record("a"), asked=tuple(f"m{index}" for index in range(300))))
    assert "MISSING 300" in shown
    assert "and 295 more" in shown
    assert len(shown.splitlines()) < 25


def test_a_study_prints_curves_and_no_failures() -> None:
    study = Study("options.tau", ("dtype",), ("o.rmse", "activity.rescales_skipped"), ("distribution",), 0)
    points = [
        record(f"t{tau}", outcome, case=case(f"t{tau}", options={"tau": tau}))
        for tau, outcome in ((0, "PASS"), (8, "FAIL"))
    ]
    shown = rendered(run(*points, study=study))
    assert "distribution normal" in shown
    assert "2.90e-5 !" in shown
    assert "rerun" not in shown
    assert "1 failed (points of the study)" in shown
