"""GPUs: which there are, and which one is ours.

Contract: `listed` asks `nvidia-smi` once a process and imports no CUDA; the order and the choice are those of the CUDA
runtime (CUDA_VISIBLE_DEVICES). `claim` holds a file lock on one GPU until its block ends, whatever ends it: two runs
never time or load the same device by accident. The workers of a run share what their run has claimed.
Fails first where a program that knows nothing of these locks uses the GPU.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELDS = "index,name,compute_cap,memory.total,driver_version,uuid"
# SMs whose float64 units run at half the rate of float32: A100, H100 and H200, B200.
FAST_FP64 = ("8.0", "9.0", "10.0")


class NoGpu(Exception):  # noqa: N818 - told to the user as it is
    """A GPU was asked for that is not there, or that another run has claimed; one line."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it; `capability` is "9.0" for sm_90."""

    index: int
    name: str
    capability: str
    memory: str
    driver: str
    uuid: str

    @property
    def sm(self) -> str:
        """The architecture's name: sm_90."""
        return f"sm_{self.capability.replace('.', '')}"

    def __str__(self) -> str:
        return f"{self.name}, {self.sm}, {self.memory}, driver {self.driver}"


@cache
def listed() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA would see, in its order; none where there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return _visible(parsed(answer), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parsed(listing: str) -> list[Gpu]:
    """Return the GPUs of nvidia-smi's list in CSV; lines that are something else are left out."""
    rows = list(csv.reader(listing.splitlines(), skipinitialspace=True))
    return [Gpu(int(row[0]), *row[1:]) for row in rows if len(row) == 6 and row[0].isdigit()]


def _visible(gpus: list[Gpu], chosen: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order; CUDA stops at the first that it cannot find."""
    if chosen is None:
        return tuple(gpus)
    found = []
    for word in filter(None, map(str.strip, chosen.split(","))):
        match = [gpu for gpu in gpus if word == str(gpu.index) or (word[:4] == "GPU-" and gpu.uuid.startswith(word))]
        if len(match) != 1:
            break
        found += match
    return tuple(found)


@contextmanager
def claim(wanted: str, *, folder: Path | None = None) -> Iterator[str]:
    """Hold a GPU; yield its name for torch, "cuda:1".

    Parameters
    ----------
    wanted
        "cuda:N", "cuda" (the first) or "auto" (the first that nobody has claimed).
    folder
        Where the locks lie; by default the folder for temporary files.

    Raises
    ------
    NoGpu
        There is no such GPU, it is claimed, or its lock file cannot be opened.
    """
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", wanted)
    if match is None:
        raise NoGpu(f"device {wanted!r}: expected cpu, auto, cuda or cuda:N")
    gpus = listed()
    if not gpus:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        which = "" if chosen is None else f" that CUDA_VISIBLE_DEVICES={chosen!r} names (MIG is not known)"
        raise NoGpu(f"device {wanted!r}: nvidia-smi lists no GPU{which}")
    numbers = range(len(gpus)) if wanted == "auto" else [int(match[1] or 0)]
    if numbers[0] >= len(gpus):
        raise NoGpu(f"device {wanted!r}: there {'is one GPU' if len(gpus) == 1 else f'are {len(gpus)} GPUs'}")
    owners = []
    for number in numbers:
        lock = _opened(folder or Path(tempfile.gettempdir()), gpus[number].uuid)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owners.append(f"cuda:{number} by process {os.pread(lock, 32, 0).decode(errors='replace').strip() or '?'}")
            os.close(lock)
            continue
        try:
            with suppress(OSError):  # another user's file, a full disk: the lock holds without a name in it
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own is the fastest first
            yield f"cuda:{number}"
        finally:
            os.close(lock)  # which gives it back
        return
    raise NoGpu(f"device {wanted!r}: claimed already: {', '.join(owners)}")


def _opened(folder: Path, uuid: str) -> int:
    """Open a GPU's lock file, of whichever user: one that may not be written can be locked all the same."""
    path = folder / f"fa4verify-{uuid}.lock"
    try:
        try:
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            made = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            with suppress(OSError):
                os.fchmod(made, 0o666)  # whatever the umask: the next user says who holds it
            return made
        except PermissionError:
            return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise NoGpu(f"{path}: cannot be locked: {error.strerror or error}") from error
