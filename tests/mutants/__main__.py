"""A run file of the mutants: `python -m tests.mutants forward|backward OUT.jsonl [FIGURE.svg]`.

Every mutant and its clean twin on every case that catches one (catches.py), three minutes for the forward, one for the
backward. A report of the file has the figure `checks`, mutant by check with FlashAttention's rule as a column.
FIGURE.svg is that figure alone, on white: docs/mutants-forward.svg and docs/mutants-backward.svg. A case is drawn and
solved once for all mutants. How many cases of the whole gate fail each mutant is matrix.py's to tell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fa4verify import cases, flow, plan
from fa4verify.reports.figures.checks import matrix
from fa4verify.runs import RunWriter, read
from fa4verify.vocabulary import Suite

from .catalog import ABOUT, ABOUT_BACKWARD, backward_kernel_name, kernel_name
from .catches import CATCHES, CATCHES_BACKWARD, GATE
from .matrix import prepared, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fa4verify.vocabulary import Case, Record

HALVES = {
    "forward": (ABOUT, CATCHES, kernel_name),
    "backward": (ABOUT_BACKWARD, CATCHES_BACKWARD, backward_kernel_name),
}


def asked(which: str, mutants: tuple[str, ...] = ()) -> dict[str, tuple[Case, ...]]:
    """Return for each gate case its copies for the clean twin and all mutants, or for these.

    A case that repeats runs says nothing new of a kernel whose order is fixed: only the mutant it catches meets it.
    """
    about, catches, name_of = HALVES[which]
    mutants = mutants or tuple(about)
    copies = {}
    for case_id in dict.fromkeys(case_id for mutant in mutants for case_id in catches[mutant]):
        case = GATE[case_id]
        meet = [mutant for mutant in mutants if case.operation != "repeat" or case_id in catches[mutant]]
        copies[case_id] = tuple(cases.substitute_kernel((case,), name_of(name))[0] for name in ("clean", *meet))
    return copies


def records(copies: dict[str, tuple[Case, ...]]) -> Iterator[Record]:
    """Yield a Record for each copy; a case that repeats runs goes its own way."""
    for case_id, found in copies.items():
        case = GATE[case_id]
        shared = None if case.operation == "repeat" else prepared(case)
        for copy in found:
            yield flow.verify(copy) if shared is None else recorded(copy, shared)


def main(which: str, out: str, figure: str | None = None) -> None:
    """Write the run file and, where asked for, the figure."""
    copies = asked(which)
    everything = tuple(copy for found in copies.values() for copy in found)
    header = plan.header_of(Suite("gate", f"mutants of the {which}", everything), None)
    with RunWriter(Path(out), header) as writer:
        for number, record in enumerate(records(copies), 1):
            writer.write(record)
            if number % 100 == 0 or number == len(everything):
                print(f"{number}/{len(everything)}", flush=True)
    if figure:
        drawn = matrix(read(Path(out)).records)
        if drawn is None:
            raise SystemExit("no mutant failed: there is nothing to draw")
        Path(figure).write_text(drawn.svg.replace('style="', 'style="background: #fff; color: #000; ', 1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
