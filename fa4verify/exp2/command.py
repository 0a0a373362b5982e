"""`fa4verify exp2 check | fit | explore`.

Contract: exit code 0, or 1 if the set has a failing finding; a set that cannot be read is one line on stderr and exit
code 2. `--json` and `--markdown` write to stdout and nothing else does. Importing this imports neither NumPy nor numba.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fa4verify.exp2.sets import CoefficientSet

ConstantTerms = Literal["one", "at-least-one", "free", "ends"]
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


@app.command
def explore(
    *,
    degree: tuple[Annotated[int, Parameter(validator=_between(0, 7))], ...] = (1, 2, 3, 4, 5),
    p0: tuple[ConstantTerms, ...] = ("one", "at-least-one", "free", "ends"),
    range_: Annotated[tuple[Literal["floor", "nearest"], ...], Parameter(name="--range")] = ("floor", "nearest"),
    objective: tuple[Objective, ...] = ("max", "rms", "bf16"),
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    attention: bool = True,
    seeds: Annotated[int, Parameter(validator=_between(1, 64))] = 4,
    columns: Literal["table", "all"] = "table",
    refit: Annotated[bool, Parameter(negative="")] = False,
    seconds: Annotated[int, Parameter(validator=_between(1, 3600))] = 30,
    save: Path | None = None,
    figure: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    markdown: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare fits with FA4's sets and with MUFU: error for each FMA, alone and inside attention.

    Parameters
    ----------
    degree
        Degrees to show; the package has fits of 1 to 5.
    p0
        Constant terms: 1, at least 1 (below, masked scores become NaN), free; ends: 1, and octaves that meet.
    range_
        Range reductions.
    objective
        What the fits were searched for; the package has max, rms and bf16.
    set_
        A further set, as `exp2 check` takes it; may be given several times.
    attention
        Run the sets inside the emulated kernel fa4-sm100 as well.
    seeds
        Inputs of each kind that are pooled; one seed scatters by 0.5 % in fp16.
    columns
        Emulate the columns that FA4 does (table), or all.
    refit
        Search again instead of taking the package's fits.
    seconds
        Time for each search on two cores.
    save
        Write the fits that were searched again to this file, after each search.
    figure
        Write an SVG here.
    json
        Print everything as JSON.
    markdown
        Print the tables as Markdown.
    """
    from fa4verify.exp2 import library
    from fa4verify.exp2.sets import SetError

    if json and markdown:
        raise SetError("--json and --markdown: choose one")
    if save and not refit:
        raise SetError("--save keeps what --refit found: give both")
    given = _named_apart(set_)
    wanted = library.keys(degree, p0, range_, objective)

    from rich.console import Console

    from fa4verify.exp2 import explore_view
    from fa4verify.exp2.explore import explore as compare
    from fa4verify.exp2.explore import with_attention

    entries = None
    if refit:
        with _bar(1000, "searching") as advance:
            shares = [0.0]

            def progress(share: float) -> None:
                advance(round(1000 * share) - round(1000 * shares[-1]))
                shares.append(share)

            def keep(found: library.Entries) -> None:
                if save:
                    _write(save, library.text(found))

            entries = library.refit(wanted, seconds=float(seconds), progress=progress, done=keep)
    found = compare(wanted, given, entries)
    if attention:
        with _bar(100, "attention") as advance:
            found = with_attention(found, seeds=seeds, columns=columns, progress=advance)
    if figure:
        from fa4verify.exp2.figure import draw

        _write(figure, draw(found))
    if json:
        print(explore_view.as_json(found))
    elif markdown:
        print(explore_view.markdown(found), end="")
    else:
        explore_view.terminal(found, Console())
    return 0


def _named_apart(texts: tuple[str, ...]) -> tuple[CoefficientSet, ...]:
    """Read sets; of the same name, later ones get a number."""
    from dataclasses import replace

    from fa4verify.exp2.sets import parse

    names: dict[str, int] = {}
    found = []
    for text in texts:
        chosen = parse(text)
        names[chosen.name] = names.get(chosen.name, 0) + 1
        count = names[chosen.name]
        found.append(chosen if count == 1 else replace(chosen, name=f"{chosen.name} {count}"))
    return tuple(found)


def _write(path: Path, text: str) -> None:
    from fa4verify.exp2.errors import SetError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetError(f"{path}: cannot write: {error.strerror or error}") from None


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
