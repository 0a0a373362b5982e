"""What is wrong with a suite, in one line."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self


class SuiteError(ValueError):
    """A suite, a case or an expression that cannot be used.

    The message is one line: the file, the path of the key, what was found and what was expected.
    """

    def __init__(self, key: str, found: str, expected: str, *, file: str = "") -> None:
        self.key, self.found, self.expected, self.file = key, found, expected, file
        place = ": ".join(word for word in (file, key) if word)
        super().__init__(f"{place}: found {found}, expected {expected}".removeprefix(": "))

    def within(self, file: str) -> Self:
        """Return the same error with the file named."""
        return type(self)(self.key, self.found, self.expected, file=file)


def one_of(name: str, known: Iterable[str]) -> str:
    """Return what to expect in place of an unknown name: the nearest known one, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"{close[0]!r} (did you mean it?)" if close else f"one of {', '.join(map(repr, known))}"
