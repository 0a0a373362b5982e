"""What an audit of one configuration gave, kept on disk, and many of them from worker processes.

Contract: a `Result` holds facts by kind of kernel, or why there are none: `refused` in the words of FA4 or its
compiler, `failed` where something of ours or theirs broke. Facts and refusals are kept below the folder of compiled
kernels (compiler.py: a fingerprint of FA4's sources, the DSL's version and the architecture), in a folder named after a
digest of our own sources, extractor and stand-in: another one never reads an old one's facts or refusals. Failures are
not kept. `audited` yields one Result for each configuration, those from disk first. A worker that dies costs one
Result.
"""

from __future__ import annotations

import gc
import hashlib
from concurrent.futures import Future, as_completed
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fa4verify.kernels.interface import Unsupported
from fa4verify.kernels.shipped.audit.configurations import Configuration  # noqa: TC001 - msgspec reads the annotation
from fa4verify.kernels.shipped.audit.facts import Fact  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TIMEOUT_S = 180.0
_EXTRACTOR = (
    "fa4verify.kernels.shipped.audit.colours",
    "fa4verify.kernels.shipped.audit.compilation",
    "fa4verify.kernels.shipped.audit.exponentials",
    "fa4verify.kernels.shipped.audit.extract",
    "fa4verify.kernels.shipped.audit.facts",
    "fa4verify.kernels.shipped.audit.finishing",
    "fa4verify.kernels.shipped.audit.float_flow",
    "fa4verify.kernels.shipped.audit.gradients",
    "fa4verify.kernels.shipped.audit.paths",
    "fa4verify.kernels.shipped.audit.program",
    "fa4verify.kernels.shipped.audit.row_sum",
    "fa4verify.kernels.shipped.audit.softmax",
    "fa4verify.kernels.shipped.audit.values",
    "fa4verify.kernels.shipped.attention",
    "fa4verify.kernels.shipped.compiler",
    "fa4verify.kernels.shipped.device_tensors",
    "fa4verify.kernels.shipped.execution",
    "fa4verify.kernels.shipped.host",
    "fa4verify.kernels.shipped.refusals",
    "fa4verify.kernels.shipped.target",
    "fa4verify.ptx.operand",
    "fa4verify.ptx.syntax",
    "fa4verify.ptx.tokens",
)


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of one configuration by kind of kernel (`forward`, or `preprocess`, `backward`, `postprocess`)."""

    configuration: Configuration
    kernels: dict[str, dict[str, Fact]] = {}
    refused: str = ""
    failed: str = ""

    @property
    def facts(self) -> dict[str, Fact]:
        """All facts, named `kind.fact`."""
        return {f"{kind}.{name}": fact for kind, facts in self.kernels.items() for name, fact in facts.items()}


def audited(configurations: Iterable[Configuration], *, workers: int = 1, fresh: bool = False) -> Iterator[Result]:
    """Yield the result of each configuration; `fresh` reads nothing from disk."""
    left = []
    for one in configurations:
        kept = None if fresh else _read(one)
        if kept is not None:
            yield kept
        else:
            left.append(one)
    if not left:
        return
    if workers == 1 or len(left) == 1:
        for one in left:
            yield audit(one)
        return
    yield from _by_workers(left, min(workers, len(left)))


def audit(one: Configuration) -> Result:
    """Compile one configuration, extract its facts and keep them."""
    from fa4verify.kernels.shipped.audit import compilation

    try:
        result = Result(one, compilation.facts(one))
    except Unsupported as reason:
        result = Result(one, refused=str(reason))
    except Exception as error:  # of another release anything may be raised: it is what the audit tells
        return Result(one, failed=f"{type(error).__name__}: {' '.join(str(error).split())}")
    _write(result)
    return result


def _by_workers(configurations: list[Configuration], workers: int) -> Iterator[Result]:
    from pebble import ProcessPool

    with ProcessPool(workers, initializer=_start_worker, context=get_context("spawn")) as pool:
        waiting: dict[Future[Result], Configuration] = {
            pool.schedule(audit, args=[one], timeout=TIMEOUT_S): one for one in configurations
        }
        try:
            for future in as_completed(waiting):
                error = future.exception()
                if error is None:
                    yield future.result()
                else:
                    said = " ".join(str(error).split())
                    yield Result(waiting[future], failed=f"the worker ended: {type(error).__name__}: {said}")
        finally:
            pool.stop()  # type: ignore[no-untyped-call]


def _start_worker() -> None:
    """Import FA4 once, then collect no garbage: the DSL's traces are many small objects (a fifth of the time)."""
    import torch

    torch.set_num_threads(1)
    try:
        import_module("flash_attn.cute.interface")
    except Exception:  # every configuration will tell
        return
    gc.freeze()
    gc.disable()


@cache
def stamp() -> str:
    """Return a digest of our own sources that decide what is found."""
    digest = hashlib.sha256()
    for name in _EXTRACTOR:
        spec = find_spec(name)  # without importing it: some of them import torch
        assert spec is not None
        digest.update(Path(str(spec.origin)).read_bytes())
    return digest.hexdigest()[:16]


def _path(one: Configuration) -> Path | None:
    from fa4verify.kernels.shipped.compiler import cache_folder
    from fa4verify.kernels.shipped.target import TARGETS

    folder = cache_folder(TARGETS[one.arch])
    return None if folder is None else folder / f"audit-{stamp()}" / f"{one.id}.json"


def _read(one: Configuration) -> Result | None:
    path = _path(one)
    if path is None or not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(result: Result) -> None:
    path = _path(result.configuration)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{id(result)}.part")
        part.write_bytes(msgspec.json.encode(result))
        part.replace(path)
    except OSError:
        return
