"""Room 4: how far off, and is that good enough."""

from fa4verify.judgement.metrics import measure
from fa4verify.judgement.verdict import judge

__all__ = ["judge", "measure"]
