"""From what was asked for at a door to the suite that will run.

Contract: `plan` returns a suite whose kernels exist, whose selection is not empty and whose budgets are not vacuous,
or raises BadRequest with one line for the user. The command line and the pytest plugin ask in the same words.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fa4verify import __version__, cases, devices, gpus, kernels
from fa4verify.runs import RunHeader
from fa4verify.vocabulary import EIGHT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fa4verify.vocabulary import Case, Suite


# A trial takes a third of a second, a process five to start.
_TRIALS_FOR_WORKERS = 40
_WORKERS_FOR_TRIALS = 4


class BadRequest(Exception):  # noqa: N818 - the user's mistake, told to the user
    """What was asked for cannot be run; one line, to be shown as it is."""


def plan(
    source: str, *, kernel: str | None = None, select: str | None = None, budgets: bool = True, full: bool = False
) -> Suite:
    """Return the cases to run.

    Parameters
    ----------
    source
        Name of a shipped suite, or path of a TOML file.
    kernel
        Runs every case with this kernel instead of its own.
    select
        Expression that picks cases (`cases.select`).
    budgets
        Try the budgets on trivial outputs. Costs seconds; a second process of the same run need not do it again.
    full
        The suite's larger form (`cases.load_suite`).
    """
    try:
        suite = cases.load_suite(source, full=full)
        suite = msgspec.structs.replace(suite, cases=_chosen(suite, kernel, select) or _larger(source, kernel, select))
        if not suite.cases:
            raise BadRequest(f"{suite.name}: no case matches {select!r}; `fa4verify list cases` shows what there is")
        for name in sorted({name for case in suite.cases for name in (case.kernel, case.baseline) if name}):
            if name not in (*kernels.names(), *EIGHT_BITS):
                kernels.kernel(name)
    except (cases.SuiteError, kernels.UnknownKernel) as error:
        raise BadRequest(str(error)) from error
    if budgets:
        admitted(suite)
    return suite


def admitted(
    suite: Suite, device: str | None = None, *, workers: int | None = None, tables: Path | None = None
) -> None:
    """Try the budgets on trivial outputs; BadRequest where one would pass.

    In processes where there are enough of both, `workers` or cores and problems, to be worth starting them.
    """
    from fa4verify.flow import Inadmissible, admit, problems  # seconds: torch and numba
    from fa4verify.sweep import Setup, Workers, default_workers, kernels_of

    todo, count = problems(suite), workers or default_workers()
    try:
        if count < _WORKERS_FOR_TRIALS or len(todo) < _TRIALS_FOR_WORKERS:
            admit(suite, device=device)
            return
        with Workers(count, backward=False, setup=Setup(device, tables=tables), kernels=kernels_of(todo)) as pool:
            admit(suite, trial=pool.refusals)
    except Inadmissible as error:
        raise BadRequest(str(error)) from error


@contextmanager
def placed(suite: Suite, wanted: str, *, require_gpu: bool = False) -> Iterator[str | None]:
    """Hold the device of a run while it lasts; yield its name for torch, None where GPU kernels have none.

    Parameters
    ----------
    suite
        The cases: "auto" claims a GPU only if one of their kernels or baselines is for one, and there is one.
    wanted
        "auto", "cpu", "cuda" or "cuda:N".
    require_gpu
        BadRequest where nothing would run on a GPU: a run of emulations alone says nothing of the device, nor does one
        on the CPU. A kernel of the user's own then claims one as well, and does not run without.
    """
    needing = list(map(kernels.needs_gpu, _names(suite)))
    if require_gpu:
        if not runs_on_gpu(suite):
            raise BadRequest("a GPU is required, and no kernel of these cases runs on one: --kernel flash-attn-4 does")
        if wanted == "cpu":
            raise BadRequest("a GPU is required, and the device is to be cpu")
        if not any(needing) and not gpus.listed():  # a kernel for GPUs fails case by case, with its reason
            raise BadRequest("a GPU is required, and nvidia-smi lists none")
    if wanted == "cpu":
        yield wanted
    elif wanted == "auto" and not ((any(needing) or require_gpu) and gpus.listed()):
        yield None
    else:
        with ExitStack() as held:
            try:
                device = held.enter_context(gpus.claim(wanted))
            except gpus.NoGpu as error:
                raise BadRequest(str(error)) from error
            yield device


def runs_on_gpu(suite: Suite) -> bool:
    """Whether some kernel or baseline computes on the device of the run; the truth alone may do so in any run."""
    return any(map(kernels.computes_where_its_tensors_are, _names(suite)))


def _names(suite: Suite) -> set[str]:
    return {name for case in suite.cases for name in (case.kernel, case.baseline) if name}


def header_of(suite: Suite, kernel: str | None, *, select: str | None = None, device: str | None = None) -> RunHeader:
    """Return the header of a run that starts now, in this folder's checkout, on this machine and `device`."""
    return RunHeader(
        date=datetime.now(UTC),
        version=__version__,
        suite=suite.name,
        commit=devices.git_commit(Path.cwd()),
        machine=devices.machine_slug(),
        kernel=kernel,
        select=select or None,
        device=device,
        study=suite.study,
        fingerprint=devices.fingerprint(gpus=(device or "").startswith("cuda")),
        asked=tuple(case.id for case in suite.cases),
    )


def _chosen(suite: Suite, kernel: str | None, select: str | None) -> tuple[Case, ...]:
    """Select, then put the kernel in place: `kernel=fa4-sm90` then means the cases that were written for it.

    An expression that matches no case of the suite is tried on the substituted ones: a report's `id=...` is of those.
    """
    chosen = cases.select(suite.cases, select or "")
    if kernel:
        chosen = cases.substitute_kernel(chosen, kernel)
        chosen = chosen or cases.select(cases.substitute_kernel(suite.cases, kernel), select or "")
    return chosen


def _larger(source: str, kernel: str | None, select: str | None) -> tuple[Case, ...]:
    """Return what matches in the suite's larger form, if it has one: a report's `id=...` may be of that."""
    with suppress(cases.SuiteError):
        return _chosen(cases.load_suite(source, full=True), kernel, select)
    return ()
