"""Our fits against Sollya's fpminimax on the same constraint, in the same run: writes exp2_peers.md beside itself.

    python benchmarks/exp2_peers.py [SECONDS]

Each figure is ours / theirs, of one fit an objective against fpminimax's one set, over all fractions that occur, in
fp32 (`fa4verify.exp2.merit`): 1 is a draw, below 1 we are better. The bar: nowhere above 1, and below 1 in bf16.
Exit code 1 where that fails. SECONDS (6) is the search time of a fit from degree 4 on.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import numpy as np

from fa4verify.exp2 import sollya
from fa4verify.exp2.fit import fit
from fa4verify.exp2.merit import merit
from fa4verify.exp2.remez import Shape
from fa4verify.exp2.targets import OBJECTIVES

_DEGREES = range(1, 7)
_PEERS = {"one": ("one-bit", "fixed"), "free": ("free",)}
_NAMES = {"one-bit": "p0 = 1, as FA4 called it", "fixed": "p0 = 1, fixed", "free": "p0 free"}


def main(seconds: float = 6.0) -> int:
    """Run everything, write the table, return the exit code."""
    lines, failures = [], []
    for degree in _DEGREES:
        for constant, ways in _PEERS.items():
            ours, took = {}, []
            for name in OBJECTIVES:
                begin = time.perf_counter()
                ours[name] = fit(Shape(degree, constant), (name,), seconds=seconds)[0].merit.objective(name)  # type: ignore[arg-type]
                took.append(time.perf_counter() - begin)
            for way in ways:
                answer = sollya.fpminimax(degree, way)  # type: ignore[arg-type]
                theirs = merit(np.array(answer.coefficients, np.float32))
                cells = []
                for name in OBJECTIVES:
                    value, other = ours[name], theirs.objective(name)
                    ratio = value / other if other else 1.0 + value
                    cells.append(f"{ratio:.3f}" if ratio >= 5e-4 else f"{ratio:.0e}")
                    if value > other or (name == "bf16" and other and value >= other):
                        failures.append(f"degree {degree}, {_NAMES[way]}, {name}: {value:.6g} against {other:.6g}")
                mean = sum(took) / len(took)
                seconds_cells = f"{mean:.1f} | {answer.seconds:.2f} | {mean / answer.seconds:.0f}"
                lines.append(f"| {degree} | {_NAMES[way]} | {' | '.join(cells)} | {seconds_cells} |")
                print(lines[-1], flush=True)
    path = Path(__file__).with_name("exp2_peers.md")
    path.write_text("\n".join([*_head(seconds), *lines, "", *_tail(failures)]) + "\n", encoding="utf-8")
    print(*failures, sep="\n")
    return 1 if failures else 0


def _head(seconds: float) -> list[str]:
    version = sollya.version()
    return [
        "# Fits against Sollya's fpminimax",
        "",
        "Written by `python benchmarks/exp2_peers.py`; every figure is ours / theirs, one fit of ours an objective, on",
        f"the same constraint, in the same run (below 1: ours is better). {version}, {platform.machine()},",
        f"{seconds:g} s of search a fit from degree 4 on. fpminimax minimises the largest error in real arithmetic and",
        "knows neither fp32 evaluation nor the other objectives; its time is that of the process.",
        "",
        f"| degree | constraint | {' | '.join(OBJECTIVES)} | s a fit | s Sollya | time ratio |",
        f"|{'---|' * (5 + len(OBJECTIVES))}",
    ]


def _tail(failures: list[str]) -> list[str]:
    if not failures:
        return ["Never worse in any objective; better in bf16 mismatches everywhere."]
    return ["Worse, or not better in bf16:", "", *(f"- {line}" for line in failures)]


if __name__ == "__main__":
    sys.exit(main(*(float(word) for word in sys.argv[1:])))
