"""`fa4verify admit` and `fa4verify record-device`: is this GPU the one that is emulated, and if not, what is it.

Contract: imports nothing heavy, and reads no table before `choose_tables` has been asked. Exit code 0 if no bit
differs, 1 otherwise, 2 without such a device.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import CycloptsError, Parameter

from fa4verify.parameters import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator


def choose_tables(folder: Path | None) -> None:
    """Choose the tables of the special-function unit, before anything reads them."""
    if folder is None:
        return
    from fa4verify.arithmetic import tables

    try:
        tables.use(folder)
    except (OSError, ValueError) as error:
        raise CycloptsError(msg=f"--tables: {error}") from error


def admit(
    *functions: str,
    device: str = "cuda:0",
    tables: Path | None = None,
    threads: Annotated[int | None, COUNT] = None,
    json: Path | None = None,
    claimed: Annotated[str | None, Parameter(show=False)] = None,
) -> int:
    """Compare a GPU's exponential, reciprocal, logarithm and tanh, and FA4's exp2, with the floor on all 2^32 inputs.

    Parameters
    ----------
    functions
        ex2, rcp, lg2, tanh, ex2_emulation_1 ... ex2_emulation_5; all by default.
    device
        cuda:N, or auto.
    tables
        A folder that `record-device` wrote: compare with those tables.
    threads
        Of the comparison; by default one for each physical core.
    json
        File for counts, checksums of every block and the device's fingerprint.
    claimed
        A device that the calling process holds already.
    """
    choose_tables(tables)
    with _held(device, claimed) as place:
        from fa4verify.admission.record import compare
        from fa4verify.arithmetic.exhaust import NAMES
        from fa4verify.sweep import default_workers

        if strange := [name for name in functions if name not in NAMES]:
            raise CycloptsError(msg=f"no function {strange[0]!r}; known: {', '.join(NAMES)}")
        return compare(place, names=functions, threads=threads or default_workers(), tables=tables, json_file=json)


def record_device(folder: Path, /, *, device: str = "cuda:0", threads: Annotated[int | None, COUNT] = None) -> int:
    """Read a GPU's special-function tables off its answers and prove them on all 2^32 inputs.

    Parameters
    ----------
    folder
        Gets mufu_tables.json and admission.json; `fa4verify run --tables FOLDER` emulates that device.
    device
        cuda:N, or auto.
    threads
        Of the comparison; by default one for each physical core.
    """
    with _held(device, None) as place:
        from fa4verify.admission.record import record
        from fa4verify.sweep import default_workers

        return record(folder, place, threads=threads or default_workers())


@contextmanager
def _held(device: str, claimed: str | None) -> Iterator[str]:
    """Hold a GPU, unless the caller does already; NoGpu too where torch cannot use it."""
    from fa4verify.gpus import NoGpu, claim

    if claimed is not None:
        yield claimed
        return
    with claim(device) as place:
        import torch

        try:
            torch.zeros(1, device=place)
        except Exception as error:  # a torch without CUDA, a driver too old, no memory left
            raise NoGpu(f"device {place!r}: torch cannot use it: {' '.join(str(error).split())}") from error
        yield place
