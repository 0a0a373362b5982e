"""`fa4verify audit --table docs/releases.md`: every release of flash-attn-4 against the one before it.

Contract: what is found out about a release (audit of `changelog.COMPARED`, results of `changelog.RUN`) is kept below
the user's cache, so that a table that was interrupted goes on where it stopped; its environment, 0.3 GB, is removed
again. The page is written from what is kept alone: a release that was not looked at has a row that says so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from fa4verify import changelog
from fa4verify.changelog import Audited, Change, Comparison
from fa4verify.kernels.shipped.audit import contract, releases
from fa4verify.kernels.shipped.audit.results import stamp
from fa4verify.outcome import write as put
from fa4verify.plan import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fa4verify.kernels.shipped.audit.configurations import Configuration

_SHORT = {
    "tau": "rescale threshold τ",
    "offset": "offset of P",
    "exponentials": "emulated exponentials",
    "emulated_columns": "emulated columns",
    "coefficients": "polynomial",
    "kernel": "availability",
    "ex2": "ex2 of P",
    "rescale_ex2": "ex2 of the rescale factor",
    "p_conversion": "rounding of P",
    "ds_conversion": "rounding of dS",
    "row_sum": "row sum",
    "row_sum_order": "order of the row sum",
    "float_adds": "adds to global memory",
    "semaphores": "semaphores",
    "float_flow": "flow of floats",
}
_SILENT = ("program",)  # an address is no numerics
_HIDDEN = ("row_sum_order", "emulated_columns", "lse_offset")  # say again what another fact says, where that changed


def write(path: Path, asked: Sequence[Configuration], *, workers: int, run: bool, only: Sequence[str] = ()) -> int:
    """Find out about releases, or about some only, and write the page; `run` executes the five cases too.

    Raises
    ------
    BadRequest
        The package index cannot be reached.
    """
    try:
        known = releases.releases()
    except releases.Unreachable as error:
        raise BadRequest(f"audit: {error}") from error
    for release in known:
        if only and release not in only:
            continue
        kept = _kept(release)
        if kept is None or (run and any(one.kernels for one in kept.results.values()) and not _runs(release).exists()):
            print(f"{release} ...", flush=True)
            _keep(_found(release, asked, workers, run=run))
    put(path, page(known))
    print(path)
    return 0


def _found(release: str, asked: Sequence[Configuration], workers: int, *, run: bool) -> Audited:
    mine = releases.installed().get(releases.PACKAGE) == release
    try:
        found = changelog.audited(release, asked, workers=workers)
        if run and any(one.kernels for one in found.results.values()):
            changelog.outputs(found, _runs(release))
    except BadRequest as error:
        found = Audited(release, {}, {}, problem=str(error))
    if not mine:
        releases.forget(release)
    return found


def _place(release: str) -> Path:
    return releases.home() / "found" / f"{release}-{stamp()}.json"


def _runs(release: str) -> Path:
    """Return the folder of what the five cases gave; it does not depend on the extractor."""
    return releases.home() / "found" / f"{release}-runs"


def _kept(release: str) -> Audited | None:
    path = _place(release)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Audited) if path.exists() else None
    except msgspec.MsgspecError:
        return None


def _keep(found: Audited) -> None:
    _place(found.release).parent.mkdir(parents=True, exist_ok=True)
    _place(found.release).write_bytes(msgspec.json.encode(found))


def page(known: Sequence[str]) -> str:
    """Return the page about these releases, the oldest first in, the newest first out."""
    rows: list[str] = []
    notes: list[str] = []
    before: Audited | None = None
    for release in known:
        found = _kept(release)
        if found is None:
            rows.append(f"| {release} | | not looked at | | |")
            continue
        rows.append(_row(found, before, notes))
        if found.results and any(one.kernels for one in found.results.values()):
            before = found
    looked = sum(_kept(release) is not None for release in known)
    return "\n".join(
        (
            _HEAD.format(date=datetime.now(UTC).date().isoformat(), looked=looked, all=len(known)),
            *_avoid([found for release in known if (found := _kept(release)) is not None]),
            "## Release by release",
            "",
            "| release | compiled with | numerics against the row above that compiles | unsafe | same bits |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## Details",
            "",
            *notes,
            "",
        )
    )


def _avoid(every: list[Audited]) -> list[str]:
    """Say which releases to avoid for what, and which need another DSL than pip's."""
    broken: dict[tuple[str, str], list[str]] = {}
    for found in every:
        for identity, result in found.results.items():
            for sentence in contract.unsafe(result)[0]:
                broken.setdefault((identity, sentence), []).append(found.release)
    lines = [f"- **{', '.join(some)}** for {identity}: {said}." for (identity, said), some in broken.items()]
    for found in every:
        if found.dsl:
            lines.append(f"- {found.release} without `nvidia-cutlass-dsl=={found.dsl}`: {found.note}.")
        elif found.results and not found.compiled:
            lines.append(f"- {found.release}: nothing compiles, neither with pip's DSL nor with the oldest it allows.")
    return ["## Which release to avoid for what", "", *(lines or ["None of those looked at."]), ""]


