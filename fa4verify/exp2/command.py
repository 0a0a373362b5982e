"""`fa4verify exp2 check | fit | explore`.

Contract: exit code 0, or 1 if the set has a failing finding; a set that cannot be read is one line on stderr and exit
code 2. `--json` and `--markdown` write to stdout and nothing else does. Importing this imports neither NumPy nor numba.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = App(name="exp2", help="The laboratory of FA4's software exponential: check coefficients, fit better ones.")


def _between(low: int, high: int) -> Callable[[object, int | None], None]:
    def validate(_: object, value: int | None) -> None:
        if value is not None and not low <= value <= high:
            raise ValueError(f"must be {low} to {high}")

    return validate


@app.command
def check(
    chosen: Annotated[str, Parameter(name="SET")],
    /,
    *,
    range_: Annotated[Literal["floor", "nearest"] | None, Parameter(name="--range")] = None,
    scalar: Annotated[bool, Parameter(negative="")] = False,
    tau: Annotated[int, Parameter(validator=_between(1, 127))] = 8,
    json: Annotated[bool, Parameter(negative="")] = False,
    markdown: Annotated[bool, Parameter(negative="")] = False,
    threads: Annotated[int | None, Parameter(validator=_between(1, 1024))] = None,
) -> int:
    """Evaluate a set on all 2^32 float32 inputs: errors, mismatches, monotonicity, and the hazards that a fit can hide.

    Parameters
    ----------
    chosen
        fa4:DEGREE, p0,p1,... in decimal or C hex floats, JSON, or a path that ends in .toml or .json.
    range_
        Range reduction; by default the set's own, or floor.
    scalar
        FA4's scalar form (add.rm.ftz) instead of the packed one.
    tau
        Upper end of the working range, a whole number.
    json
        Print the report as JSON.
    markdown
        Print the report as Markdown.
    threads
        By default one for each processor.
    """
    from fa4verify.exp2.sets import SetError, parse

    if json and markdown:
        raise SetError("--json and --markdown: choose one")
    coefficients = parse(chosen, range_)

    from rich.console import Console

    from fa4verify.exp2 import render
    from fa4verify.exp2.check import INPUTS
    from fa4verify.exp2.check import check as examine

    with _bar(INPUTS) as advance:
        report = examine(coefficients, ftz=scalar, tau=tau, threads=threads, progress=advance)
    if json:
        print(render.as_json(report))
    elif markdown:
        print(render.markdown(report), end="")
    else:
        render.terminal(report, Console())
    return 1 if report.failed else 0


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr while it lasts, if a person looks."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (sys.stderr.isatty() and console.is_terminal) or console.is_dumb_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("compiling (once)", total=total)
        yield lambda done: progress.update(task, advance=done, description="all 2^32 inputs")
