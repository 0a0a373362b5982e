"""`fa4verify audit --release X --against Y`: what changed in the numerics between two releases.

Contract: both releases are installed in environments of their own (kernels/shipped/audit/releases.py), audited there,
and compared fact by fact; equal changes of several configurations are one line. `--run` runs five cases with each on
the PTX machine and compares results: equal bits, or how far apart and which is nearer to float64. Exit code 1 where the
release breaks a rule (rules.py) that needs no contract, 3 where nothing of it could be compared, else 0.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.markup import escape

from fa4verify import cases, references
from fa4verify.kernels.shipped.audit import configurations, contract, releases
from fa4verify.kernels.shipped.audit.results import Result  # noqa: TC001 - msgspec reads the annotation
from fa4verify.plan import BadRequest
from fa4verify.vocabulary import Case, Distribution, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import torch

    from fa4verify.kernels.shipped.audit.configurations import Configuration

# What is compared between releases, and below what is run: the same kernels, and FP8, which the machine does not run.
COMPARED = (
    "fwd-sm_80-d128-causal-bf16-mha",
    "fwd-sm_90a-d128-causal-bf16-mha",
    "fwd-sm_100a-d128-full-bf16-mha",
    "fwd-sm_100a-d128-causal-bf16-mha",
    "fwd-sm_100a-d128-full-e4m3-mha",
    "bwd-sm_90a-d128-causal-bf16-mha-det",
)
_NORMAL = Distribution("normal")
_SHAPE = Shape(batch=1, heads=2, heads_kv=2, seqlen_q=384, seqlen_k=384)
RUN = (
    Case("fwd-sm_80-d128-causal-bf16", "forward", "fa4@sm_80", _NORMAL, shape=_SHAPE, causal=True),
    Case("fwd-sm_90a-d128-causal-bf16", "forward", "fa4@sm_90a", _NORMAL, shape=_SHAPE, causal=True),
    Case("fwd-sm_100a-d128-full-bf16", "forward", "fa4@sm_100a", _NORMAL, shape=_SHAPE),
    Case("fwd-sm_100a-d128-causal-bf16", "forward", "fa4@sm_100a", _NORMAL, shape=_SHAPE, causal=True),
    Case("bwd-sm_90a-d128-causal-bf16", "backward", "fa4@sm_90a", _NORMAL, shape=_SHAPE, causal=True),
)
Tensors = dict[str, "torch.Tensor"]


class Audited(msgspec.Struct, frozen=True):
    """A release: what is installed beside it, and what its audit found; `problem` where it could not be had.

    `dsl` and `note` where another DSL than pip's was taken.
    """

    release: str
    versions: dict[str, str]
    results: dict[str, Result]
    problem: str = ""
    dsl: str | None = None
    note: str = ""

    @property
    def compiled(self) -> int:
        """How many configurations compile."""
        return sum(bool(one.kernels) for one in self.results.values())

    @property
    def unsafe(self) -> list[str]:
        """Broken rules, with how many configurations break each."""
        broken = Counter(one for result in self.results.values() for one in contract.unsafe(result)[0])
        return [f"{one} ({count} configurations)" if count > 1 else one for one, count in broken.items()]


class Change(msgspec.Struct, frozen=True):
    """A fact that differs between two releases, and where."""

    fact: str
    before: str
    after: str
    configurations: tuple[str, ...]


def audited(release: str, asked: Sequence[Configuration], *, workers: int = 1) -> Audited:
    """Install and audit a release; with the oldest DSL that it allows, where more compiles with that than with pip's.

    Raises
    ------
    BadRequest
        The package index cannot be reached, or has no such release.
    """
    try:
        python = releases.environment(release)
        found = _audited_with(python, release, asked, workers)
        if 2 * found.compiled < len(asked) and (dsl := releases.oldest_dsl(python)):
            older = _audited_with(releases.environment(release, dsl), release, asked, workers)
            newest = found.versions.get(releases.DSL)
            if older.compiled > found.compiled:
                note = f"with DSL {newest}, which pip takes, {found.compiled} of {len(asked)} kernels compile"
                return msgspec.structs.replace(older, dsl=dsl, note=note)
            said = next((one.failed or one.refused for one in older.results.values() if not one.kernels), "")
            return msgspec.structs.replace(found, note=f"nor do more compile with DSL {dsl}, the oldest: {said[:200]}")
    except releases.Unreachable as error:
        raise BadRequest(f"audit: {release}: {error}") from error
    return found


def _audited_with(python: Path, release: str, asked: Sequence[Configuration], workers: int) -> Audited:
    found = releases.audited_in(python, asked, workers=workers)
    return Audited(release, releases.versions_in(python), {one.configuration.id: one for one in found})


def changes(before: Audited, after: Audited) -> list[Change]:
    """Return the facts that differ, equal changes together, and kernels that appeared, went or stopped compiling."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for identity, new in after.results.items():
        old = before.results.get(identity)
        if old is None:
            continue
        if _state(old) != _state(new):
            grouped.setdefault(("kernel", _state(old), _state(new)), []).append(identity)
            continue
        ours, theirs = old.facts, new.facts
        for name in sorted({*ours, *theirs}):
            pair = tuple(
                (facts[name].value or "not found") if name in facts else "no such kernel" for facts in (ours, theirs)
            )
            if pair[0] != pair[1]:
                if name.split(".")[1] in contract.DIGESTS and set(pair).isdisjoint(("not found", "no such kernel")):
                    pair = "one digest", "another"  # which of them says nothing, and equal changes stay together
                grouped.setdefault((name, pair[0], pair[1]), []).append(identity)
    return [Change(*key, tuple(ids)) for key, ids in sorted(grouped.items())]


