"""Generators of inputs by name, each with what it detects, its arguments with units, and a check.

Contract: a generator returns float64 arrays; `cases.draw` rounds them to float32 and then to the case's dtype, and
structured ones are representable already. The checks named in the docstrings are tests/cases/test_distributions_*.py.
To add one: write the function, give it a row in table.py, test its check, and regenerate docs/distributions.md.
"""

from fa4verify.cases.distributions.table import TABLE, Entry, bind, distributions, given

__all__ = ["TABLE", "Entry", "bind", "distributions", "given"]
