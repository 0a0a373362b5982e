"""One small run in every format, byte for byte: `python -m tests.reports.golden` writes the files of golden/ again.

Read the difference (`git diff tests/reports/golden`) before it is committed: it is what readers will see. The page has
a figure made by hand, so that it does not depend on matplotlib; figures.json has the digest of each real one, with the
version that drew it.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import msgspec
from rich.console import Console

from fa4verify.reports import changes, html, junit, machine, markdown, summarise, terminal
from fa4verify.reports.figures import Figure, figures
from fa4verify.reports.history import Comparison, compare
from fa4verify.vocabulary import Budget, Finding, Metrics, Record, Verdict
from tests.reports.make import HOSTILE, case, record, run, verdict
from tests.reports.pictured import everything, failing, metrics

if TYPE_CHECKING:
    from fa4verify.reports import Summary

FOLDER = Path(__file__).with_name("golden")
BUDGET = Budget("o-model", "o", "rmse", "absolute", 3e-4, "made by hand")
DRAWN = Figure(
    "by-hand", "A figure", "How to read: it is a square.", '<svg viewBox="0 0 9 9"><path d="M1 1h7v7H1z"/></svg>'
)


def _held(name: str, value: float) -> Record:
    finding = Finding(f"o rmse {value} <= 3e-4", "o", "rmse", value, 3e-4, (0, 3, 1, 5), "o-model", passed=True)
    return record(
        name, case=case(name, budgets=(BUDGET,)), verdict=Verdict("PASS", (finding,)), metrics={"o": metrics()}
    )


def _broken() -> Record:
    found = failing("bad", "mine:attention", message="o rmse 4e-4 > 3e-4 (absolute); budget o-model: made by hand")
    return msgspec.structs.replace(found, case=msgspec.structs.replace(found.case, budgets=(BUDGET,)))


def _of(operation: str, tensor: str, **values: float) -> Record:
    name = f"{operation}-{tensor}"
    return record(
        name, case=case(name, operation=operation), metrics={tensor: Metrics(values)}, activity={}, fa_rule=None
    )


def example() -> tuple[Summary, Comparison]:
    """Return a run with every outcome and operation, and what changed since another one."""
    now = run(
        _held("near", 2.9e-4),
        _broken(),
        record("declined", "SKIPPED", verdict=verdict("SKIPPED", "does not take causal")),
        record("unsure", "INCONCLUSIVE", verdict=verdict("INCONCLUSIVE", "never active: rescales_skipped")),
        record("dead", "CRASHED", verdict=verdict("CRASHED", "run: ValueError: no such thing")),
        record("slow", "TIMEOUT", verdict=verdict("TIMEOUT", "longer than 120 s")),
        record(HOSTILE, "FAIL", verdict=verdict("FAIL", HOSTILE), command=HOSTILE),
        _of("backward", "dq", rmse=1e-5, floor_rmse=8e-6, worst_row_relative_l2=0.01),
        _of("exp2", "y", max_relative=8.77e-5, bf16_mismatch_rate=0.00997),
        _of("repeat", "dq", distinct=9.0, differing_share=1e-4, runs=20.0, rate_bound=0.14, max_difference=0.5),
        asked=("gone",),
        notes=("line 9 is cut off: 10 of 11 cases are readable",),
    )
    was = run(_held("near", 2.8e-4), record("bad"), record("dead", "CRASHED"), _held("vanished", 1e-4))
    first = was.records[0]
    moved = msgspec.structs.replace(first.metrics["o"], values=first.metrics["o"].values | {"rmse": 1.5e-4})
    was = type(was)(was.header, (msgspec.structs.replace(first, metrics={"o": moved}), *was.records[1:]))
    return summarise(now), compare(summarise(was), summarise(now))


def _printed(render: object, *words: object) -> str:
    stream = io.StringIO()
    render(*words, console=Console(file=stream, width=terminal.WIDTH, force_terminal=False))
    return stream.getvalue()


def texts() -> dict[str, str]:
    """Return the text of each format by the name of its file."""
    summary, comparison = example()
    sections = [changes.section(comparison)]
    return {
        "report.html": html.render(summary, sections=sections, drawn=[DRAWN]),
        "report.md": markdown.render(summary, sections=sections),
        "report.xml": junit.render(summary, comparison),
        "report.txt": _printed(terminal.render, summary),
        "report.json": machine.as_json(summary, code=1, files=[Path("runs/a.jsonl")], comparison=comparison) + "\n",
        "changes.md": changes.render_markdown(comparison),
        "changes.txt": _printed(changes.render, comparison),
        "changes.json": machine.changes_as_json(comparison) + "\n",
    }


def digests() -> dict[str, str]:
    """Return the SHA-256 of each figure, and which matplotlib drew it."""
    drawn = {figure.name: hashlib.sha256(figure.svg.encode()).hexdigest() for figure in figures(everything())}
    return {"matplotlib": mpl.__version__, **drawn}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_bytes(text.encode())
    (FOLDER / "figures.json").write_bytes(msgspec.json.format(msgspec.json.encode(digests())) + b"\n")


if __name__ == "__main__":
    main()
