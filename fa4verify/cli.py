"""The command line: `fa4verify run | list | report | diff | baseline | races | audit | invariance | admit` and more.

Contract: exit code 0 all passed, 1 a FAIL, CRASHED, TIMEOUT or a regression, 2 bad usage, an unreadable suite or a disk
that cannot be written, 3 nothing failed but something could not be judged, 130 Ctrl-C, 143 SIGTERM. A mistake of the
user's gets one line on stderr and no traceback. Records are on the disk one by one as they are made, whatever ends the
run.
`--help` imports neither torch nor numba: rooms are imported inside the commands.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from fa4verify import __version__
from fa4verify.admission.command import admit, choose_tables, record_device
from fa4verify.exp2.command import app as exp2
from fa4verify.parameters import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from fa4verify.runs import RunHeader
    from fa4verify.sweep import Setup
    from fa4verify.vocabulary import Suite

app = App(
    name="fa4verify",
    version=__version__,
    help="Numerical accuracy of attention kernels, against float64 truth.",
    suppress_keyboard_interrupt=False,
)
app.command(exp2)
app.command(admit)
app.command(record_device, name="record-device")


class _Interrupted(Exception):  # noqa: N818 - carries what to tell after Ctrl-C or SIGTERM
    """A run that was ended from outside; the message says where its Records are."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


