"""Every mutant through its cases of the gate: `python -m tests.mutants.matrix forward|backward|fp8 [SUITE]`.

Rewrites its own section of docs/mutants.md; about ten minutes for the forward, five for the backward. A case is drawn,
solved and measured against once, for all mutants. Prints which cases fail each mutant, cheapest first, and which
mutants FlashAttention's own rule lets through.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fa4verify import cases, flow, judgement, kernels, references
from fa4verify.reports.measures import fa_rule
from fa4verify.vocabulary import EIGHT_BITS, Finding, Record, Verdict

from .catalog import ABOUT, ABOUT_BACKWARD, backward_kernel_name, kernel_name
from .fp8 import FAULTS, fp8_kernel_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fa4verify.vocabulary import Case

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
TITLE = {"forward": "## The forward", "backward": "## The backward", "fp8": "## FP8"}
OPERATIONS = {"forward": ("forward", "exp2"), "backward": ("backward", "repeat"), "fp8": ("forward",)}
INTRODUCTION = {
    "forward": """Each row is a forward that is wrong in one way (`tests/mutants/`), run through every case that the
suite `gate` holds for fa4-sm100: on how many of them our budgets fail it, the cheapest case that does, and what
FlashAttention's own rule, max|O - ref| <= 2 max|pt - ref| + 2 max|(ref + 0.3 - 0.3) - ref|, says on the same cases. The
rule looks at O alone, so that a wrong LSE passes, and at one maximum, so that what is wrong everywhere by half an ulp
passes too.

| mutant | what is wrong | gate fails it on | cheapest such case | FlashAttention's rule |
|---|---|---|---|---|
""",
    "backward": """![The same for the backward, of which that rule says nothing](mutants-backward.svg)

Each row is a backward that is wrong in one way behind a sound forward, run through every case with
gradients that the suite `gate` holds for fa4-sm100 (a case that repeats runs says nothing new of a kernel whose order
is fixed, and meets only the one whose order is not).

| mutant | what is wrong | gate fails it on | cheapest such case |
|---|---|---|---|
""",
    "fp8": """Each row is a forward on 8-bit codes that is wrong in one way (`tests/mutants/fp8.py`), run through every
FP8 case of the suite `gate`, those of fa3 with scales of blocks among them.

| mutant | what is wrong | gate fails it on | cheapest such case |
|---|---|---|---|
""",
}


@dataclass
class Score:
    """What one mutant met: case ids by cost where the gate fails it, and where FlashAttention's rule does."""

    met: int = 0
    caught: list[tuple[float, str]] = field(default_factory=list)
    rule: set[str] = field(default_factory=set)


def recorded(case: Case, shared: tuple) -> Record:
    """Return what the case's kernel gives on inputs and truth that were prepared, as `flow.verify` would judge it."""
    inputs, truth, baseline, reordered = shared
    try:
        output = kernels.run(case, inputs)
    except kernels.Unsupported as reason:
        return Record(case, Verdict("SKIPPED", (Finding(str(reason)),)))
    except (kernels.ContractViolation, TypeError) as violation:
        return Record(case, Verdict("FAIL", (Finding(str(violation)),)))
    metrics = judgement.measure(case, output, truth, pt=reordered)
    verdict = judgement.judge(case, metrics, baseline, output, truth)
    return Record(case, verdict, metrics, command=flow.command(case))


def judged(case: Case, kernel: str, shared: tuple) -> tuple[bool, bool | None]:
    """Return whether the gate passes the kernel on this case, and whether FlashAttention's rule does."""
    options = case.options if case.operation == "exp2" else {}
    record = recorded(msgspec.structs.replace(case, kernel=kernel, options=options), shared)
    return record.verdict.outcome in ("PASS", "SKIPPED"), fa_rule(record)


