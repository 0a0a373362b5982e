"""Text of PTX to tokens.

Contract: comments and white space vanish, offsets stay, so that a statement knows its line and its text. A character
that PTX does not know is a PtxError with its line.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

from fa4verify.ptx.errors import Problem, PtxError

# A word may hold dots and double colons: `%tid.x`, `.reg`, `cp.async.bulk.tensor.4d.shared::cta.global`.
_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<word>[.%]?[A-Za-z_$][\w$]*(?:(?:::|\.)[\w$]+)*|_|%)
  | (?P<number>(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[0-9]+U?)(?![\w.]))
  | (?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?)
  | (?P<string>"[^"\n]*")
  | (?P<mark>[][{}()<>,;:@!|+=-])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A text that finds the line of an offset."""

    text: str
    starts: tuple[int, ...]  # offset of every line

    @classmethod
    def of(cls, text: str) -> Source:
        """Split `text` at its line feeds."""
        return cls(text, (0, *(match.end() for match in re.finditer("\n", text))))

    def line(self, offset: int) -> int:
        """Return the line of `offset`, from 1."""
        return bisect.bisect_right(self.starts, offset)

    def excerpt(self, start: int, end: int) -> str:
        """Text from `start` to `end` on one line, without comments."""
        return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", self.text[start:end], flags=re.DOTALL).split())

    def text_of(self, line: int) -> str:
        """Return the whole line, as it stands."""
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return self.text[self.starts[line - 1] : end].rstrip()


Token = tuple[str, str, int]  # kind (word, number, decimal, string, mark), text, offset


def tokenize(source: Source) -> list[Token]:
    """Tokens of `source`, with an `end` token behind the last."""
    tokens: list[Token] = []
    position = 0
    text = source.text
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = source.line(position)
            problem = Problem(
                line, source.text_of(line).strip(), f"{text[position : position + 12].split()[0]!r} is not PTX"
            )
            raise PtxError((problem,))
        kind = str(match.lastgroup)
        if kind != "skip":
            tokens.append((kind, match.group(), position))
        position = match.end()
    tokens.append(("end", "", len(text)))
    return tokens


def integer(text: str) -> int:
    """Value of a number token that is not a floating-point literal: decimal, 0x, 0b or octal."""
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)
