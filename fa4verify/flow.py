"""The whole flow on one screen: draw, run, solve, measure, judge.

Contract: `verify` returns a Record whatever the kernel does short of killing the process or never returning (sweep.py
adds CRASHED and TIMEOUT for those). A fault of ours (a reference or a metric that raises) is not dressed as a verdict
on the kernel: it is CRASHED too, and the finding names the stage.
"""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from fa4verify import cases, judgement, kernels, references
from fa4verify.vocabulary import Case, Finding, Inputs, Metrics, Outcome, Output, Record, Suite, Truth, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rows of a case that stand for it when its budgets are tried on trivial outputs (zeros, a constant, random numbers).
ADMISSION_ROWS = 32


def verify(case: Case) -> Record:
    """Take one case through all rooms.

    Parameters
    ----------
    case
        What to verify; `case.kernel` names the kernel.

    Returns
    -------
    Record
        The verdict with its evidence; SKIPPED where the kernel declines the case, CRASHED where something raised.
    """
    seconds: dict[str, float] = {}
    stage = "draw"

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        nonlocal stage
        stage, start = name, time.perf_counter()
        yield
        seconds[name] = round(time.perf_counter() - start, 4)

    def closed(outcome: Outcome, message: str) -> Record:
        verdict = Verdict(outcome, (Finding(message),))
        return Record(case=case, verdict=verdict, seconds=seconds, command=command(case))

    try:
        with timed("draw"):
            inputs = cases.draw(case)
        with timed("run"):
            output = kernels.run(case, inputs)
        with timed("baseline"):
            baseline, reordered = _baselines(case, inputs)
        with timed("solve"):
            truth = references.solve(case, inputs)
        with timed("measure"):
            metrics = judgement.measure(case, output, truth, pt=reordered)
            baseline_metrics = judgement.measure(case, baseline, truth) if baseline else {}
        with timed("judge"):
            verdict = judgement.judge(case, metrics, baseline_metrics, output, truth)
    except kernels.Unsupported as reason:
        return closed("SKIPPED", str(reason))
    except kernels.ContractViolation as violation:
        return closed("FAIL", str(violation))
    except Exception as error:  # anything a kernel may raise; the suite goes on
        return closed("CRASHED", f"{stage}: {type(error).__name__}: {' '.join(str(error).split())}")
    return Record(
        case=case,
        verdict=verdict,
        metrics=metrics,
        baseline=baseline_metrics,
        activity=dict(output.activity),
        checked=judgement.checked(case, output, truth),
        seconds=seconds,
        provenance={**output.provenance, **truth.provenance},
        command=command(case),
    )


def _baselines(case: Case, inputs: Inputs) -> tuple[Output | None, Output | None]:
    """Return the case's baseline output, if it has one, and the one that FlashAttention's own rule compares with."""
    if case.operation != "forward":
        return None, None

    def run(name: str, **options: bool) -> Output:
        return kernels.run(msgspec.structs.replace(case, kernel=name, options=options), inputs)

    return run(case.baseline) if case.baseline else None, run("standard", reorder_ops=True)


def command(case: Case) -> str:
    """Return the command line that runs this case again."""
    words = ["fa4verify", "run", case.suite or "SUITE.toml", "--select", f"id={case.id}"]
    return shlex.join([*words, "--kernel", case.kernel] if case.substituted else words)


class VacuousBudget(ValueError):  # noqa: N818 - names what is wrong with the suite
    """A case whose budgets an output would pass that nobody would call attention; the message says which."""


def admit(suite: Suite) -> None:
    """Refuse a suite in which zeros, a constant or random numbers of the right scale would pass a case.

    Every distinct problem is tried on its last rows, which are a smaller problem of the same kind.

    Raises
    ------
    VacuousBudget
        Names the case, the budgets and the trivial output that passes them.
    """
    seen = set()
    for case in suite.cases:
        problem = msgspec.json.encode(msgspec.structs.replace(case, id="", kernel="", options={}))
        if not case.budgets or problem in seen:
            continue
        seen.add(problem)
        small, inputs = cases.last_rows(case, cases.draw(case), ADMISSION_ROWS)
        truth = references.solve(small, inputs)
        reasons = judgement.admit(small, truth, _baseline_metrics(small, inputs, truth))
        if reasons:
            raise VacuousBudget(f"{suite.name}: case {case.id}: {reasons[0]}")


def _baseline_metrics(case: Case, inputs: Inputs, truth: Truth) -> dict[str, Metrics]:
    """Return the metrics of the baseline alone: FlashAttention's rule is no budget, so it is not needed here."""
    if case.baseline is None or case.operation != "forward":
        return {}
    baseline = kernels.run(msgspec.structs.replace(case, kernel=case.baseline, options={}), inputs)
    return judgement.measure(case, baseline, truth)
