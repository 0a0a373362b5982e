"""Every PTX mutant on its case: `python -m tests.mutants.shipped_matrix` rewrites its section of docs/mutants.md.

About a minute. Ends with an error where a mutant is not what the catalogue says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .matrix import rewrite
from .shipped import CASES, MUTANTS
from .shipped_judge import judged

if TYPE_CHECKING:
    from .shipped import Mutant
    from .shipped_judge import Judged

TITLE = "## FA4's own kernels"
INTRODUCTION = """Each row is FA4's own PTX (flash-attn-4 4.0.0b36, head dimension 64, causal, bf16) with one place
changed, executed as `fa4@sm_90a` or `fa4@sm_100a` on one small case of `tests/mutants/shipped.toml` (200 queries, 384
or 512 keys). The cases hold the gate's limits on errors and, against the emulation, `bits_unlike_baseline` = 0.
`tests/mutants/test_shipped.py` holds every row on each run and passes the untouched twins; the table is written by
`python -m tests.mutants.shipped_matrix`. The last column says whether the limits on errors alone notice.

| mutant | what is wrong | schedule | elements with other bits, or fault | errors |
|---|---|---|---|---|
"""
SILENT = """
These change no bit, and why:

| mutant | what is changed | schedule | why nothing notices |
|---|---|---|---|
"""


def row(mutant: Mutant, found: Judged) -> str:
    """Return the mutant's row of the table of those that are noticed."""
    told = f"| {mutant.name} | {mutant.entry.about} | {mutant.entry.schedule} |"
    if found.unlike is None:
        return f"{told} {found.outcome} | |"
    unlike = ", ".join(f"{count} of {tensor}" for tensor, count in found.unlike.items() if count)
    return f"{told} {unlike} | {'notice' if found.by_errors else '**let it through**'} |"


def main() -> None:
    """Run all of them and rewrite the section."""
    rows, silent = [], []
    for name, mutant in MUTANTS.items():
        found = judged(CASES[mutant.case], mutant.kernel)
        entry = mutant.entry
        expected = "PASS" if entry.silent else entry.fault or "FAIL"
        if found.outcome != expected:
            raise SystemExit(f"{name}: {found.outcome}, expected {expected}: {found.message}")
        print(name, found.outcome, flush=True)
        if entry.silent:
            silent.append(f"| {name} | {entry.about} | {entry.schedule} | {entry.silent} |")
        else:
            rows.append(row(mutant, found))
    let_through = sum("let it through" in line for line in rows)
    closing = f"\n{len(rows)} are noticed, {let_through} of them by bits alone.\n"
    rewrite(TITLE, INTRODUCTION + "\n".join(rows) + "\n" + closing + SILENT + "\n".join(silent) + "\n")


if __name__ == "__main__":
    main()
