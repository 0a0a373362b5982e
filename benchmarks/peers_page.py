"""A run of suite `peers` as a page and a packed run file: `python benchmarks/peers_page.py RUN.jsonl FOLDER NAME`.

FOLDER/NAME.md: a line for each kernel, what did not pass, error over that of a correctly rounded output for each input,
then every figure of every case. FOLDER/NAME.jsonl.xz: the run without times and profiles, for `fa4verify report`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fa4verify.baseline import lean
from fa4verify.reports import study
from fa4verify.reports.measures import metric, ratio
from fa4verify.reports.text import digits
from fa4verify.runs import packed, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fa4verify.runs import Run
    from fa4verify.vocabulary import Finding, Record

COMPARED = {
    "o": "O, forward",
    "dq": "dQ, backward",
    "dk": "dK, backward",
    "dv": "dV, backward",
}
HEADS = ("kernel", "passed", "/floor", "/expected", "/expected, largest", "worst row", "ulp p50", "p99", "p99.9")
LEGEND = (
    "Medians over dtypes, head dims and distributions.",
    "",
    "- /floor: RMSE over that of the truth correctly rounded to the dtype; 1 cannot be bettered.",
    "- /expected: RMSE over what the model of a correct fused kernel expects (docs/budgets.md); the limit is 1.3.",
    "- worst row: relative L2 error of the worst row; large where a row of a gradient is nearly 0 (dQ).",
    "- ulp: quantiles of the error in ulp of each element; large where elements are nearly 0.",
    "- bias: size of the mean error in its standard errors; its median without bias is 0.67.",
    "- LSE max: largest absolute error of LSE.",
)
STANDARD = (
    "`standard-gpu` rounds S and the scaled S to 16 bits; the budget's model is of a kernel that keeps them in fp32.",
    "Its failures are what that algorithm costs, and no fault of torch's products. In fp16, scores beyond 65504 are",
    "infinite, and the row NaN: `massive_activations`.",
    "",
)
GLANCED = ("worst_row_relative_l2", "ulp_p50", "ulp_p99", "ulp_p999")
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


def over_expected(record: Record, tensor: str) -> float | None:
    """Return the RMSE over the one that the model of a correct fused kernel expects."""
    return ratio(metric(record, tensor, "rmse"), metric(record, tensor, "expected_rmse"))


def bias(record: Record, tensor: str) -> float | None:
    """Return the size of the mean error in its standard errors."""
    share = ratio(metric(record, tensor, "mean_error"), metric(record, tensor, "mean_error_standard_error"))
    return None if share is None else abs(share)


def glance(records: list[Record]) -> Iterator[str]:
    """Yield a line for each kernel and tensor, medians over the problems that all kernels answer by finite numbers."""
    kernels = list(dict.fromkeys(record.case.kernel for record in records))
    for tensor, title in COMPARED.items():
        yield f"### {title}"
        yield ""
        here = [record for record in records if (record.case.operation == "forward") == (tensor == "o")]
        lines = []
        for kernel in kernels:
            own = [record for record in here if record.case.kernel == kernel]

            def column(values: Iterable[float | None], pick: Callable[[list[float]], float] = median) -> str:
                there = [value for value in values if value is not None and math.isfinite(value)]
                return digits(pick(there)) if there else "-"

            lines.append(
                (
                    f"`{kernel}`",
                    f"{sum(record.verdict.outcome == 'PASS' for record in own)} of {len(own)}",
                    column(over_floor(record, tensor) for record in own),
                    column(over_expected(record, tensor) for record in own),
                    column((over_expected(record, tensor) for record in own), max),
                    *(column(metric(record, tensor, name) for record in own) for name in GLANCED),
                    column(bias(record, tensor) for record in own),
                    *((column(metric(record, "lse", "max_abs") for record in own),) if tensor == "o" else ()),
                )
            )
        heads = [
            "kernel",
            "passed",
            "/floor",
            "/expected",
            "/expected, largest",
            "worst row",
            "ulp p50",
            "p99",
            "p99.9",
        ]
        yield from table((*heads, "bias", *(("LSE max",) if tensor == "o" else ())), lines)


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
    """Yield how many cases of a kernel did not pass, how far beyond a limit, and the farthest one's words."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.verdict.outcome != "PASS":
            groups.setdefault((record.verdict.outcome, record.case.kernel, record.case.operation), []).append(record)
    if not groups:
        yield "All passed."
        yield ""
        return
    lines = []
    for key, group in sorted(groups.items()):
        asked = sum((record.case.kernel, record.case.operation) == key[1:] for record in records)
        nonfinite = sum(any(f.metric == "nonfinite_mismatches" for f in broken(record)) for record in group)
        far = [(share, record) for record in group if (share := beyond(record)) is not None]
        text = f"{len(group)} of {asked}"
        if far:
            shares = [share for share, _ in far]
            worst = max(far, key=lambda pair: pair[0])[1]
            limits = f"{digits(min(shares))} to {digits(max(shares))}"
            lines.append((*key, text, str(nonfinite), limits, f"`{worst.case.id}`"))
        else:
            said = broken(group[0])[0].message.replace("|", "\\|")
            lines.append((*key, text, str(nonfinite), "-", said[:200]))
    heads = ("outcome", "kernel", "pass", "cases", "with wrong NaN or inf", "of the limit", "farthest, or why")
    yield from table(heads, lines)


def broken(record: Record) -> list[Finding]:
    """Return the findings that did not pass."""
    return [finding for finding in record.verdict.findings if not finding.passed]


def beyond(record: Record) -> float | None:
    """Return the largest share of a budget that a finite error takes."""
    shares = [f.value / f.limit for f in broken(record) if f.budget and f.value is not None and f.limit]
    return max((share for share in shares if math.isfinite(share)), default=None)


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
        "## At a glance",
        "",
        *LEGEND,
        "",
        *glance(records),
        "## What did not pass",
        "",
        *unusual(records),
        *(STANDARD if any(record.case.kernel == "standard-gpu" for record in records) else ()),
        "## RMSE over floor: means",
        "",
        "Geometric means over the distributions. No kernel that rounds dS to 16 bits reaches 1 in dQ and dK.",
        "",
        *overview(records),
        "## RMSE over floor: input by input",
        "",
        f"{study.LEGEND.split(';')[0]}.",
        "",
        *inputs(records),
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
