"""`fa4verify races KERNEL CASE`: whether bits depend on the schedule, and which waits nothing misses.

Contract: takes one case of the shipped suites and a kernel that the PTX machine executes (`fa4@...`), prints one line a
schedule, with `delete` one line an instruction left out, and a last line that says what it means. Exit code 0: the same
bits under every schedule, or a backward that does not promise them; 1: different bits or a fault.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress

from fa4verify import cases, kernels
from fa4verify.outcome import writable, write
from fa4verify.plan import BadRequest

WIDTH = 100  # columns of a line: an instruction of a barrier with its label

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fa4verify.kernels.shipped.races import Deletion, Outcome
    from fa4verify.vocabulary import Case


def chosen_case(kernel: str, expression: str, suite: str | None) -> Case:
    """Return the one case that a case id or a selection means, run by this kernel.

    Raises
    ------
    BadRequest
        The kernel is not one that the PTX machine executes, or the expression means no case, or several.
    """
    if not kernel.startswith("fa4@"):
        executed = ", ".join(name for name in kernels.names() if name.startswith("fa4@"))
        raise BadRequest(f"races: {kernel} has no PTX to schedule; kernels that do: {executed}")
    if kernel not in kernels.names() or (reason := kernels.availability(kernel)):
        raise BadRequest(f"races: {kernel}: {reason if kernel in kernels.names() else 'unknown kernel'}")
    found: dict[str, Case] = {}
    for name in [suite] if suite else cases.suites():
        try:
            loaded = cases.load_suite(name).cases
            by_id = _by_id(_run_by(kernel, loaded))
            exact = [case for case in loaded if case.id == expression]
            if expression in by_id or exact:  # an id as the suite or as `races` tells it: no other suite is needed
                found = {expression: by_id[expression]} if expression in by_id else _by_id(_run_by(kernel, exact))
                break
            found |= _by_id(_run_by(kernel, cases.select(loaded, expression)))
        except cases.SuiteError as error:
            raise BadRequest(str(error)) from error
    if len(found) != 1:
        some = "; ".join(list(found)[:3])
        raise BadRequest(f"races: {expression!r} means {len(found)} cases, expected one{': ' + some if some else ''}")
    case = next(iter(found.values()))
    return msgspec.structs.replace(case, operation="backward", runs=1) if case.operation == "repeat" else case


def _run_by(kernel: str, picked: Iterable[Case]) -> list[Case]:
    """Return the cases with another kernel, without those that are no attention."""
    return [case for case in cases.substitute_kernel(picked, kernel) if case.operation not in ("exp2", "audit")]


def _by_id(picked: Iterable[Case]) -> dict[str, Case]:
    return {case.id: case for case in picked}


def race(case: Case, *, count: int, seed: int, delete: bool, matching: str, file: Path | None) -> int:
    """Run the schedules, print what they showed, and return the exit code; `file` gets all of it as JSON."""
    from fa4verify.kernels.shipped import races

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    console.print(f"[bold]{escape(case.id)}[/]")
    if file:
        writable(file)
    inputs = cases.draw(case)
    chosen = races.schedules(count, seed)
    outcomes: list[Outcome] = []
    try:
        for outcome in races.under_schedules(case, inputs, chosen):
            outcomes.append(outcome)
            _tell(console, _line(outcome))
    except kernels.Unsupported as reason:
        raise BadRequest(f"races: {case.kernel} declines {case.id}: {reason}") from reason
    except races.MachineFault as fault:
        console.print(f"  [bold red]fault in the fixed order[/]\n{escape(str(fault))}")
        return 1
    missed: list[Deletion] = []
    deleted: list[Deletion] = []
    if delete:
        deletions = races.Deletions(case, inputs, chosen, lambda text: matching in text)
        errors = Console(stderr=True)
        with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=errors, transient=True) as bar:
            for deletion in bar.track(deletions, description="left out one at a time"):
                deleted.append(deletion)
                _tell(console, _deleted(deletion))
        missed = [deletion for deletion in deleted if deletion.noticed is None]
    if file:
        _write(file, case, outcomes, deleted)
    return _conclude(console, case, outcomes, deleted, missed)


def _conclude(
    console: Console, case: Case, outcomes: list[Outcome], deleted: list[Deletion], missed: list[Deletion]
) -> int:
    bad = [outcome for outcome in outcomes if not outcome.agrees]
    if deleted:
        console.print(f"{len(deleted)} instructions left out one at a time; nothing noticed {len(missed)} of them")
    if not bad:
        console.print(f"[green]the same bits under all {len(outcomes)} schedules[/]")
        return 0
    faults = sum(outcome.fault is not None for outcome in bad)
    if case.operation == "backward" and not case.deterministic and not faults:
        console.print(f"bits differ under {len(bad)} of {len(outcomes)} schedules, which this case does not forbid")
        return 0
    console.print(
        f"[bold red]{len(bad)} of {len(outcomes)} schedules differ from the fixed order[/] ({faults} with a fault)"
    )
    return 1


def _tell(console: Console, lines: str) -> None:
    """Print each line on one line, cut where it is too long; the file has all of it."""
    console.print(lines, no_wrap=True, overflow="ellipsis")


def _line(outcome: Outcome) -> str:
    if outcome.fault:
        return f"  [bold red]fault[/]      {escape(outcome.schedule)}\n             {escape(outcome.fault)}"
    if outcome.different:
        return f"  [bold red]different[/]  {escape(outcome.schedule)}\n             {_counts(outcome.different)}"
    return f"  [green]same bits[/]  {escape(outcome.schedule)} ({outcome.steps:,} warp instructions)"


def _deleted(deletion: Deletion) -> str:
    where = f"line {deletion.line}: {escape(deletion.instruction)}"
    if deletion.noticed is None:
        return f"  [bold yellow]unnoticed[/]  {where}"
    told = deletion.noticed.fault or _counts(deletion.noticed.different)
    return f"  [green]noticed[/]    {where}\n             {escape(deletion.noticed.schedule)}: {escape(told)}"


def _counts(different: dict[str, int]) -> str:
    return ", ".join(f"{count:,} elements of {name}" for name, count in different.items())


def _write(file: Path, case: Case, outcomes: Iterable[Outcome], deleted: Iterable[Deletion]) -> None:
    told: dict[str, Any] = {
        "case": case,
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "deletions": [asdict(deletion) for deletion in deleted],
    }
    write(file, msgspec.json.format(msgspec.json.encode(told)))
