"""What the numerics are agreed to be, and the verdict on what an audit found.

Contract: `contract.toml` holds, for each kind of kernel and each fact, its values and which configurations have them:
patterns over configuration ids that stand for ids of the list `configurations` and nothing else, so that what was never
audited has no row. PASS: every agreed fact was found and is equal, and no rule (rules.py) is broken. FAIL: a fact
differs or a rule is broken. INCONCLUSIVE: only a digest of how the kernel is put together differs (`DIGESTS`: of 23
such changes between 4.0.0b16 and b36 none changed a bit of what was executed), a fact was not found, the configuration
has no row, or nothing could be compiled. SKIPPED: FA4 refuses, as the contract says; a refusal of what was agreed upon
is INCONCLUSIVE.

The file is written by `fa4verify audit --write-contract` alone, which keeps `[provenance]` as it finds it.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from fa4verify.kernels.shipped.audit.results import Result  # noqa: TC001 - msgspec reads the annotation
from fa4verify.kernels.shipped.audit.rules import broken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTRACT = Path(__file__).parent.parent / "contract.toml"
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED"]
DIGESTS = {
    "float_flow": "its floats are put together otherwise; run it (fa4@...), then agree or do not",
    "program": "it is another program, if only in an address; run it (fa4@...), then agree or do not",
}
_HEAD = """# What flash-attn-4's kernels compute, as agreed: facts read from its PTX by data flow (docs/audit.md).
# Written by `fa4verify audit --write-contract`; only [provenance] is written by hand, and kept.
# A row: a value, and the configurations that have it. A pattern stands for the ids of `configurations` that it matches.
"""


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agreed facts: kind of kernel -> fact -> value -> patterns of configuration ids."""

    agreed: dict[str, str]  # what was installed, and when the contract was written
    configurations: tuple[str, ...]
    refused: tuple[str, ...]
    provenance: dict[str, str]
    kernels: dict[str, dict[str, dict[str, tuple[str, ...]]]]

    def facts(self, identity: str) -> dict[str, str]:
        """Return the agreed value of every fact of a configuration, named `kind.fact`."""
        if identity not in self.configurations:
            return {}
        return {
            f"{kind}.{name}": value
            for kind, facts in self.kernels.items()
            for name, values in facts.items()
            for value, patterns in values.items()
            if any(fnmatchcase(identity, pattern) for pattern in patterns)
        }


class Judged(msgspec.Struct, frozen=True):
    """A verdict on one configuration, with sentences that say why."""

    result: Result
    verdict: Verdict
    findings: tuple[str, ...] = ()


