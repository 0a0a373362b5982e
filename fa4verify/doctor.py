"""`fa4verify doctor`: what is installed, what can run here, and whether this machine's arithmetic can be trusted.

Contract: reports, never raises; returns whether the CPU path is sound. That needs every package that runs on a CPU in
its wanted range and no failed check of `devices.self_test`; what only a GPU or FA4 itself needs is shown, not judged.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fa4verify import __version__, devices, kernels
from fa4verify.kernels.shipped.installed import installed

# FA4 and its compiler: the emulations read nothing of them.
_NOT_FOR_THE_CPU = {"flash-attn-4", "nvidia-cutlass-dsl", "triton"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red", "absent": "dim"}


def examine(console: Console | None = None) -> bool:
    """Print the tables; return whether the CPU path is sound."""
    console = console or Console()
    packages, checks = _packages(), devices.self_test()
    _print(console, f"packages of fa4verify {__version__}", packages)
    rows = {name: kernels.availability(name) for name in kernels.names()}
    _print(console, "kernels", [("absent" if why else "ok", name, why or "can run here") for name, why in rows.items()])
    _print(console, "FA4's own kernels", [*installed()])
    _print(console, "arithmetic", [(check.status, check.name, check.found) for check in checks])
    sound = not any(status == "fail" for status, *_ in (*packages, *((check.status,) for check in checks)))
    console.print(Text(f"\nthe CPU path is {'sound' if sound else 'NOT sound'}", _COLOURS["ok" if sound else "fail"]))
    return sound


def _packages() -> list[tuple[str, str, str]]:
    """Return status, name, and found against wanted, for everything that fa4verify declares it needs."""
    rows = []
    for requirement in map(Requirement, requires("fa4verify") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = str(requirement.specifier) or "any"
        bad = "absent" if requirement.name in _NOT_FOR_THE_CPU else "fail"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            rows.append((bad, requirement.name, f"not installed, wanted {wanted}"))
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        rows.append(("ok" if fits else bad, requirement.name, f"{found}, wanted {wanted}"))
    return rows


def _print(console: Console, title: str, rows: list[tuple[str, str, str]]) -> None:
    console.print(Text(f"\n{title}", "bold"))
    table = Table(box=None, show_header=False, pad_edge=False)
    for status, name, found in rows:
        table.add_row(Text(status, _COLOURS[status]), name, Text(found))
    console.print(table)