def _row(found: Audited, before: Audited | None, notes: list[str]) -> str:
    dsl = found.versions.get("nvidia-cutlass-dsl", "")
    if found.problem:
        return f"| {found.release} | {dsl} | cannot be installed: {_cell(found.problem)} | | |"
    broken = [one for one in found.results.values() if one.failed]
    compiled = [one for one in found.results.values() if one.kernels]
    if not compiled:
        reason = broken[0].failed if broken else next(iter(found.results.values())).refused
        more = f"; {_cell(found.note)}" if found.note else ""
        return f"| {found.release} | {dsl} | nothing compiles: {_cell(reason)}{more} | | |"
    changed = changelog.changes(before, found) if before else []
    told = _same_bits(before, found, notes)
    said = _changed(changed) if before else "the first that compiles"
    if found.note:
        notes.append(f"- {found.release}: {found.note}")
    refused = [one for one in found.results.values() if one.refused]
    for one in refused:
        notes.append(f"- {found.release}, {one.configuration.id}: {_cell(one.refused)}")
    if refused:
        said = f"{said or 'no change'}; {len(refused)} of {len(found.results)} kernels are refused"
    if broken:
        said += f"; {len(broken)} of {len(found.results)} kernels do not compile"
    for one in broken:
        notes.append(f"- {found.release}, {one.configuration.id}: {_cell(one.failed)}")
    for sentence in found.unsafe:
        notes.append(f"- **{found.release} is unsafe**: {sentence}")
    unsafe = "**FAIL**" if found.unsafe else "none"
    return f"| {found.release} | {dsl} | {said or 'no change'} | {unsafe} | {told} |"


def _same_bits(before: Audited | None, found: Audited, notes: list[str]) -> str:
    if before is None:
        return ""
    folders = [_runs(one.release) for one in (before, found)]
    if not all(folder.exists() for folder in folders):
        return "not run"
    old, new = (changelog.outputs(one, folder) for one, folder in zip((before, found), folders, strict=True))
    compared: list[Comparison] = changelog.compared_runs(old, new, before.release, found.release)
    for one in compared:
        if not one.equal:
            notes.append(f"- {found.release}, {one.case}: {_cell(one.text)}")
    equal, ran = sum(one.equal is True for one in compared), sum(one.equal is not None for one in compared)
    return f"{equal} of {ran}" + (f" ({len(compared) - ran} not run)" if ran < len(compared) else "")


def _changed(found: list[Change]) -> str:
    names = {one.fact.split(".")[-1] for one in found}
    hidden = _HIDDEN if names & {"row_sum", "exponentials", "offset"} else ()
    parts = []
    for one in found:
        kind, _, fact = one.fact.rpartition(".")
        if fact in (*hidden, *_SILENT):
            continue
        if "not found" in (one.before, one.after):  # a gap of the audit's is no change of FA4's
            continue
        where = ", ".join(one.configurations[:2]) + (" ..." if len(one.configurations) > 2 else "")
        kernel = "" if kind in ("forward", "") else f"{kind}: "
        parts.append(f"{kernel}{_SHORT.get(fact, fact)} {_cell(one.before)} → {_cell(one.after)} ({where})")
    return "; ".join(parts)


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) < 160 else f"{line[:157]}..."


_HEAD = """# The numerics of every flash-attn-4 release

Which release changed what, read from the PTX that each compiles to with the DSL that its metadata asks for, on a CPU.
Written by `fa4verify audit --table docs/releases.md`, {date}; {looked} of {all} releases were looked at.

*unsafe*: the release breaks a rule that needs no comparison (docs/audit.md), most of all that P must not exceed what
its dtype can hold. *same bits*: five cases (forward sm_80, sm_90a, sm_100a full and causal, backward sm_90a) run on the
PTX machine with this release and with the row above that compiles; where bits differ, Details say how far and which
release is nearer to float64. A release that was not looked at has a row that says so; the next row skips it.

*flow of floats*: other float operations, or the same in another order (`float_flow` in docs/audit.md), whether or not a
result depends on it; another address or place in the text is not told here.

`a; b` in a fact: some steps of a kernel have the one and some the other, as tiles under a mask and tiles without.

"""