def load(path: Path = CONTRACT) -> Contract:
    """Read a contract.

    Raises
    ------
    ValueError
        It is no TOML, or not a contract.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Contract)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path.name}: {' '.join(str(error).split())}") from error


def judge(result: Result, contract: Contract) -> Judged:
    """Compare what was found with what was agreed, and apply the rules."""
    identity = result.configuration.id
    agreed = contract.facts(identity)
    if result.refused:
        if identity in contract.refused or not agreed:
            return Judged(result, "SKIPPED", (result.refused,))
        return Judged(result, "INCONCLUSIVE", (f"refused, though the contract has facts: {result.refused}",))
    if result.failed:
        return Judged(result, "INCONCLUSIVE", (f"nothing found: {result.failed}",))
    broken_rules, open_ones = unsafe(result)
    wrong = [f"unsafe: {one}" for one in broken_rules]
    found = result.facts
    for name in sorted({*agreed, *found}):
        fact = found.get(name)
        if fact is None or fact.value is None:
            open_ones.append(f"{name} was not found{f' ({fact.why})' if fact and fact.why else ''}")
        elif name in agreed and agreed[name] != fact.value:
            where = f" (PTX line {fact.lines[0]})" if fact.lines else ""
            digest = DIGESTS.get(name.split(".")[1])
            (open_ones if digest else wrong).append(
                f"{name} is {fact.value!r}, agreed {agreed[name]!r}{where}{f': {digest}' if digest else ''}"
            )
        elif name not in agreed and agreed:
            open_ones.append(f"{name} is {fact.value!r}; the contract has no row for it")
    if not agreed:
        open_ones.append("the contract has no row for this configuration")
    if wrong:
        return Judged(result, "FAIL", tuple(wrong))
    return Judged(result, "INCONCLUSIVE" if open_ones else "PASS", tuple(open_ones))


def unsafe(result: Result) -> tuple[list[str], list[str]]:
    """Return the rules that a forward breaks, and those that could not be checked, as sentences."""
    if "forward" not in result.kernels:
        return [], []
    sentences, unknown = broken(result.kernels["forward"])
    return sentences, [f"rule {one!r} could not be checked" for one in unknown]


def contract_of(results: Iterable[Result], agreed: Mapping[str, str], provenance: Mapping[str, str]) -> Contract:
    """Return the contract that says what these results say.

    Raises
    ------
    ValueError
        A result without facts that is no refusal, or with a fact that was not found: nothing to agree upon.
    """
    by_id = {one.configuration.id: one for one in results}
    for identity, one in by_id.items():
        if one.failed or any(fact.value is None for fact in one.facts.values()):
            raise ValueError(f"{identity}: {one.failed or 'a fact was not found'}; a contract needs all of them")
    audited = tuple(sorted(identity for identity, one in by_id.items() if not one.refused))
    rows: dict[str, dict[str, dict[str, list[str]]]] = {}
    for identity in audited:
        for kind, facts in by_id[identity].kernels.items():
            for name, fact in facts.items():
                rows.setdefault(kind, {}).setdefault(name, {}).setdefault(str(fact.value), []).append(identity)
    kernels = {
        kind: {
            name: {value: patterns(ids, audited) for value, ids in sorted(values.items())}
            for name, values in sorted(facts.items())
        }
        for kind, facts in sorted(rows.items())
    }
    refused = tuple(sorted(identity for identity, one in by_id.items() if one.refused))
    return Contract(dict(agreed), audited, refused, dict(provenance), kernels)


def patterns(chosen: Iterable[str], audited: Iterable[str]) -> tuple[str, ...]:
    """Return few patterns, greedily chosen, that match the chosen ids and no other of the audited ones."""
    every = tuple(audited)
    left = sum(1 << every.index(identity) for identity in chosen)
    others = (1 << len(every)) - 1 - left
    found = []
    while left:
        best, most = "", 0
        first = every[(left & -left).bit_length() - 1]  # some pattern has to match it
        for pattern in _generalised(first):
            matched = _matched(pattern, every)
            if not matched & others and (matched & left).bit_count() > most:
                best, most = pattern, (matched & left).bit_count()
        found.append(best)
        left &= ~_matched(best, every)
    return tuple(sorted(found))


@cache
def _matched(pattern: str, identities: tuple[str, ...]) -> int:
    """Return a bit for each id that the pattern matches."""
    return sum(1 << at for at, identity in enumerate(identities) if fnmatchcase(identity, pattern))


@cache
def _generalised(identity: str) -> tuple[str, ...]:
    """Return the id with every choice of its parts replaced by `*`; the first, fwd or bwd, stays."""
    direction, *parts = identity.split("-")
    made = {
        "-".join((direction, *(part if keep else "*" for part, keep in zip(parts, chosen, strict=True))))
        for chosen in product((True, False), repeat=len(parts))
    }
    return tuple(sorted(made, key=lambda pattern: (len(pattern), pattern)))


def text_of(contract: Contract) -> str:
    """Return a contract as TOML."""
    lines = [_HEAD]
    for name in ("configurations", "refused"):
        lines += [f"{name} = [", *(f'  "{one}",' for one in getattr(contract, name)), "]", ""]
    for name in ("agreed", "provenance"):
        lines += [f"[{name}]", *(f"{key} = {_quoted(value)}" for key, value in getattr(contract, name).items()), ""]
    for kind, facts in contract.kernels.items():
        for name, values in facts.items():
            lines.append(f"[kernels.{kind}.{name}]")
            for value, some in values.items():
                shown = ", ".join(map(_quoted, some))
                lines.append(f"{_quoted(value)} = [{shown}]" if len(shown) < 90 else _long(value, some))
            lines.append("")
    return "\n".join(lines)


def _long(value: str, some: tuple[str, ...]) -> str:
    return "\n".join([f"{_quoted(value)} = [", *(f"  {_quoted(one)}," for one in some), "]"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
