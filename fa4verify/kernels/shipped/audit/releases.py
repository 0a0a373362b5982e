"""Releases of flash-attn-4, each with the DSL it needs, in an environment of its own.

Contract: `environment(release)` returns the Python of a virtual environment below the user's cache that has this
release and what its metadata asks for, made at the first call by pip (14 s and 0.3 GB each). The caller's environment
is never written: torch, numba and the rest are lent to the new one by a folder of links that lies outside of it, so
that pip finds them installed but counts them as not its own; FA4, quack and the DSL are not lent. `releases()` asks
the package index what there is. Without the index both raise Unreachable.

Known failure mode: pip takes the newest DSL that a release's metadata allows, with which the release may not compile;
`environment(release, dsl)` has another one, and `oldest_dsl` tells the one that the metadata starts from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import Requirement

from fa4verify.kernels.shipped.audit.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fa4verify.kernels.shipped.audit.configurations import Configuration

PACKAGE = "flash-attn-4"
DSL = "nvidia-cutlass-dsl"
DECIDING = (PACKAGE, DSL, "quack-kernels")  # whose versions decide what is compiled
_OWN = (*DECIDING, "fa4verify", "pip", "setuptools", "wheel")  # distributions that are not lent
_OWN_PREFIXES = ("nvidia-cutlass-dsl",)
_OFFLINE = ("NewConnectionError", "ConnectionError", "name resolution", "Max retries", "ProxyError", "timed out")
_PIP = ("--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20")
_PIP_S = 1200


class Unreachable(Exception):  # noqa: N818 - says what is the matter, to the user
    """The package index cannot be asked, or does not have the release; one line."""


def installed() -> dict[str, str]:
    """Return the versions that decide what is compiled, in this interpreter."""
    found = {}
    for package in DECIDING:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def releases() -> tuple[str, ...]:
    """Return every release that the package index has, the oldest first.

    Raises
    ------
    Unreachable
        The index does not answer.
    """
    told = _pip(sys.executable, "index", "versions", PACKAGE, "--pre")
    line = next((one for one in told.splitlines() if one.startswith("Available versions:")), "")
    found = re.findall(r"[^\s,:]+", line.removeprefix("Available versions:"))
    if not found:
        raise Unreachable(f"the package index lists no release of {PACKAGE}")
    return tuple(reversed(found))


def environment(release: str, dsl: str | None = None) -> Path:
    """Return the interpreter that has this release; this one where it is the installed release.

    `dsl` is a version of nvidia-cutlass-dsl, by default pip's choice: the newest that the release allows.

    Raises
    ------
    Unreachable
        The index does not answer, or pip cannot install the release; pip's own words.
    """
    if installed().get(PACKAGE) == release and dsl is None:
        return Path(sys.executable)
    name = f"{release}-dsl{dsl}" if dsl else release
    folder = home() / name
    python = folder / "bin" / "python"
    if (folder / "ready").is_file():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _done([sys.executable, "-m", "venv", str(folder)], "venv")
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "zz-lent-to-fa4verify.pth").write_text(f"{_lent(name)}\n")
    try:
        wanted = (f"{DSL}=={dsl}",) if dsl else ()
        _pip(str(python), "install", "--quiet", f"{PACKAGE}=={release}", *wanted, *_pinned())
    except Unreachable:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / "ready").write_text(json.dumps(versions_in(python)))
    return python


def oldest_dsl(python: Path) -> str | None:
    """Return the DSL that the metadata of another interpreter's release starts from; None where it names one only."""
    program = f"import json; from importlib.metadata import requires; print(json.dumps(requires({PACKAGE!r})))"
    asked = [Requirement(one) for one in json.loads(_done([str(python), "-c", program], "metadata"))]
    for one in asked:
        if one.name == DSL and one.marker is None:
            return next((each.version for each in one.specifier if each.operator == ">="), None)
    return None


def forget(release: str) -> None:
    """Remove a release's environments; what was found in them stays."""
    for folder in home().glob(f"{release}*"):
        if folder.name.split("-")[0] == release:
            shutil.rmtree(folder, ignore_errors=True)


def versions_in(python: Path) -> dict[str, str]:
    """Return what `installed` says in another interpreter."""
    program = (
        "import json; from fa4verify.kernels.shipped.audit.releases import installed; print(json.dumps(installed()))"
    )
    found: dict[str, str] = json.loads(_done([str(python), "-c", program], "versions", env=_environ()))
    return found


def audited_in(python: Path, asked: Iterable[Configuration], *, workers: int) -> list[Result]:
    """Audit configurations with another interpreter's FA4; a process that dies is told in each Result it owes."""
    wanted = tuple(asked)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results.jsonl")
        told = subprocess.run(
            [str(python), "-m", "fa4verify.kernels.shipped.audit", str(out), str(workers)],
            input="\n".join(one.id for one in wanted),
            env=_environ(),
            cwd=folder,
            text=True,
            capture_output=True,
            check=False,
        )
        lines = out.read_bytes().splitlines() if out.exists() else []
    found = {one.configuration.id: one for one in (msgspec.json.decode(line, type=Result) for line in lines)}
    said = _last_line(told.stderr)
    return [found.get(one.id) or Result(one, failed=f"the process ended ({told.returncode}): {said}") for one in wanted]


def executed_in(python: Path, folder: Path) -> str:
    """Run the cases of `folder` (run.py) with another interpreter's FA4; return '' or what it said at its end."""
    told = subprocess.run(
        [str(python), "-m", "fa4verify.kernels.shipped.audit.run", str(folder)],
        env=_environ(),
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    return "" if told.returncode == 0 else _last_line(told.stderr) or f"exit code {told.returncode}"


def home() -> Path:
    """Return the folder that holds environments, and what was found in them."""
    given = os.environ.get("FA4VERIFY_CACHE_DIR")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fa4verify"
    return base / "releases" / f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _environ() -> dict[str, str]:
    """Return this process' environment, in which our own package is found first."""
    own = str(Path(__file__).parents[4])
    return {**os.environ, "PYTHONPATH": own, "PYTHONNOUSERSITE": "1"}


def _lent(name: str) -> Path:
    """Return a folder of links to everything installed here except FA4, quack and the DSL."""
    folder = home() / f"{name}-lent"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name in _OWN or name.startswith(_OWN_PREFIXES):
            continue
        for top in {Path(str(file)).parts[0] for file in one.files or () if Path(str(file)).parts}:
            target = Path(str(one.locate_file(top)))
            link = folder / top
            if top not in ("..", "__pycache__") and not top.endswith(".pth") and target.exists() and not link.exists():
                link.symlink_to(target)
    return folder


def _pinned() -> tuple[str, ...]:
    """Return what keeps pip from fetching another torch: gigabytes, and not the one that was lent."""
    return (f"torch=={version('torch')}",)


def _pip(python: str, command: str, *arguments: str) -> str:
    return _done([python, "-m", "pip", command, *_PIP, *arguments], f"pip {command}")


def _done(command: list[str], what: str, env: dict[str, str] | None = None) -> str:
    told = subprocess.run(command, text=True, capture_output=True, check=False, timeout=_PIP_S, env=env)
    if told.returncode:
        text = told.stderr + told.stdout
        if any(word in text for word in _OFFLINE):
            raise Unreachable(f"the package index cannot be reached ({what}): a release has to be fetched once")
        if "No matching distribution" in text:
            raise Unreachable(f"the package index has nothing for it: {_last_line(told.stderr)}")
        raise Unreachable(f"{what}: {_last_line(told.stderr) or told.returncode}")
    return told.stdout


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1][:300]
