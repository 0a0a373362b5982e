"""Many cases in worker processes: a kernel that hangs, dies or prints costs one Record, never the run.

Contract: `sweep` yields one Record for every case, in the order of completion. A case that outlives its `timeout_s` is
a TIMEOUT and its worker is killed; a worker that dies is a CRASHED with its exit code or signal and the last thing it
said. Starting a worker (imports, and once after an installation half a minute of compiling, which the first worker does
for all) does not count against a case. Ctrl-C, or closing the iterator, kills
the workers at once; everything yielded before is yours.

Workers are spawned, not forked: torch's and BLAS's thread pools and CUDA do not survive a fork. They see the parent's
`sys.path` and current directory. A worker's numba kernels, whose bits do not depend on it, get its share of the cores;
BLAS and torch get one thread, because a float64 product's last bits do depend on theirs: a Record is the same whatever
the number of workers.
A worker whose CUDA context is lost (an illegal address) hands over its Record and ends; the next case gets a new one.
Known failure mode: a kernel that starts processes of its own leaves them behind when it is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import tempfile
import zlib
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pebble import ProcessExpired, ProcessPool

from fa4verify.vocabulary import Case, Finding, Outcome, Record, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from fa4verify.flow import Inadmissible

_POLL_S = 0.1  # how late `on_start` may be told
# Stands for exit code 0, which pebble takes for a worker that has done its work; no process can exit with it.
_LEFT_WITH_0 = 256
# The exit code of a worker that cannot use its GPU any more; its last Record lies beside its log.
_LOST_DEVICE = 86
_TAIL_BYTES = 64 * 1024  # of a log, where its last words are looked for
_BLAS_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Setup:
    """What every worker of a run is told: `verify`'s arguments, and a folder of tables (`arithmetic.tables`)."""

    device: str | None = None
    require_gpu: bool = False
    tables: Path | None = None


def sweep(
    cases: Iterable[Case],
    *,
    workers: int | None = None,
    on_start: Callable[[Case], None] | None = None,
    setup: Setup | None = None,
) -> Iterator[Record]:
    """Verify cases in `workers` processes (default: one for each physical core available), yield Records as completed.

    `on_start(case)` is called in this process when a worker takes the case.
    """
    todo = tuple(cases)
    if todo:
        backward = any(case.operation in ("backward", "repeat") for case in todo)
        count = min(workers or default_workers(), len(todo))
        with Workers(count, backward=backward, setup=setup, kernels=kernels_of(todo)) as pool:
            yield from pool.verify(todo, on_start=on_start)


def kernels_of(cases: Iterable[Case]) -> frozenset[str]:
    """Return the kernels that the cases, their baselines and their twins run."""
    from fa4verify.kernels import twin_of

    named = {name for case in cases for name in (case.kernel, case.baseline) if name}
    twins = {twin_of(case) for case in cases if case.operation == "repeat"}
    return frozenset(named | {"standard", *twins})  # FlashAttention's rule compares with standard attention


