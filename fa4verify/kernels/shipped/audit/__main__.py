"""`python -m fa4verify.kernels.shipped.audit`: audit what this interpreter has installed, for another process.

Contract: reads configuration ids, one a line, from stdin; writes one Result a line as JSON to the file that is named.
What a release's own environment runs (releases.py), so that no environment has two releases in one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from fa4verify.kernels.shipped.audit.configurations import every
from fa4verify.kernels.shipped.audit.results import audited


def main(arguments: list[str]) -> int:
    """Audit the configurations that stdin names with as many workers as the second argument says."""
    out, workers = Path(arguments[0]), int(arguments[1])
    known = {one.id: one for one in every()}
    wanted = [known[line] for line in sys.stdin.read().split()]
    with out.open("wb") as file:
        for result in audited(wanted, workers=workers):
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
