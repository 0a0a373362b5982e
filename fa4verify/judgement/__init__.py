"""Room 4: how far off, and is that good enough."""

from fa4verify.judgement.fa_rule import fa_rule
from fa4verify.judgement.metrics import measure
from fa4verify.judgement.vacuity import admit
from fa4verify.judgement.verdict import checked, judge

__all__ = ["admit", "checked", "fa_rule", "judge", "measure"]