class Workers:
    """Worker processes that outlive a sweep; started by the first case.

    `backward`: some case may be one; `kernels`: those that may run, by default any.
    """

    def __init__(
        self,
        count: int,
        *,
        threads: int | None = None,
        backward: bool = True,
        setup: Setup | None = None,
        kernels: frozenset[str] | None = None,
    ) -> None:
        self.count, self.backward, self.setup, self.kernels = count, backward, setup or Setup(), kernels
        self.threads = threads or max(1, default_workers() // count)
        self._logs = tempfile.TemporaryDirectory(prefix="fa4verify-")
        self._pool = self._new_pool()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the workers, whatever they are doing."""
        _kill(self._pool)
        self._logs.cleanup()

    def verify(self, cases: Iterable[Case], *, on_start: Callable[[Case], None] | None = None) -> Iterator[Record]:
        """Yield the Record of each case as it is completed."""
        waiting = deque(cases)
        running: dict[Future[Record], Case] = {}
        announced: set[str] = set()
        while waiting or running:
            while waiting and len(running) < self.count:
                case = waiting.popleft()
                running[self._schedule(case)] = case
            done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future, case in running.items():
                if on_start and case.id not in announced and (future.running() or future in done):
                    announced.add(case.id)
                    on_start(case)
            for future in done:
                yield self._record(running.pop(future), future)

    def refusals(self, cases: Iterable[Case]) -> Iterator[Inadmissible | None]:
        """Yield `flow.refusal` of each case, in their order."""
        from fa4verify.flow import Inadmissible

        trials = [self._pool.schedule(_refusal, args=[case, self.setup]) for case in cases]
        for trial in trials:
            error = trial.exception()
            yield trial.result() if error is None else Inadmissible(f"cannot be tried: {type(error).__name__}: {error}")

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            self.count,
            initializer=_start_worker,
            initargs=(self.threads, self._logs.name, self.backward, self.setup, self.kernels),
            context=_QuietSpawn(),
        )

    def _schedule(self, case: Case) -> Future[Record]:
        if not self._pool.active:  # an idle worker died, or none could start
            _kill(self._pool)
            self._pool = self._new_pool()
        return self._pool.schedule(_verify, args=[case, self._logs.name, self.setup], timeout=case.timeout_s)

    def _record(self, case: Case, future: Future[Record]) -> Record:
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, TimeoutError):
            return _ended(case, "TIMEOUT", f"no result after {case.timeout_s:g} s (timeout_s); the worker was killed")
        if isinstance(error, ProcessExpired):
            if error.exitcode == _LOST_DEVICE and (left := _left_behind(Path(self._logs.name, str(error.pid)), case)):
                return left
            said = _last_words(Path(self._logs.name, str(error.pid)))
            return _ended(case, "CRASHED", f"the worker process died: {_cause(error.exitcode)}{said}")
        return _ended(case, "CRASHED", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _kill(pool: ProcessPool) -> None:
    # pebble leaves `stop` untyped
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def default_workers() -> int:
    """Return the number of physical cores that this process may use, the container's CPU quota respected."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    allowed = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(cores)
    return max(1, min(len(cores), allowed))


def _ended(case: Case, outcome: Outcome, why: str) -> Record:
    """Return the Record of a case that its worker did not live to give."""
    from fa4verify.flow import command

    return Record(case=case, verdict=Verdict(outcome, (Finding(message=why),)), command=command(case))


def _cause(exitcode: int | None) -> str:
    if exitcode == _LEFT_WITH_0:
        return "exit code 0"
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    hint = ", out of memory?" if -exitcode == signal.SIGKILL else ""
    return f"signal {-exitcode} ({signal.Signals(-exitcode).name}{hint})"


def _last_words(log: Path) -> str:
    """Return what a dead worker said last: the interpreter's own report of a fatal error, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return f"; it said: {(fatal or lines)[-1][:200]}" if lines else ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


class _QuietProcess(SpawnProcess):
    """A worker born with SIGINT blocked: Ctrl-C while it imports would print its traceback into the report.

    Its exit code is never 0: a kernel that calls `os._exit(0)` must not look like one that is still at work.
    """

    def start(self) -> None:
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    @property
    def exitcode(self) -> int | None:
        code = super().exitcode
        return _LEFT_WITH_0 if code == 0 else code


class _QuietSpawn(SpawnContext):
    Process = _QuietProcess


def _start_worker(threads: int, logs: str, backward: bool, setup: Setup, kernels: frozenset[str] | None) -> None:
    """Prepare a worker: its threads, its output to a log, default signals, the heavy imports.

    pebble has set SIGINT to be ignored. SIGTERM kills at once: its own handler waits for Python to come back, which a
    compiled loop does not do.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _redirect(Path(logs, str(os.getpid())))
    for text in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            text.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    os.environ.update(dict.fromkeys(_BLAS_THREADS, "1"), NUMBA_NUM_THREADS=str(threads))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each worker starts a pool of its own
    if setup.tables is not None:
        from fa4verify.arithmetic import tables

        tables.use(setup.tables)

    import threadpoolctl
    import torch

    import fa4verify.flow  # noqa: F401 - so that the first case does not pay for the import

    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(limits=1)  # for what was loaded before the variables were set
    _compile_once(backward, kernels)


def _compile_once(backward: bool, only: frozenset[str] | None) -> None:
    """Compile the emulations, or load what another process compiled: one at a time, so that only the first compiles."""
    from fa4verify import kernels

    installation = zlib.crc32(str(Path(__file__).parent).encode())
    with Path(tempfile.gettempdir(), f"fa4verify-compiling-{os.getuid()}-{installation:08x}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kernels.compile_ahead(backward=backward, only=only)


def _redirect(log: Path) -> None:
    """Send what this process prints to an empty log."""
    opened = os.open(log, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(opened, stream)
    if opened > 2:  # else a kernel had closed that one
        os.close(opened)


def _verify(case: Case, logs: str, setup: Setup) -> Record:
    """Verify one case, in a worker; its log starts empty."""
    from fa4verify.flow import verify

    with contextlib.suppress(OSError, ValueError):  # ValueError: a kernel closed it
        sys.stdout.flush()
    log = Path(logs, str(os.getpid()))
    try:
        ours = os.path.samestat(os.fstat(1), log.stat()) and os.path.samestat(os.fstat(2), log.stat())
    except OSError:
        ours = False
    if ours:
        os.ftruncate(1, 0)
    else:  # whatever a kernel made of them, perhaps a file that is not ours to empty
        _redirect(log)
    for name, stream in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name).closed:
            setattr(sys, name, os.fdopen(stream, "w", buffering=1, closefd=False))
    record = verify(case, device=setup.device, require_gpu=setup.require_gpu)
    if setup.device is not None and setup.device.startswith("cuda"):
        _give_back(record, setup.device, log)
    return record


def _refusal(case: Case, setup: Setup) -> Inadmissible | None:
    """Try one case's budgets, in a worker."""
    from fa4verify.flow import refusal

    return refusal(case, setup.device)


def _give_back(record: Record, device: str, log: Path) -> None:
    """Free the device's memory; end this process, its Record left behind, if the device does not answer any more."""
    import torch

    from fa4verify.kernels.gpu.device import lost

    if record.verdict.outcome == "CRASHED" and lost(device):
        log.with_suffix(".record").write_bytes(msgspec.json.encode(record))
        os._exit(_LOST_DEVICE)
    torch.cuda.empty_cache()


def _left_behind(log: Path, case: Case) -> Record | None:
    """Return the Record of this case that a worker left when its device was lost; numbers of processes come again."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        left = msgspec.json.decode(log.with_suffix(".record").read_bytes(), type=Record)
        return left if left.case.id == case.id else None
    return None
