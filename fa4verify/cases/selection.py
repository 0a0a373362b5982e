"""Choose cases by an expression.

Contract, as pytest's -k: a word selects the cases whose id contains it (letter case ignored), `and`, `or`, `not` and
parentheses combine. Beyond that `field=value` compares a field of the case (`dtype=bf16`, `shape.head_dim=128`,
`distribution=normal`, `options.degree=2`, `id=...`) for equality, with * and ? as wildcards.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from fa4verify.cases.errors import SuiteError, one_of
from fa4verify.vocabulary import Case, Shape

Test = Callable[[Case], bool]

_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")
_FIELDS = tuple(field.name for field in msgspec.structs.fields(Case))
_SHAPE_FIELDS = tuple(field.name for field in msgspec.structs.fields(Shape))


def select(cases: Iterable[Case], expression: str) -> tuple[Case, ...]:
    """Return the cases that an expression selects, in their order; an empty expression selects all.

    Raises
    ------
    SuiteError
        The expression is not well formed, names a field that a case does not have, or is nested too deeply.
    """
    if not expression.strip():
        return tuple(cases)
    try:
        test = _Parser(expression).parse()
        return tuple(case for case in cases if test(case))
    except RecursionError:
        raise SuiteError(f"selection {expression[:40]!r}...", "too many nested terms", "a simpler one") from None


class _Parser:
    """Recursive descent: either = all {or all}, all = factor {and factor}, factor = not factor | (either) | word."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = _TOKEN.findall(expression)
        self.position = 0

    def parse(self) -> Test:
        test = self._either()
        if self.position < len(self.tokens):
            raise self._error(repr(self.tokens[self.position]), "'and', 'or' or the end")
        return test

    def _either(self) -> Test:
        tests = [self._all()]
        while self._accept("or"):
            tests.append(self._all())
        return lambda case: any(test(case) for test in tests)

    def _all(self) -> Test:
        tests = [self._factor()]
        while self._accept("and"):
            tests.append(self._factor())
        return lambda case: all(test(case) for test in tests)

    def _factor(self) -> Test:
        if self._accept("not"):
            inner = self._factor()
            return lambda case: not inner(case)
        if self._accept("("):
            inner = self._either()
            if not self._accept(")"):
                raise self._error(self._next(), "')'")
            return inner
        if self.position == len(self.tokens) or self.tokens[self.position] in (")", "and", "or"):
            raise self._error(self._next(), "a word or field=value")
        token = self.tokens[self.position]
        self.position += 1
        return self._term(token)

    def _term(self, token: str) -> Test:
        name, equals, value = token.partition("=")
        if not equals:
            return lambda case: token.lower() in case.id.lower()
        head, _, rest = name.partition(".")
        if head not in _FIELDS:
            raise self._error(repr(token), f"a field of a case, {one_of(head, _FIELDS)}")
        if head == "shape" and rest not in _SHAPE_FIELDS:
            raise self._error(repr(token), f"a field of the shape, {one_of(rest, _SHAPE_FIELDS)}")
        return lambda case: any(fnmatchcase(text, value) for text in _texts(case, head, rest))

    def _accept(self, token: str) -> bool:
        found = self.position < len(self.tokens) and self.tokens[self.position] == token
        self.position += found
        return found

    def _next(self) -> str:
        return repr(self.tokens[self.position]) if self.position < len(self.tokens) else "the end"

    def _error(self, found: str, expected: str) -> SuiteError:
        return SuiteError(f"selection {self.expression!r}", found, expected)


def _texts(case: Case, head: str, rest: str) -> list[str]:
    """Return the texts that a field's value may be written as; none where the case does not have it."""
    value: Any = getattr(case, head)
    if head == "distribution":
        if rest and rest != "name" and rest not in value.arguments:
            return []
        value = value.name if rest in ("", "name") else value.arguments[rest]
    elif head == "shape":
        value = getattr(value, rest)
    elif isinstance(value, dict):
        if rest not in value:
            return []
        value = value[rest]
    elif head == "budgets":
        return [budget.name for budget in value]
    if isinstance(value, bool):
        return [str(value).lower(), str(value)]
    if isinstance(value, tuple | list):
        return [",".join(map(str, value)), *map(str, value)]
    return [str(value), f"{value:g}"] if isinstance(value, float) else [str(value)]