def _before(release: str) -> str:
    try:
        known = releases.releases()
    except releases.Unreachable as error:
        raise BadRequest(f"audit: {error}") from error
    if release not in known[1:]:
        raise BadRequest(f"audit: no release {release} with one before it; the index has {', '.join(known)}")
    return known[known.index(release) - 1]


def _state(result: Result) -> str:
    if result.failed:
        return f"does not compile ({result.failed[:100]})"
    return f"refused ({result.refused[:100]})" if result.refused else "compiles"


def compare(
    release: str, against: str | None, asked: Sequence[Configuration], *, workers: int, run: bool, json: bool
) -> int:
    """Print what changed from `against`, or the release before, to `release`; return the exit code."""
    against = against or _before(release)
    old, new = audited(against, asked, workers=workers), audited(release, asked, workers=workers)
    found = changes(old, new)
    told = executed(old, new) if run else []
    if json:
        shown = {
            "versions": {one.release: one.versions for one in (old, new)},
            "changes": found,
            "unsafe": {one.release: one.unsafe for one in (old, new)},
            "executed": told,
        }
        print(msgspec.json.encode(shown).decode())
    else:
        _tell(old, new, found, told)
    if new.unsafe:
        return 1
    return 0 if any(one.kernels for one in new.results.values()) else 3


def _tell(old: Audited, new: Audited, found: list[Change], told: list[Comparison]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for one in (old, new):
        counts = Counter(_state(result).split(" (")[0] for result in one.results.values())
        what = ", ".join(f"{count} {state}" for state, count in counts.items())
        beside = ", ".join(f"{name} {number}" for name, number in one.versions.items() if name != releases.PACKAGE)
        console.print(f"[bold]{one.release}[/] with {beside}: {what}{f' ({one.note})' if one.note else ''}")
    console.print(f"\n[bold]From {old.release} to {new.release}[/]")
    for change in found:
        some = change.configurations
        where = ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
        console.print(f"  {change.fact}: {escape(change.before)} -> [bold]{escape(change.after)}[/]\n    {where}")
    if not found:
        console.print(f"  no fact differs in {len(new.results)} configurations")
    for comparison in told:
        console.print(f"  {comparison.case}: {escape(comparison.text)}")
    for one in (old, new):
        for sentence in one.unsafe:
            console.print(f"[bold red]FAIL[/] {one.release}: {escape(sentence)}")


class Comparison(msgspec.Struct, frozen=True):
    """One case run by two releases; `equal` is None where one of them gave nothing."""

    case: str
    equal: bool | None
    text: str


def executed(before: Audited, after: Audited) -> list[Comparison]:
    """Run the five cases with both releases, each in a process of its own, and compare what they gave."""
    with tempfile.TemporaryDirectory() as place:
        old, new = (outputs(one, Path(place, one.release)) for one in (before, after))
        return compared_runs(old, new, before.release, after.release)


def outputs(audited: Audited, folder: Path) -> dict[str, Tensors | str]:
    """Return what a release gives for each of the five cases, kept in `folder`: tensors, or what it said instead."""
    from safetensors.torch import load_file, save_file

    said = ""
    if not folder.exists():
        folder.mkdir(parents=True)
        for case in RUN:
            save_file(dict(cases.draw(case).tensors), folder / f"{case.id}.in.safetensors")
            (folder / f"{case.id}.case.json").write_bytes(msgspec.json.encode(case))
        said = releases.executed_in(releases.environment(audited.release, audited.dsl), folder)
    found: dict[str, Tensors | str] = {}
    for case in RUN:
        path, error = folder / f"{case.id}.out.safetensors", folder / f"{case.id}.error"
        if path.exists():
            found[case.id] = load_file(path)
        else:
            found[case.id] = error.read_text() if error.exists() else said or "the process ended before this case"
    return found


def compared_runs(
    old: dict[str, Tensors | str], new: dict[str, Tensors | str], before: str, after: str
) -> list[Comparison]:
    """Compare the results of two releases case by case."""
    told = []
    for case in RUN:
        ours, theirs = old[case.id], new[case.id]
        if isinstance(ours, str) or isinstance(theirs, str):
            errors = [
                f"{release}: {one[:160]}" for release, one in ((before, ours), (after, theirs)) if isinstance(one, str)
            ]
            told.append(Comparison(case.id, None, "; ".join(errors)))
        else:
            told.append(_compared(case, ours, theirs, before, after))
    return told


def _compared(case: Case, old: Tensors, new: Tensors, before: str, after: str) -> Comparison:
    import torch

    unequal = [name for name in sorted(new) if not torch.equal(_bits(old[name]), _bits(new[name]))]
    if not unequal:
        return Comparison(case.id, True, "equal bits")
    truth = references.solve(case, cases.draw(case)).tensors
    parts = []
    for name in unequal:
        a, b = old[name].double().numpy(), new[name].double().numpy()
        apart = float(abs(a - b).max())
        text = f"{name}: {int((a != b).sum())} of {a.size} differ, by {apart:.3g} at most"
        if name in truth:
            mine, theirs = _rmse(b, truth[name]), _rmse(a, truth[name])
            nearer = after if mine < theirs else before
            text += f"; RMSE {theirs:.4g} -> {mine:.4g}, {nearer} is nearer to float64"
        parts.append(text)
    return Comparison(case.id, False, "; ".join(parts))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(torch.uint8)


def _rmse(value: np.ndarray, truth: np.ndarray) -> float:
    import numpy as np

    finite = np.isfinite(truth) & np.isfinite(value)
    return float(np.sqrt(np.mean((value[finite] - truth[finite]) ** 2)))


def compared(identities: Iterable[str] = COMPARED) -> tuple[Configuration, ...]:
    """Return the configurations of these ids."""
    known = {one.id: one for one in configurations.every()}
    return tuple(known[identity] for identity in identities)
