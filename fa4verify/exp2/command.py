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

Objective = Literal["max", "rms", "bias", "bf16", "fp16", "e4m3"]

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


@app.command
def fit(
    *,
    degree: Annotated[int, Parameter(validator=_between(0, 7))],
    objective: tuple[Objective, ...] = ("max",),
    p0: Literal["one", "free", "at-least-one"] = "one",
    continuous: Annotated[bool, Parameter(negative="")] = False,
    range_: Annotated[Literal["floor", "nearest"], Parameter(name="--range")] = "floor",
    no_worse_than: str | None = None,
    hold: tuple[Objective, ...] = (),
    over: Literal["x", "f"] = "x",
    seconds: Annotated[int, Parameter(validator=_between(1, 3600))] = 30,
    seed: Annotated[int, Parameter(validator=_between(0, 2**31))] = 0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Find float32 coefficients that are best in an objective; several objectives give their Pareto front.

    Parameters
    ----------
    degree
        Of the polynomial, which is its number of FMAs.
    objective
        max, rms, bias, bf16, fp16, e4m3; may be given several times.
    p0
        The constant term: 1 as FA4's, free, or at least 1 (below 1, masked scores become NaN).
    continuous
        No step where octaves meet.
    range_
        Range reduction by floor, as FA4's, or to nearest.
    no_worse_than
        A set (as `exp2 check` takes it) that no figure may be worse than.
    hold
        The figures that --no-worse-than is about; by default all.
    over
        The largest error over every float32 x, or over the fractions f alone.
    seconds
        Time for the search on two cores; degrees below 4 stop by themselves.
    seed
        Of the search.
    json
        Print coefficients, figures and provenance as JSON; `exp2 check` reads it.
    """
    from rich.console import Console

    from fa4verify.exp2 import emit
    from fa4verify.exp2.fit import confirm
    from fa4verify.exp2.fit import fit as find
    from fa4verify.exp2.remez import Shape
    from fa4verify.exp2.sets import SetError, parse
    from fa4verify.exp2.targets import OBJECTIVES

    try:
        shape = Shape(degree, p0, continuous, range_)
    except ValueError as error:
        raise SetError(str(error)) from None
    given = None if no_worse_than is None else parse(no_worse_than)
    if hold and given is None:
        raise SetError("--hold says which figures --no-worse-than is about: give a set")
    done = 0.0
    with _bar(1000, "searching") as advance:

        def progress(share: float) -> None:
            nonlocal done
            advance(round(1000 * (share - done)))
            done = share

        found = find(
            shape,
            objective or ("max",),
            no_worse_than=given,
            hold=hold or OBJECTIVES,
            over_x=over == "x",
            seconds=float(seconds),
            seed=seed,
            progress=progress,
        )
    found = tuple(confirm(each) for each in found)
    if json:
        print(emit.as_json(found))
    else:
        emit.terminal(found, Console())
    return 0


@contextmanager
def _bar(total: int, what: str = "all 2^32 inputs") -> Iterator[Callable[[int], None]]:
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
        yield lambda done: progress.update(task, advance=done, description=what)
