"""Room 1: what to verify."""

from fa4verify.cases.distributions import draw
from fa4verify.cases.suite import load_suite

__all__ = ["draw", "load_suite"]