def prepared(case: Case) -> tuple:
    """Return inputs, truth, the baseline's metrics and what FlashAttention's rule compares with."""
    inputs = cases.draw(case)
    truth = references.solve(case, inputs)
    if case.operation != "forward":
        return inputs, truth, {}, None
    plain = msgspec.structs.replace(case, kernel="standard", options={})
    reordered = kernels.run(msgspec.structs.replace(plain, options={"reorder_ops": True}), inputs)
    baseline = judgement.measure(case, kernels.run(plain, inputs), truth) if case.baseline else {}
    return inputs, truth, baseline, reordered


def scores(chosen: list[Case], mutants: list[str], name_of: Callable[[str], str]) -> dict[str, Score]:
    """Run every mutant through every case."""
    found = {name: Score() for name in mutants}
    for number, case in enumerate(chosen, 1):
        start = time.perf_counter()
        shared = () if case.operation == "repeat" or case.dtype in EIGHT_BITS else prepared(case)
        cost = time.perf_counter() - start
        for name, score in found.items():
            if case.operation == "repeat":
                if name not in ("clean", "order-random"):
                    continue
                record = flow.verify(msgspec.structs.replace(case, kernel=name_of(name), options={}))
                passed, rule = record.verdict.outcome == "PASS", None
                cost = sum(record.seconds.values())
            elif case.dtype in EIGHT_BITS:
                record = flow.verify(msgspec.structs.replace(case, kernel=name_of(name)))
                passed, rule = record.verdict.outcome == "PASS", None
                cost = sum(record.seconds.values())
            else:
                passed, rule = judged(case, name_of(name), shared)
            score.met += 1
            if not passed:
                score.caught.append((cost, case.id))
            if rule is False:
                score.rule.add(case.id)
        print(f"{number}/{len(chosen)} {case.id}", flush=True)
    return found


def section(which: str, about: dict[str, str], found: dict[str, Score]) -> str:
    """Return the section as Markdown, and print which cases catch what."""
    clean, lines = found["clean"], []
    for mutant, words in about.items():
        score = found[mutant]
        failing = sorted(score.caught)
        cheapest = f"`{failing[0][1]}`" if failing else "-"
        line = f"| {mutant} | {words} | {len(failing)} of {score.met} | {cheapest} |"
        beyond = len(score.rule - clean.rule)  # where the rule fails the clean twin too, it says nothing
        rule = f" fails it on {beyond} |" if beyond else " **lets it through** |"
        lines.append(line + rule if which == "forward" else line)
        print(mutant, len(failing), [name for _, name in failing[:4]], flush=True)
    print("clean twin fails on", clean.caught)
    closing = f"\nThe clean twin fails {len(clean.caught)} of {clean.met}."
    if which == "forward":
        alarms = ", ".join(f"`{case_id}`" for case_id in sorted(clean.rule))
        closing += (
            f" FlashAttention's rule fails the clean twin on {len(clean.rule)} cases, false alarms that the last "
            f"column leaves out: {alarms}."
        )
    return INTRODUCTION[which] + "\n".join(lines) + "\n" + closing + "\n"


def rewrite(title: str, text: str) -> None:
    """Put a section of the page in the place of the one with its title, or behind the last."""
    head, *rest = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
    kept = {part.split("\n", 1)[0]: part for part in rest}
    kept[title] = f"{title}\n\n{text}"
    PAGE.write_text("\n\n".join(part.strip("\n") for part in (head, *kept.values())) + "\n")


def main(which: str, suite: str = "gate") -> None:
    """Run one half of the matrix and rewrite its section of the page."""
    about, name_of = {
        "forward": (ABOUT, kernel_name),
        "backward": (ABOUT_BACKWARD, backward_kernel_name),
        "fp8": (FAULTS, fp8_kernel_name),
    }[which]
    chosen = [
        case
        for case in cases.load_suite(suite).cases
        if case.kernel in ("fa4-sm100", "fa3")
        and case.operation in OPERATIONS[which]
        and (case.dtype in EIGHT_BITS) == (which == "fp8")
    ]
    rewrite(TITLE[which], section(which, about, scores(chosen, ["clean", *about], name_of)))


if __name__ == "__main__":
    main(*sys.argv[1:])
