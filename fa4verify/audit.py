"""`fa4verify audit`: the numerics of the installed flash-attn-4, read from its PTX and held to the contract.

Contract: prints one line a verdict that is not PASS, with what was found and agreed, then counts; for one configuration
all facts with their lines of PTX. Exit code 0: all PASS or SKIPPED, and some PASS; 1: a FAIL; 3: none, but something
INCONCLUSIVE, or nothing to pass. Nothing is executed: compiling FA4's kernels needs no GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from fa4verify import kernels
from fa4verify.kernels.shipped.audit import configurations, contract, results
from fa4verify.kernels.shipped.audit.facts import ranges
from fa4verify.plan import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fa4verify.kernels.shipped.audit.configurations import Configuration
    from fa4verify.kernels.shipped.audit.contract import Contract, Judged
    from fa4verify.kernels.shipped.audit.results import Result

COLOURS: dict[contract.Verdict, str] = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "SKIPPED": "dim"}
_SHOWN = 40  # configurations that are not PASS, on a terminal; --json has all


def chosen(arch: Iterable[str], config: Iterable[str], *, every: bool) -> tuple[Configuration, ...]:
    """Return the configurations that the options mean: of the covering part, or of the whole grid.

    `config` are words of an id or patterns over it; an id is found in the whole grid too.

    Raises
    ------
    BadRequest
        An unknown architecture, or nothing that matches.
    """
    from fa4verify.kernels.shipped.target import TARGETS

    wanted, words = tuple(arch), tuple(word for one in config for word in one.split())
    if unknown := [one for one in wanted if one not in TARGETS]:
        raise BadRequest(f"audit: no architecture {unknown[0]}; there are {', '.join(TARGETS)}")
    grid = configurations.every()
    if not words and tuple(config):
        raise BadRequest("audit: --config is empty")
    exact = [one for one in grid if one.id in words]
    if exact:
        if strange := [word for word in words if word not in {one.id for one in exact}]:
            raise BadRequest(f"audit: {strange[0]!r} beside an id; name ids alone, or words and patterns alone")
        if elsewhere := [one.id for one in exact if wanted and one.arch not in wanted]:
            raise BadRequest(f"audit: {elsewhere[0]} is not of {', '.join(wanted)}")
        return tuple(exact)
    found = tuple(
        one
        for one in (grid if every else configurations.covering())
        if (not wanted or one.arch in wanted) and all(_matches(one.id, word) for word in words)
    )
    if not found:
        of = "the grid" if every else "the covering set; --all has the whole grid"
        raise BadRequest(f"audit: {' '.join((*wanted, *words))!r} matches no configuration of {of}")
    return found


def _matches(identity: str, word: str) -> bool:
    return fnmatchcase(identity, word) if "*" in word else f"-{word}-" in f"-{identity}-"


def audit(asked: tuple[Configuration, ...], *, workers: int | None, fresh: bool, json: bool) -> int:
    """Audit what is installed; print the verdicts and return the exit code."""
    agreed = _contract()
    judged = [contract.judge(one, agreed) for one in collected(asked, workers=workers, fresh=fresh, quiet=json)]
    if json:
        sys.stdout.write(msgspec.json.encode(_as_json(judged)).decode() + "\n")
    else:
        _tell(judged)
        _tell_versions(agreed)
    return exit_code(judged)


def write_contract(asked: tuple[Configuration, ...], *, workers: int | None, fresh: bool) -> int:
    """Audit and make what was found the contract; provenance is kept."""
    from fa4verify.kernels.shipped.audit.releases import installed

    found = collected(asked, workers=workers, fresh=fresh)
    provenance = contract.load().provenance if contract.CONTRACT.exists() else {}
    agreed = {**installed(), "date": datetime.now(UTC).date().isoformat()}
    try:
        text = contract.text_of(contract.contract_of(found, agreed, provenance))
    except ValueError as error:
        raise BadRequest(f"audit: {error}") from error
    contract.CONTRACT.write_text(text, "utf-8")
    print(
        f"{contract.CONTRACT}: {sum(not one.refused for one in found)} configurations; read the diff before you keep it"
    )
    return 0


def collected(
    asked: tuple[Configuration, ...], *, workers: int | None, fresh: bool, quiet: bool = False
) -> list[Result]:
    """Return the results in the order asked for, with a bar on stderr."""
    from fa4verify.sweep import default_workers

    if reason := kernels.availability("fa4@sm_90a"):
        raise BadRequest(f"audit: {reason}")
    found: dict[str, Result] = {}
    bar = Progress(console=Console(stderr=True, quiet=quiet), transient=True)
    with bar:
        task = bar.add_task("compiling and reading PTX", total=len(asked))
        for result in results.audited(asked, workers=workers or default_workers(), fresh=fresh):
            found[result.configuration.id] = result
            bar.advance(task)
    return [found[one.id] for one in asked]


def exit_code(judged: Iterable[Judged]) -> int:
    """Return 1 for a FAIL, 3 where nothing failed and something is open or nothing passed, else 0."""
    verdicts = Counter(one.verdict for one in judged)
    if verdicts["FAIL"]:
        return 1
    return 3 if verdicts["INCONCLUSIVE"] or not verdicts["PASS"] else 0


def _contract() -> Contract:
    try:
        return contract.load()
    except ValueError as error:
        raise BadRequest(f"audit: {error}") from error


def _as_json(judged: list[Judged]) -> dict[str, object]:
    return {
        "exit_code": exit_code(judged),
        "counts": Counter(one.verdict for one in judged),
        "configurations": {
            one.result.configuration.id: {
                "verdict": one.verdict,
                "findings": one.findings,
                "facts": one.result.facts,
            }
            for one in judged
        },
    }


def _tell(judged: list[Judged]) -> None:
    console = Console(highlight=False)
    open_ones = [one for one in judged if one.verdict in ("FAIL", "INCONCLUSIVE")]
    for one in open_ones[:_SHOWN]:
        console.print(f"[{COLOURS[one.verdict]}]{one.verdict}[/] {one.result.configuration.id}")
        for finding in one.findings:
            console.print(f"  {escape(finding)}", soft_wrap=True)
    if len(open_ones) > _SHOWN:
        console.print(f"and {len(open_ones) - _SHOWN} more; --json has all")
    refusals = Counter(finding for one in judged if one.verdict == "SKIPPED" for finding in one.findings)
    for reason, count in refusals.most_common():
        console.print(f"[{COLOURS['SKIPPED']}]SKIPPED {count}: {escape(reason)}[/]", soft_wrap=True)
    if len(judged) == 1 and judged[0].result.kernels:
        console.print(_facts(judged[0].result))
    counts = Counter(one.verdict for one in judged)
    console.print(", ".join(f"[{COLOURS[verdict]}]{counts[verdict]} {verdict}[/]" for verdict in COLOURS))


def _tell_versions(agreed: Contract) -> None:
    """Say where the contract is of other versions than those installed: a digest is of one release with one DSL."""
    from fa4verify.kernels.shipped.audit.releases import installed

    other = [
        f"{name} {agreed.agreed[name]} ({now} is installed)"
        for name, now in installed().items()
        if agreed.agreed.get(name, now) != now
    ]
    if other:
        print(f"The contract is of {', '.join(other)}: another release or DSL is put together otherwise.")


def _facts(result: Result) -> Table:
    table = Table("fact", "value", "lines of PTX", title=result.configuration.id, title_justify="left")
    for name, fact in result.facts.items():
        value = escape(fact.value) if fact.value is not None else f"[yellow]not found: {escape(fact.why)}[/]"
        lines = ranges(fact.lines) if fact.lines else ""
        table.add_row(name, value, lines if len(lines) < 40 else f"{lines[:36]} ...")
    return table
