"""Room 1: what to verify. Suites in TOML become cases, cases become inputs. Importing it loads no torch."""

from fa4verify.cases.derived import last_rows, substitute_kernel
from fa4verify.cases.distributions import distributions
from fa4verify.cases.draw import draw, in_format
from fa4verify.cases.errors import SuiteError
from fa4verify.cases.selection import select
from fa4verify.cases.suite import load_suite, suites

__all__ = [
    "SuiteError",
    "distributions",
    "draw",
    "in_format",
    "last_rows",
    "load_suite",
    "select",
    "substitute_kernel",
    "suites",
]
