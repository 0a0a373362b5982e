"""Room 5: who reads the verdict.

`summarise` turns a run into the Summary that `terminal`, `markdown`, `junit` and `html` render; `exit_code` is what a
shell sees. `progress` shows a run that is still going on.
"""

from fa4verify.reports.summary import Row, Summary, exit_code, summarise

__all__ = ["Row", "Summary", "exit_code", "summarise"]
