"""The verdict for a script: one JSON object, or one line.

Contract: ASCII, one line, keys that stay; figures are in the run file, which it names. It holds what a script needs to
go on: exit code, counts, cases that need a look with the command that reruns each, what changed since a baseline.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fa4verify.reports import changes, page
from fa4verify.reports.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fa4verify.reports.history import Change, Comparison
    from fa4verify.reports.summary import Row, Summary


def as_json(summary: Summary, *, code: int, files: Sequence[Path] = (), comparison: Comparison | None = None) -> str:
    """Return a finished run as JSON."""
    told: dict[str, Any] = {
        "exit_code": code,
        "headline": summary.headline,
        "suite": summary.header.suite,
        "kernel": summary.header.kernel,
        "counts": dict(summary.counts),
        "failures": [
            {"id": row.id, "status": row.status, "message": row.decisive, "command": row.command}
            for row in page.worst_first(summary)
        ],
        "not_run": [
            {"id": row.id, "status": row.status, "reason": row.decisive} for row in summary.rows if _no_run(row)
        ],
        "notes": list(summary.notes),
        "files": [str(path) for path in files],
    }
    if comparison is not None:
        told["changes"] = _changes(comparison)
    return json.dumps(told)


def changes_as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON."""
    return json.dumps({"exit_code": int(comparison.regressed), **_changes(comparison)})


def line(summary: Summary, comparison: Comparison | None = None) -> str:
    """Return the headline, and that of what changed, on a line each."""
    lines = [one_line(summary.headline), *([changes.headline(comparison)] if comparison else [])]
    return "\n".join(lines)


def _no_run(row: Row) -> bool:
    return row.status in ("SKIPPED", "MISSING")


def _changes(comparison: Comparison) -> dict[str, Any]:
    groups = ("broken", "unchecked", "fixed", "failing", "appeared", "vanished")
    return {
        "headline": changes.headline(comparison),
        "regressed": comparison.regressed,
        "departed": comparison.departed,
        **{name: [_change(change) for change in getattr(comparison, name)] for name in groups},
        "drifted": [
            {
                "id": case.id,
                "direction": case.direction,
                "figures": [
                    {"name": f"{figure.tensor}.{figure.metric}", "before": figure.old, "after": figure.new}
                    | {"may_move": figure.allowed, "direction": figure.direction}
                    for figure in case.figures
                ],
            }
            for case in comparison.drifted
        ],
        "environment": [{"what": name, "before": old, "after": new} for name, old, new in comparison.environment],
    }


def _change(change: Change) -> dict[str, str]:
    return {"id": change.id, "before": change.before, "after": change.after, "why": change.why}
