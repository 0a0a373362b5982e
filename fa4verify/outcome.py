"""What becomes of a finished run: printed, written beside the run file, held to a baseline; and two runs compared.

Contract: what is printed comes first, since the disk may be full; reports are written even if nobody reads what is
printed. The exit code is the one that the run deserves: with a baseline, 1 if anything departs from it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from fa4verify.reports import changes, exit_code, history, junit, machine, markdown, summarise, terminal
from fa4verify.runs import Run, RunFileError, read

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from fa4verify.reports import Summary
    from fa4verify.reports.page import Section

Told = Literal["all", "line", "json", "markdown"]


class Past(NamedTuple):
    """A baseline: its file, what it holds, and the cases to look at if only some were selected."""

    path: Path
    run: Run
    only: Collection[str] | None


def tell(
    finished: Run,
    path: Path,
    out: Path,
    *,
    html: Path | None = None,
    figures: Path | None = None,
    past: Past | None = None,
    told: Told = "all",
) -> int:
    """Print the verdicts, write Markdown and JUnit XML beside each other, return the exit code.

    The verdicts are printed first, since the disk may be full, and written even if nobody reads what is printed.
    """
    summary = summarise(finished)
    comparison = history.compare(summarise(past.run), summary, only=past.only) if past else None
    departed = comparison is not None and comparison.departed
    code = 1 if departed else exit_code(summary)
    sections = [changes.section(comparison)] if comparison else []
    stem = out / "reports" / path.stem
    text, xml = stem.with_name(f"{path.stem}.md"), stem.with_name(f"{path.stem}.xml")
    files = [path, text, xml, *([html] if html else [])]
    try:
        if told == "json":
            print(machine.as_json(summary, code=code, files=files, comparison=comparison))
        elif told == "line":
            print(machine.line(summary, comparison))
        else:
            terminal.render(summary, files=files)
            if comparison:
                changes.render(comparison)
            print(terminal.next_step(summary, path, past.path if past and departed else None))
    finally:
        write(text, markdown.render(summary, sections=sections))
        write(xml, junit.render(summary, comparison))
    if html or figures:
        draw(summary, html, figures, sections)
    return code


def draw(summary: Summary, html: Path | None, folder: Path | None, sections: Sequence[Section] = ()) -> None:
    """Write the HTML report and the figures; matplotlib is imported here, a second after the verdicts are out."""
    from fa4verify.reports import html as page
    from fa4verify.reports.figures import figures

    drawn = figures([row.record for row in summary.rows if row.record is not None])
    if folder:
        for figure in drawn:
            write(folder / f"{figure.name}.svg", figure.svg)
    if html:
        write(html, page.render(summary, sections=sections, drawn=drawn))


def write(file: Path, content: str | bytes) -> None:
    """Write a file and the folders above it, whole or not at all; RunFileError in one line where it is impossible."""
    writable(file)
    data = content.encode() if isinstance(content, str) else content
    try:
        if file.exists() and not file.is_file():  # a pipe, /dev/stdout
            file.write_bytes(data)
            return
        beside = _beside(file)
        try:
            beside.write_bytes(data)
            beside.replace(file.resolve())
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise RunFileError(f"{file}: cannot write: {error.strerror or error}") from error


def writable(file: Path) -> None:
    """Raise RunFileError where `write` would, before hours are spent on what it shall hold; leaves folders, no file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and (file.is_dir() or not os.access(file, os.W_OK)):
            code = errno.EISDIR if file.is_dir() else errno.EACCES
            raise OSError(code, os.strerror(code))
        if file.is_file() or not file.exists():
            beside = _beside(file)
            beside.touch()
            beside.unlink()
    except OSError as error:
        raise RunFileError(f"{file}: cannot write: {error.strerror or error}") from error


def _beside(file: Path) -> Path:
    whole = file.resolve()
    return whole.with_name(f".{whole.name}.{os.getpid()}")


def compare(old: Path, new: Path, *, told: Told = "all", html: Path | None = None, leads_on: bool = True) -> int:
    """Tell what changed between two run files and, if it `leads_on`, what to run next; return 1 if any got worse."""
    before, after = summarise(read(old)), summarise(read(new))
    comparison = history.compare(before, after)
    if told == "json":
        print(machine.changes_as_json(comparison))
    elif told == "markdown":
        print(changes.render_markdown(comparison), end="")
    elif told == "line":
        print(changes.headline(comparison))
    else:
        changes.render(comparison)
        if leads_on:
            print(terminal.next_step(after, new, old))
    if html:
        draw(after, html, None, [changes.section(comparison)])
    return 1 if comparison.regressed else 0
