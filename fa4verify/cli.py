"""The command line."""

from __future__ import annotations

import sys

from fa4verify.cases import load_suite
from fa4verify.verify import verify


def main() -> None:
    """Verify every case of a suite and print a line for each."""
    records = [verify(case) for case in load_suite(sys.argv[1] if len(sys.argv) > 1 else "smoke").cases]
    for record in records:
        print(record.verdict.outcome, record.case.id, *(finding.message for finding in record.verdict.findings))
    sys.exit(any(record.verdict.outcome != "PASS" for record in records))
