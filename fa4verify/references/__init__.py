"""Room 3: what is true."""

from fa4verify.references.fp64 import solve

__all__ = ["solve"]
