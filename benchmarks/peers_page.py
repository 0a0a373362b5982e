"""A run of suite `peers` as a page and a packed run file: `python benchmarks/peers_page.py RUN.jsonl FOLDER NAME`.

FOLDER/NAME.md: error over that of a correctly rounded output, for each input and kernel, then what did not pass, then
every figure of every case. FOLDER/NAME.jsonl.xz: the run without times and profiles, for `fa4verify report`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fa4verify.baseline import lean
from fa4verify.reports import study
from fa4verify.reports.measures import metric, ratio
from fa4verify.reports.text import digits
from fa4verify.runs import packed, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fa4verify.runs import Run
    from fa4verify.vocabulary import Record

COMPARED = {
    "o": "O, forward",
    "dq": "dQ, backward",
    "dk": "dK, backward",
    "dv": "dV, backward",
}
FACTS = ("device", "driver", "cuda", "cudnn", "torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl", "tf32", "clocks")


def table(headers: Iterable[str], lines: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    heads = list(headers)
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"
    yield ""


def over_floor(record: Record, tensor: str) -> float | None:
    """Return the RMSE over that of a correctly rounded output."""
    return ratio(metric(record, tensor, "rmse"), metric(record, tensor, "floor_rmse"))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of what there is."""
    logs = [math.log(value) for value in values if value]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def overview(records: list[Record]) -> Iterator[str]:
    """Yield, for each tensor, a line for each kernel: the mean over the distributions by dtype and head dim."""
    kernels = list(dict.fromkeys(record.case.kernel for record in records))
    kinds = list(dict.fromkeys((record.case.dtype, record.case.shape.head_dim) for record in records))
    kinds.sort()
    for tensor, title in COMPARED.items():
        yield f"### {title}"
        yield ""
        lines = []
        for kernel in kernels:
            means = [
                mean(
                    over_floor(record, tensor)
                    for record in records
                    if (record.case.kernel, record.case.dtype, record.case.shape.head_dim) == (kernel, *kind)
                )
                for kind in kinds
            ]
            lines.append((f"`{kernel}`", *(digits(value) for value in means)))
        yield from table(("kernel", *(f"{dtype} d{head_dim}" for dtype, head_dim in kinds)), lines)


def inputs(records: list[Record]) -> Iterator[str]:
    """Yield, for each tensor, a line for each input, a column for each kernel."""
    kernels = list(dict.fromkeys(record.case.kernel for record in records))
    for tensor, title in COMPARED.items():
        cells: dict[tuple[str, str, str], dict[str, str]] = {}
        for record in records:
            value = over_floor(record, tensor)
            name = study.label(record.case, "distribution")
            if tensor in record.metrics or (record.case.operation == "forward") == (tensor == "o"):
                key = (name, record.case.dtype, str(record.case.shape.head_dim))
                shown = digits(value) if value is not None else record.verdict.outcome
                cells.setdefault(key, {})[record.case.kernel] = shown + (
                    study.MARKS[record.verdict.outcome] if value is not None else ""
                )
        yield f"### {title}"
        yield ""
        lines = ((*key, *(row.get(kernel, "-") for kernel in kernels)) for key, row in cells.items())
        yield from table(("distribution", "dtype", "d", *(f"`{kernel}`" for kernel in kernels)), lines)


def unusual(records: list[Record]) -> Iterator[str]:
    """Yield what did not pass, in the words of the first finding."""
    said: Counter[tuple[str, str, str, str]] = Counter()
    for record in records:
        outcome, case = record.verdict.outcome, record.case
        if outcome == "PASS":
            continue
        why = next(finding.message for finding in record.verdict.findings if not finding.passed)
        if outcome in ("FAIL", "INCONCLUSIVE"):
            why = f"`{case.id}`: {why}"
        said[outcome, case.kernel, case.operation, why] += 1
    rows = sorted(said.items())
    yield from table(
        ("outcome", "kernel", "pass", "cases", "why"),
        ((*key[:3], str(count), key[3].replace("|", "\\|")[:400]) for key, count in rows),
    )


def page(run: Run, name: str) -> str:
    """Return the page."""
    asked = {case_id: place for place, case_id in enumerate(run.header.asked)}
    records = sorted(run.records, key=lambda record: asked.get(record.case.id, len(asked)))
    facts = next((record.provenance for record in records if "device" in record.provenance), {})
    counts = Counter(record.verdict.outcome for record in records).most_common()
    lines = [
        f"# {run.header.suite}: {facts.get('device', run.header.machine)}",
        "",
        f"{run.header.date:%Y-%m-%d}, fa4verify {run.header.version} at {run.header.commit}: "
        f"{len(records)} of {len(asked)} cases, {', '.join(f'{count} {word}' for word, count in counts)}.",
        f"The run file is [{name}.jsonl.xz]({name}.jsonl.xz); `fa4verify report {name}.jsonl.xz` renders it,",
        f"`fa4verify run {run.header.suite} --device cuda:0 --require-gpu` runs it again.",
        "",
        *table(("", ""), ((word, facts[word]) for word in FACTS if word in facts)),
        "Figures are RMSE over the RMSE of the truth correctly rounded to the dtype: 1 cannot be bettered. "
        "Geometric mean over the distributions.",
        "",
        "## Means",
        "",
        *overview(records),
        "## Input by input",
        "",
        f"RMSE over that of a correctly rounded output. {study.LEGEND.split(';')[0]}.",
        "",
        *inputs(records),
        "## What did not pass",
        "",
        *unusual(records),
    ]
    if run.header.study is not None:
        lines += ["## Every figure", ""]
        for found in study.tables(run.header.study, records):
            lines += [f"### {found.title}", ""]
            lines += table(
                found.headers, ((f"`{label}`", *(cell.text for cell in cells)) for label, cells in found.lines)
            )
    return "\n".join(lines).rstrip() + "\n"


def main(path: Path, folder: Path, name: str) -> None:
    """Write both files."""
    run = read(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page(run, name))
    (folder / f"{name}.jsonl.xz").write_bytes(packed(lean(run)))
    for note in run.notes:
        print(note)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