@app.command
def run(
    suite: str = "gate",
    /,
    *,
    kernel: str | None = None,
    select: str | None = None,
    out: Path = Path(),
    workers: Annotated[int | None, COUNT] = None,
    html: Path | None = None,
    baseline: Path | None = None,
    full: bool = False,
    device: str = "auto",
    require_gpu: bool = False,
    tables: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Verify the cases of a suite; print the verdicts, write a run file and reports.

    Parameters
    ----------
    suite
        Name of a shipped suite (`fa4verify list suites`), or a path that ends in .toml.
    kernel
        Run every case with this kernel: a name (`fa4verify list kernels`), or your own as package.module:attribute.
    select
        Only the cases that match: words of the id, field=value, and, or, not, parentheses ("causal and dtype=bf16").
    out
        Folder for runs/ and reports/.
    workers
        Processes; by default one for each physical core.
    html
        Also write the report as this one HTML file.
    baseline
        A run file to compare with: a case that fails anew or drifts, in any direction, makes the exit code 1.
    full
        The larger form of a suite that samples (fa3_table: all rows, 45 minutes on two cores).
    device
        Where GPU kernels and yours run: cuda:N (claimed for this run), cpu, or auto: the first GPU that nobody has
        claimed, if a case needs one. On a GPU the truth is solved there too.
    require_gpu
        A case that is skipped for want of a GPU fails; without a kernel that runs on one nothing is run.
    tables
        A folder that `record-device` wrote: emulate the special-function unit of that device.
    json
        Print one JSON object instead: exit code, counts, what needs a look, files.
    quiet
        Print the headline only, and no progress.
    """
    choose_tables(tables)
    from fa4verify.baseline import counting
    from fa4verify.outcome import Past, tell
    from fa4verify.plan import admitted, header_of, placed, plan, runs_on_gpu
    from fa4verify.runs import read
    from fa4verify.sweep import Setup

    before = read(baseline) if baseline else None

    if sys.stderr.isatty() and not quiet:
        print(f"{suite}: loading, and trying the budgets on outputs that must not pass ...", file=sys.stderr)
    chosen = plan(suite, kernel=kernel, select=select, full=full, budgets=False)
    with placed(chosen, device, require_gpu=require_gpu) as place:
        if (place or "").startswith("cuda") and not runs_on_gpu(chosen):
            print(f"{place} solves the truth, no kernel runs on it: --kernel flash-attn-4 does", file=sys.stderr)
        admitted(chosen, place, workers=workers, tables=tables)
        header = header_of(chosen, kernel, select=select, device=place)
        path = _sweep(chosen, header, out, workers, Setup(place, require_gpu, tables), quiet=quiet)
    past = None
    if baseline and before:
        past = Past(baseline, before, counting(before, chosen.cases, selected=bool(select)))
    return tell(read(path), path, out, html=html, past=past, told="json" if json else "line" if quiet else "all")


@app.command(name="list")
def list_(what: Literal["suites", "cases", "kernels", "distributions"], suite: str = "gate", /) -> int:
    """List what there is.

    Parameters
    ----------
    what
        What to list.
    suite
        Whose cases.
    """
    from fa4verify import cases, kernels

    if what == "cases":
        for case in cases.load_suite(suite).cases:
            print(case.id)
        return 0
    about = {"suites": cases.suites, "kernels": kernels.names, "distributions": cases.distributions}[what]()
    width = max(map(len, about))
    for name, line in about.items():
        reason = kernels.availability(name) if what == "kernels" else None
        print(f"{name:{width}}  {line}{f' (not available here: {reason})' if reason else ''}")
    return 0


@app.command
def report(
    path: Path,
    /,
    *,
    out: Path = Path(),
    html: Path | None = None,
    figures: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Show a run file again and rewrite its reports; the exit code is the one that the run deserves.

    Parameters
    ----------
    path
        A run file, complete or not.
    out
        Folder for reports/.
    html
        Also write the report as this one HTML file.
    figures
        Also write each figure as SVG into this folder.
    json
        Print one JSON object instead: exit code, counts, what needs a look, files.
    quiet
        Print the headline only.
    """
    from fa4verify.outcome import tell
    from fa4verify.runs import read

    return tell(read(path), path, out, html=html, figures=figures, told="json" if json else "line" if quiet else "all")


@app.command
def diff(
    old: Path,
    new: Path,
    /,
    *,
    markdown: bool = False,
    html: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Tell what changed between two runs; the exit code is 1 if something got worse.

    Parameters
    ----------
    old
        The run file to compare with.
    new
        The run file that is looked at.
    markdown
        Print Markdown, for a pull request or a step summary.
    html
        Also write the report of the new run, with what changed, as this one HTML file.
    json
        Print one JSON object instead.
    quiet
        Print the headline only.
    """
    from fa4verify.outcome import compare

    return compare(old, new, told="json" if json else "markdown" if markdown else "line" if quiet else "all", html=html)


@app.command(name="baseline")
def baseline_(path: Path, into: Path, /, *, quiet: bool = False) -> int:
    """Keep a finished run as a baseline, small enough for a repository, and tell what it changes.

    Parameters
    ----------
    path
        The run file.
    into
        The baseline, .jsonl.xz; for `fa4verify run --baseline` and `pytest --accuracy-baseline`.
    quiet
        Print the headlines only.
    """
    from fa4verify.baseline import keep
    from fa4verify.outcome import compare
    from fa4verify.runs import read

    run = read(path)
    if into.exists():
        compare(into, path, told="line" if quiet else "all", leads_on=False)
    size = keep(run, into)
    print(f"written: {into} ({len(run.records)} case{'' if len(run.records) == 1 else 's'}, {round(size / 1000)} kB)")
    return 0


@app.command
def races(
    kernel: str,
    case: str,
    /,
    *,
    suite: str | None = None,
    schedules: Annotated[int, COUNT] = 8,
    seed: int = 0,
    delete: bool = False,
    matching: str = "",
    json: Path | None = None,
) -> int:
    """Run one case in many orders of its warps; tell whether the bits depend on it, and which waits nothing misses.

    Parameters
    ----------
    kernel
        One that the PTX machine executes: fa4@sm_90a, fa4@sm_100a ...
    case
        A case's id, or an expression that selects exactly one.
    suite
        Where to look; by default in every shipped suite.
    schedules
        Drawn orders beside the fixed and the reversed one; every second one lets copies and tensor cores finish late.
    seed
        Of the first drawn order.
    delete
        Also leave out one synchronising instruction at a time and tell which nothing noticed.
    matching
        Only instructions whose text contains this.
    json
        File for all outcomes.
    """
    from fa4verify.races import chosen_case, race

    return race(
        chosen_case(kernel, case, suite), count=schedules, seed=seed, delete=delete, matching=matching, file=json
    )


@app.command
def audit(
    *,
    arch: list[str] | None = None,
    config: list[str] | None = None,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    workers: Annotated[int | None, COUNT] = None,
    fresh: bool = False,
    json: bool = False,
    write_contract: bool = False,
    release: str | None = None,
    against: str | None = None,
    run: bool = False,
    table: Path | None = None,
) -> int:
    """Read the numerics of the installed flash-attn-4 from its PTX and hold them to the contract (docs/audit.md).

    Parameters
    ----------
    arch
        Only this architecture (sm_100a); may be given again.
    config
        Only configurations with these words (d128 causal e4m3), of this pattern, or of this id.
    all_
        The whole grid instead of a part in which every pair of choices occurs.
    workers
        Processes that compile; by default one for each physical core.
    fresh
        Compile and read again, whatever is on disk.
    json
        Print one JSON object instead: exit code, counts, verdicts, facts with their lines of PTX.
    write_contract
        Make what is found the new contract.
    release
        Audit this release of flash-attn-4 (4.0.0b36), installed in an environment of its own, and tell what changed.
    against
        The release to compare it with; by default the one before it.
    run
        With `release` or `table`: also run five cases on the PTX machine and compare the results.
    table
        Compare every release of the package index with the one before and write this Markdown file; with `release`,
        find out about these releases only (all others as they are known from earlier calls).
    """
    from fa4verify import audit as door
    from fa4verify.plan import BadRequest

    if release or table:
        if write_contract:
            raise BadRequest("audit: --write-contract is about the installed release, not about a --release or --table")
        from fa4verify import changelog

        picked = door.chosen(arch or (), config or (), every=True) if arch or config else changelog.compared()
        if table:
            from fa4verify.releases import write

            return write(table, picked, workers=workers or 1, run=run, only=(release or "").split())
        return changelog.compare(str(release), against, picked, workers=workers or 1, run=run, json=json)
    if against or run:
        raise BadRequest("audit: --against and --run are about a --release")
    asked = door.chosen(arch or (), config or (), every=all_)
    if write_contract:
        return door.write_contract(asked, workers=workers, fresh=fresh)
    return door.audit(asked, workers=workers, fresh=fresh, json=json)


@app.command
def invariance(kernel: str, /, *, device: str = "auto", matching: str = "", json: Path | None = None) -> int:
    """Tell whether a sequence's bits depend on its neighbours, its padding, or what lay in the output before.

    Parameters
    ----------
    kernel
        One with FA4's varlen arguments: flash-attn-4 on a GPU, fa4@sm_90a ... on a CPU.
    device
        cuda:N, cpu, or auto: the first GPU that nobody has claimed, for a kernel that needs one.
    matching
        Only problems whose text (dtype, head dim, causal) contains this.
    json
        File for all findings.
    """
    from fa4verify.invariance import examine_all

    return examine_all(kernel, device, matching=matching, file=json)


@app.command
def doctor() -> int:
    """Tell what is installed, which kernels can run here and why not the others, and if the arithmetic is sound."""
    from fa4verify.doctor import examine

    return 0 if examine() else 1


def main(tokens: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # An entry point's sys.path starts with its own folder; a user's kernel lies where the user is.
    if os.getcwd() not in sys.path:  # noqa: PTH109 - an entry of sys.path is text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    with _sigterm_interrupts():
        return _run(tokens)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Raise _Terminated at SIGTERM, once; a second one is ignored, so that the workers are killed in peace."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # signals are not ours to handle there
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(tokens: list[str] | None) -> int:
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except _Interrupted as news:
        return _tell(str(news), news.code)
    except _Terminated:
        return _tell("terminated", 143)
    except KeyboardInterrupt:
        return _tell("interrupted", 130)
    except BrokenPipeError:  # `fa4verify list cases | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as error:  # not ours: whoever raised it, nothing was judged
        return _tell(f"something ended the command with exit code {error.code!r}", 2)
    except CycloptsError as error:
        return _tell(" ".join(str(error).split()), 2)
    except Exception as error:
        if isinstance(error, _mistakes()):
            return _tell(" ".join(str(error).split()), 2)
        raise
    return code if isinstance(code, int) else 0


def _mistakes() -> tuple[type[Exception], ...]:
    """Return the exceptions that are the user's to hear; imported only once something went wrong."""
    from fa4verify.cases import SuiteError
    from fa4verify.exp2.errors import SetError
    from fa4verify.gpus import NoGpu
    from fa4verify.plan import BadRequest
    from fa4verify.runs import RunFileError

    return SuiteError, BadRequest, RunFileError, SetError, NoGpu


def _tell(message: str, code: int) -> int:
    print(f"fa4verify: {message}", file=sys.stderr)
    return code


def _sweep(suite: Suite, header: RunHeader, out: Path, workers: int | None, setup: Setup, *, quiet: bool) -> Path:
    """Verify the cases with a live bar, unless `quiet`, and return the run file."""
    from fa4verify.reports.progress import Progress
    from fa4verify.runs import RunWriter, default_path
    from fa4verify.sweep import sweep

    path = default_path(out / "runs", header)
    done = 0
    try:
        with RunWriter(path, header) as writer, Progress(len(suite.cases), console=_nowhere(quiet)) as progress:
            for record in sweep(suite.cases, workers=workers, setup=setup):
                progress.record(writer.write(record))
                done += 1
    except KeyboardInterrupt as end:
        word, code = ("terminated", 143) if isinstance(end, _Terminated) else ("interrupted", 130)
        kept = f"{done} of {len(suite.cases)} Records are in {path} (`fa4verify report {path}`)"
        raise _Interrupted(f"{word}: {kept}", code) from None
    return path


def _nowhere(quiet: bool) -> Console | None:
    from rich.console import Console

    return Console(quiet=True) if quiet else None
