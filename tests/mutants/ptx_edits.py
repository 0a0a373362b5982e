r"""One place of a kernel's PTX changed: found by pattern, with a count of how often the pattern occurs.

Contract: a pattern is written as PTX, with a space for any white space, `%r`, `%rd`, `%p` for a register of that kind
and `$L` for a label; each of these is a group in the order of the text, `\1` refers to one, and `*` stands for the rest
of an operand list. A text in which the pattern does not occur exactly `of` times is a `Moved`: it is not the text that
the edit was written for. Exactly one occurrence, `nth`, is replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

PIECES = {"%rd": r"(%rd\d+)", "%r": r"(%r\d+)", "%p": r"(%p\d+)", "$L": r"(\$L\w+)", "*": r"([^;\n]*)"}
DELETED = "// (deleted)"


class Moved(AssertionError):  # noqa: N818 - says what it is
    """The pattern of an edit is not where it was."""


@dataclass(frozen=True)
class Edit:
    r"""Replace the `nth` of `of` occurrences of `pattern` by `replacement`, which may refer to groups as \1.

    `entry` is part of the name of the entry that is meant; the texts of other entries stay as they are.
    """

    entry: str
    pattern: str
    replacement: str = DELETED
    nth: int = 0
    of: int = 1

    def __call__(self, entry: str, text: str) -> str:
        """Return the edited text: what `execution.using(edit=...)` calls."""
        return self.applied(text) if self.entry in entry else text

    def applied(self, text: str) -> str:
        """Edit the text of the entry that is meant.

        Raises
        ------
        Moved
            The pattern occurs another number of times, or the replacement is what is there already.
        """
        found = list(self._expression.finditer(text))
        if len(found) != self.of:
            raise Moved(f"{self.pattern!r}: {len(found)} places in {self.entry}, expected {self.of}")
        match = found[self.nth]
        new = match.expand(self.replacement)
        if new == match.group():
            raise Moved(f"{self.pattern!r}: replaced by itself")
        return text[: match.start()] + new + text[match.end() :]

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        pieces = re.split(r"(%rd\b|%r\b|%p\b|\$L|\*|\\\d+|\s+)", self.pattern)
        return re.compile("".join(map(_piece, pieces)))


def _piece(text: str) -> str:
    if text.isspace():
        return r"\s+"
    if re.fullmatch(r"\\\d+", text):
        return text + r"\b"
    return PIECES.get(text, re.escape(text))
