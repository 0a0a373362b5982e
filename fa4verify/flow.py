"""The whole flow on one screen: draw, run, solve, measure, judge.

Contract: `verify` returns a Record whatever the kernel does short of killing the process or never returning (sweep.py
adds CRASHED and TIMEOUT for those). A fault of ours (a reference or a metric that raises) is not dressed as a verdict
on the kernel: it is CRASHED too, and the finding names the stage.
"""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fa4verify import cases, judgement, kernels, references
from fa4verify.vocabulary import EIGHT_BITS, Case, Finding, Inputs, Outcome, Output, Record, Suite, Truth, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    Trial = Callable[[Sequence[Case]], Iterable["Inadmissible | None"]]

# Rows of a case that stand for it when its budgets are tried on trivial outputs (zeros, a constant, random numbers).
ADMISSION_ROWS = 32


def verify(case: Case, *, device: str | None = None, require_gpu: bool = False) -> Record:
    """Take one case through all rooms.

    Parameters
    ----------
    case
        What to verify; `case.kernel` names the kernel.
    device
        Where a GPU kernel or a user's own runs, and where the truth is solved if it is a GPU with fast float64:
        "cuda:0", "cpu", or None: nowhere, so that GPU kernels are SKIPPED.
    require_gpu
        FAIL instead of SKIPPED where it is for want of a GPU.

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

    if case.kernel == case.baseline and not case.options and judgement.of_bits(case):
        return closed("INCONCLUSIVE", f"{case.kernel} would be compared with itself: its bits are its own")
    try:
        with timed("draw"):
            inputs = cases.draw(case)
        if case.operation == "repeat":
            return _repeated(case, inputs, timed, seconds, device)
        if case.operation == "audit":
            return _audited(case, timed, seconds)
        with timed("run"):
            output = kernels.run(case, inputs, device=device)
        with timed("baseline"):
            baseline, reordered = _baselines(case, inputs, device)
        with timed("solve"):
            truth = references.solve(case, inputs, device=device)
            on_inputs = _on_inputs(case, inputs, device)
        with timed("measure"):
            metrics = judgement.measure(case, output, truth, reordered, baseline, on_inputs=on_inputs, profiles=True)
            baseline_metrics = judgement.measure(case, baseline, truth) if baseline else {}
        with timed("judge"):
            verdict = judgement.judge(case, metrics, baseline_metrics, output, truth)
    except kernels.NoDevice as reason:
        return closed("FAIL" if require_gpu else "SKIPPED", str(reason))
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
        provenance={**output.provenance, **_device_of(case, baseline), **truth.provenance},
        command=command(case),
    )


def _device_of(case: Case, baseline: Output | None) -> dict[str, str]:
    """Return what a baseline on a GPU says of its device."""
    if baseline is None or case.baseline is None or not kernels.needs_gpu(case.baseline):
        return {}
    return {f"baseline {name}": text for name, text in baseline.provenance.items()}


def _baselines(case: Case, inputs: Inputs, device: str | None) -> tuple[Output | None, Output | None]:
    """Return the case's baseline output, if it has one, and the one that FlashAttention's own rule compares with."""
    has_rule = case.operation == "forward" and case.dtype not in EIGHT_BITS and case.truth == "inputs"
    reordered = _run_as("standard", case, inputs, None, reorder_ops=True) if has_rule else None
    return _baseline(case, inputs, device), reordered


def _baseline(case: Case, inputs: Inputs, device: str | None) -> Output | None:
    """Return what the case's baseline gives: another kernel, or its own on the same draws in another 8-bit format."""
    if case.baseline in EIGHT_BITS:
        return kernels.run(*cases.in_format(case, inputs, case.baseline), device=device)
    return _run_as(case.baseline, case, inputs, device) if case.baseline else None


def _on_inputs(case: Case, inputs: Inputs, device: str | None) -> Truth | None:
    """Return the truth of the inputs as rounded, where the case's truth is that of the draws."""
    if case.truth == "inputs" or case.operation != "forward":
        return None
    return references.solve(msgspec.structs.replace(case, truth="inputs"), inputs, device=device)


def _run_as(kernel: str, case: Case, inputs: Inputs, device: str | None, **options: bool) -> Output:
    """Run another kernel on the inputs of a case."""
    return kernels.run(msgspec.structs.replace(case, kernel=kernel, options=options), inputs, device=device)


def _repeated(
    case: Case,
    inputs: Inputs,
    timed: Callable[[str], AbstractContextManager[None]],
    seconds: dict[str, float],
    device: str | None,
) -> Record:
    """Run the case again and again, then its twin in random orders; without `deterministic`, also solve for RMSE."""
    truth = ordered = no_twin = twins = None
    if not case.deterministic:
        with timed("solve"):
            truth = references.solve(msgspec.structs.replace(case, operation="backward"), inputs, device=device)
    with timed("run"):
        runs = judgement.observe(kernels.repeat(case, inputs, device=device), truth)
        if not case.deterministic:
            flagged = msgspec.structs.replace(case, deterministic=True, runs=1)
            with suppress(kernels.Unsupported):  # the case is about what happens without the flag
                ordered = judgement.observe(kernels.repeat(flagged, inputs, device=device), truth)
    with timed("shuffle"):
        try:
            twins = judgement.observe(kernels.shuffled(case, inputs))
        except kernels.Unsupported as reason:
            no_twin = str(reason)
    with timed("judge"):
        metrics = judgement.measure_runs(case, runs, twins, ordered)
        verdict = judgement.judge_runs(case, metrics, runs, no_twin)
    return Record(
        case=case,
        verdict=verdict,
        metrics=metrics,
        activity=dict(runs.activity),
        checked=judgement.checked_runs(case, runs),
        seconds=seconds,
        provenance={**runs.provenance, "deterministic": judgement.flag(case, verdict, runs)},
        command=command(case),
    )


