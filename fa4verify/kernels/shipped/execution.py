"""How the launches of a call are executed, and what they did.

Contract: `using(...)` says for the calls inside it how the PTX machine shall run them (schedule, limits, workers, PTX
edited before it is loaded) and collects one `Executed` a launch; without it, launches run in a fixed order on as many
threads as torch has. No bit may depend on any of this where the kernel promises so: that is what `races` tests.
A parsed kernel is kept for the life of the compiled function, once for each edit.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.interface import Unsupported
from fa4verify.kernels.shipped import runtime
from fa4verify.kernels.shipped.device_tensors import exported, extents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fa4verify.kernels.shipped.compiler import CompiledFunction
    from fa4verify.kernels.shipped.target import Target


@dataclass(frozen=True)
class Executed:
    """One launch: entry, grid, cluster size, what the machine counted, and seconds."""

    kernel: str
    grid: tuple[int, int, int]
    cluster: int
    statistics: Any
    seconds: float


@dataclass(frozen=True)
class Execution:
    """Settings of the machine for every launch of a call, and the list that collects what ran.

    `edit` gets the entry's name and the PTX, and returns the PTX to run; `alter` gets and returns a loaded kernel.
    `instead` gets the PTX and every launch, and nothing is run: outputs keep what FA4 allocated. Host code that cannot
    be linked, an older DSL's, launches nothing: None.
    """

    schedule: Any = None
    limits: Any = None
    workers: int | None = None
    edit: Callable[[str, str], str] | None = None
    alter: Callable[[Any], Any] | None = None
    instead: Callable[[str, runtime.Launch | None], None] | None = None
    launches: list[Executed] = field(default_factory=list)


_execution: ContextVar[Execution | None] = ContextVar("execution", default=None)


def using(**settings: Any) -> AbstractContextManager[Execution]:
    """Run the calls inside with these settings; yields the Execution, whose `launches` fills up."""
    return running(Execution(**settings))


@contextmanager
def running(execution: Execution) -> Iterator[Execution]:
    """Run the calls inside like this."""
    token = _execution.set(execution)
    try:
        yield execution
    finally:
        _execution.reset(token)


def current() -> Execution:
    """Return what `using` set, or the default with a list of its own."""
    return _execution.get() or Execution()


def scheduled(name: str | None, seed: int) -> Execution:
    """Return the current execution, in the named order if there is one.

    "fixed", "reversed", "random", or "late": random, and asynchronous work lands only when something waits for it.
    """
    execution = current()
    if name is None:
        return execution
    from fa4verify import ptx

    if name not in ("fixed", "reversed", "random", "late"):
        raise ValueError(f"schedule {name!r}: expected fixed, reversed, random or late")
    late = name == "late"
    return replace(execution, schedule=ptx.Schedule(order="random" if late else name, seed=seed, late=late))


def execute(function: CompiledFunction, arguments: tuple[Any, ...], target: Target) -> None:
    """Call the host code of a compiled function; its launches run on the PTX machine as `current` says."""
    execution = current()
    memory = extents(arguments)
    device = runtime.Device(divmod(target.number, 10), target.sm_count, target.shared_bytes)

    def receive(launch: runtime.Launch) -> None:
        _check_shared(launch, target)
        if execution.instead is not None:
            execution.instead(function.compiled.ptx, launch)
            return
        execution.launches.append(_run(function, launch, memory, target, execution))

    if execution.instead is not None and not _is_linked(function):
        execution.instead(function.compiled.ptx, None)
        return
    runtime.run(function.function, exported(arguments), device=device, receiver=receive)


def _is_linked(function: CompiledFunction) -> bool:
    try:
        return function.function is not None
    except RuntimeError:  # a RuntimeMismatch, or the linker's own
        return False


def _check_shared(launch: runtime.Launch, target: Target) -> None:
    """Refuse what the device would refuse."""
    if launch.shared_bytes > target.shared_bytes:
        raise Unsupported(
            f"{target.compiled_for} refuses the launch: {launch.shared_bytes} bytes of dynamic shared memory a block, "
            f"at most {target.shared_bytes}"
        )


def _run(
    function: CompiledFunction,
    launch: runtime.Launch,
    memory: list[tuple[int, int]],
    target: Target,
    execution: Execution,
) -> Executed:
    import torch

    kernel = _loaded(function, launch.kernel, execution)
    if launch.block != (kernel.threads, 1, 1) or launch.cluster[1:] != (1, 1):
        raise runtime.RuntimeMismatch(
            f"{launch.kernel} launched with blocks of {launch.block} in clusters of {launch.cluster}; expected "
            f"({kernel.threads}, 1, 1) and one dimension"
        )
    settings = {
        name: value
        for name, value in (("schedule", execution.schedule), ("limits", execution.limits))
        if value is not None
    }
    start = time.perf_counter()
    statistics = kernel.launch(
        grid=launch.grid,
        parameters=launch.parameters(kernel.parameters, kernel.parameter_bytes),
        memory=memory,
        cluster=launch.cluster[0],
        shared_bytes=launch.shared_bytes,
        workers=_workers(execution, torch.get_num_threads()),
        constants={"%nsmid": target.sm_count},
        **settings,
    )
    return Executed(launch.kernel, launch.grid, launch.cluster[0], statistics, time.perf_counter() - start)


def _workers(execution: Execution, threads: int) -> int:
    """Only a fixed order without late effects can be shared among threads."""
    if execution.workers is not None:
        return execution.workers
    schedule = execution.schedule
    return threads if schedule is None or (schedule.order == "fixed" and not schedule.late) else 1


def _loaded(function: CompiledFunction, entry: str, execution: Execution) -> Any:
    from fa4verify import ptx

    key = entry, execution.edit
    if key not in function.kernels:
        text = function.compiled.ptx
        function.kernels[key] = ptx.load(execution.edit(entry, text) if execution.edit else text, entry=entry)
    kernel = function.kernels[key]
    return execution.alter(kernel) if execution.alter else kernel