def _audited(case: Case, timed: Callable[[str], AbstractContextManager[None]], seconds: dict[str, float]) -> Record:
    """Read the kernel's code and hold it to the contract (docs/audit.md)."""
    with timed("run"):
        found = kernels.audit(case)
    facts = len(found.result.facts)
    findings = tuple(Finding(finding) for finding in found.findings)
    if found.verdict == "PASS":
        findings = (Finding(f"{facts} facts of its PTX are as agreed", budget="contract", passed=True),)
    return Record(case=case, verdict=Verdict(found.verdict, findings), seconds=seconds, command=command(case))


def command(case: Case) -> str:
    """Return the command line that runs this case again."""
    words = ["fa4verify", "run", case.suite or "SUITE.toml", "--select", f"id={case.id}"]
    return shlex.join([*words, "--kernel", case.kernel] if case.substituted else words)


class Inadmissible(ValueError):  # noqa: N818 - names what is wrong with the suite
    """A case that nothing can be learnt from; the message says why."""


class VacuousBudget(Inadmissible):
    """A case whose budgets an output would pass that nobody would call attention; the message says which."""


def admit(suite: Suite, *, device: str | None = None, trial: Trial | None = None) -> None:
    """Refuse a suite in which zeros, a constant or random numbers of the right scale would pass a case.

    Refuse one too whose inputs cannot be drawn or solved, or whose truth has no finite number. Every distinct problem
    is tried on its last rows: a smaller problem of the same kind, for dK, dV and dsink one of its own. `trial` gives
    the `refusal` of each of many cases, in their order (`sweep.Workers.refusals`); by default here, one by one.

    Raises
    ------
    VacuousBudget
        Names the case, the budgets and the trivial output that passes them.
    Inadmissible
        Names the case and why it cannot be judged.
    """
    todo = problems(suite)
    for case, reason in zip(todo, trial(todo) if trial else (refusal(case, device) for case in todo), strict=True):
        if reason is not None:
            raise type(reason)(f"{suite.name}: case {case.id}: {reason}")


def problems(suite: Suite) -> list[Case]:
    """Return the first case of each distinct problem that budgets hold to something."""
    found: dict[bytes, Case] = {}
    for case in suite.cases:
        if case.budgets:
            problem = msgspec.json.encode(msgspec.structs.replace(case, id="", kernel="", options={}, label=""))
            found.setdefault(problem, case)
    return list(found.values())


def refusal(case: Case, device: str | None = None) -> Inadmissible | None:
    """Return why nothing can be learnt from a case, None if something can."""
    try:
        # Repeated runs are judged by their bits, and a constant repeats as well as attention.
        reasons = judgement.admit_runs(case) if case.operation == "repeat" else _admissible(case, device)
    except kernels.Unsupported as reason:
        if kernels.needs_gpu(case.baseline or ""):  # not here, or not on this device: the case will be SKIPPED
            return None
        return Inadmissible(f"its baseline declines it: {reason}")
    except Inadmissible as reason:
        return reason
    except Exception as error:  # whatever drawing or solving raises: the suite asked for it
        return Inadmissible(f"cannot be drawn and solved: {type(error).__name__}: {' '.join(str(error).split())}")
    return VacuousBudget(reasons[0]) if reasons else None


def _admissible(case: Case, device: str | None) -> list[str]:
    small, inputs = cases.last_rows(case, cases.draw(case), ADMISSION_ROWS)
    truth = references.solve(small, inputs)
    # Rows without keys have a finite O, 0; a truth without a finite number comes from inputs that are none.
    known = [tensor for tensor in truth.tensors.values() if tensor.size]
    if known and not any(np.isfinite(tensor).any() for tensor in known):
        raise Inadmissible("the truth has no finite element, so that no output can be wrong by a number")
    # FlashAttention's rule is no budget, so the baseline alone is enough.
    baseline: Output | None
    if case.baseline and kernels.needs_gpu(case.baseline) and judgement.of_bits(case):
        # Whoever has not the truth's bits nearly everywhere has not the device's: no need to compile there a hundred
        # kernels in one process (165 s for suite `fidelity` on an H200).
        baseline = judgement.rounded(small, truth)
    else:
        baseline = _baseline(small, inputs, device)
    baseline_metrics = judgement.measure(small, baseline, truth) if baseline else {}
    return judgement.admit(small, truth, baseline_metrics, baseline)
