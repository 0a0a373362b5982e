"""Run files: Records to and from JSON lines, the only thing written and read back.

Contract: the first line is a RunHeader, every further line a Record, in the order in which they came. A line is on the
disk (fsync) before `write` returns, so Ctrl-C, a crash or a full disk costs at most the line being written. The header
lists the ids of all cases asked for: a run that ended early shows what is missing.

JSON is strict, so inf and nan have no number. In a case's free arguments (`options`, `distribution.arguments`) they are
legitimate (`rescale_threshold = inf`): stored as the strings "inf", "-inf", "nan", which `read` turns back. A finding's
value or limit becomes null, its message tells. Anywhere else they break the vocabulary's promise: the Record is stored
as CRASHED with the path of the number.
`read` also takes a run file packed by xz, which `baseline.keep` writes.
Fails first where the text is cut in the middle: tests/test_runs.py reads a file cut at every byte.
"""

from __future__ import annotations

import lzma
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fa4verify.vocabulary import Case, Distribution, Finding, Record, Study, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

SCHEMA = 1

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_XZ = b"\xfd7zXZ\x00"
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class RunFileError(Exception):
    """A run file cannot be written or read; the message is one line that starts with its path."""


class RunHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="file", tag="fa4verify-run"):
    """What was asked for, of which code, where and when.

    `machine` names the folder (`devices.machine_slug`), `kernel` and `select` are those of the command line, `device`
    is what GPU kernels ran on ("cuda:0", "cpu"), `asked` holds the ids of all cases. `date` is in UTC.
    """

    date: datetime
    version: str
    suite: str
    schema: int = SCHEMA
    commit: str = ""
    machine: str = ""
    kernel: str | None = None
    select: str | None = None
    device: str | None = None
    study: Study | None = None
    fingerprint: dict[str, str] = {}
    asked: tuple[str, ...] = ()

    def command(self, select: str | None) -> list[str]:
        """Return the words of the command line that runs what `select` picks of the suite once more."""
        words = ["fa4verify", "run", self.suite or "SUITE.toml"]
        given = (("--select", select), ("--kernel", self.kernel), ("--device", self.device))
        return words + [word for name, value in given if value for word in (name, value)]

    @property
    def gpu(self) -> str | None:
        """The GPU that `device` names, in the words of the fingerprint."""
        return self.fingerprint.get(f"gpu {(self.device or '').partition(':')[2]}")

    @property
    def place(self) -> str:
        """What it ran on: the GPU, if it had one, and the processor."""
        return ", ".join(filter(None, (self.gpu, self.fingerprint.get("cpu") or self.machine or "an unknown machine")))


class _Mark(msgspec.Struct, tag_field="file", tag="fa4verify-run"):
    """The part of a header that every schema has: enough to tell a newer file from a broken one."""

    schema: int


@dataclass(frozen=True)
class Run:
    """A run file read back. Each of `notes` is a line about something that could not be read."""

    header: RunHeader
    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()


class RunWriter:
    """Writes a new run file, line by line; a context manager.

    Raises RunFileError when the file exists, cannot be created, or the disk is full. After a failed write the file ends
    with the last whole line, and writing may go on once there is room.
    """

    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        self._header = header
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        """Create the folders and the file, and write the header."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "xb")
        except OSError as error:
            raise RunFileError(f"{error.filename or self.path}: cannot create: {error.strerror or error}") from error
        try:
            self._append(msgspec.json.encode(self._header))
        except RunFileError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file; everything written is on the disk already."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, record: Record) -> Record:
        """Append one Record and return it as stored: CRASHED instead, if it cannot be told in strict JSON."""
        record, line = _line(record)
        self._append(line)
        return record

    def _append(self, line: bytes) -> None:
        if self._file is None:
            raise ValueError("RunWriter writes only inside its `with` block")
        end = self._file.tell()
        left = memoryview(line + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.seek(end)
                self._file.truncate()
            message = f"{self.path}: cannot write: {error.strerror or error}; the records made so far are readable"
            raise RunFileError(message) from error


def read(path: Path) -> Run:
    """Read a run file; what cannot be read of it becomes a note.

    Raises RunFileError when there is no header to trust: no file, an empty one, another kind of file, a newer schema.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunFileError(f"{path}: cannot read: {error.strerror or error}") from error
    if content.startswith(_XZ):
        try:
            content = lzma.decompress(content)
        except lzma.LZMAError as error:
            raise RunFileError(f"{path}: cannot be unpacked: {_one_line(error)}") from error
    if not content.strip():
        raise RunFileError(f"{path}: the file is empty")
    first, *lines = content.split(b"\n")
    header = _header(path, first, cut_off=not lines)
    # What follows the last newline is nothing, or a line that was never finished.
    last = len(lines) + 1
    records, notes = [], []
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            records.append(_with_free_arguments(msgspec.json.decode(line, type=Record), _from_string))
        except _UNREADABLE as error:
            problem = "cut off" if number == last else f"unreadable ({_one_line(error)})"
            notes.append(f"line {number} is {problem}")
    notes = [f"{note}: {len(records)} of {len(header.asked)} cases are readable" for note in notes]
    return Run(header, tuple(records), tuple(notes))


def packed(run: Run) -> bytes:
    """Return a run file packed by xz: the same bytes for the same run."""
    lines = [msgspec.json.encode(run.header), *(_line(record)[1] for record in run.records)]
    return lzma.compress(b"\n".join([*lines, b""]), preset=9)


def default_path(root: Path, header: RunHeader) -> Path:
    """`<root>/<machine>/<date>-<commit>.jsonl`, with -2, -3, ... where such a file exists."""
    folder = root / (_file_name(header.machine) or "unknown")
    stem = "-".join(
        part for part in (f"{header.date.astimezone(UTC):%Y%m%dT%H%M%SZ}", _file_name(header.commit)) if part
    )
    path, count = folder / f"{stem}.jsonl", 1
    while path.exists():
        count += 1
        path = folder / f"{stem}-{count}.jsonl"
    return path


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")


def _header(path: Path, line: bytes, *, cut_off: bool) -> RunHeader:
    try:
        schema = msgspec.json.decode(line, type=_Mark).schema
    except _UNREADABLE:
        started = cut_off and line.startswith(b'{"file":"fa4verify-run"')
        problem = "the header is cut off, no case is readable" if started else "not a fa4verify run file"
        raise RunFileError(f"{path}: {problem}") from None
    if schema > SCHEMA:
        raise RunFileError(f"{path}: written by a newer fa4verify (schema {schema}, this one reads up to {SCHEMA})")
    try:
        return msgspec.json.decode(line, type=RunHeader)
    except _UNREADABLE as error:
        raise RunFileError(f"{path}: the header is unreadable ({_one_line(error)})") from None


def _line(record: Record) -> tuple[Record, bytes]:
    """Encode a Record, or the news that it cannot be encoded; msgspec itself would write inf and nan as null."""
    try:
        stored = _with_free_arguments(record, _to_string)
        tree = msgspec.to_builtins(stored)
        tree.pop("verdict")
        problem = next(_non_finite(tree, ""), None)
        if problem is None:
            return record, msgspec.json.encode(stored)
    except (TypeError, ValueError) as error:  # a type that JSON does not have, a lone surrogate
        problem = ascii(str(error))
    crashed = Record(
        case=_bare(record.case),
        verdict=Verdict("CRASHED", (Finding(f"was {record.verdict.outcome}, but cannot be stored: {problem}"),)),
        command=record.command,
    )
    return crashed, msgspec.json.encode(crashed)


def _bare(case: Case) -> Case:
    """Keep of a case what identifies it and is always storable."""
    distribution = Distribution(case.distribution.name)
    return Case(case.id, case.operation, case.kernel, distribution, case.dtype, case.shape, suite=case.suite)


def _with_free_arguments(record: Record, convert: Callable[[Any], Any]) -> Record:
    case: Case = record.case
    options, arguments = convert(case.options), convert(case.distribution.arguments)
    if options == case.options and arguments == case.distribution.arguments:
        return record
    distribution = msgspec.structs.replace(case.distribution, arguments=arguments)
    return msgspec.structs.replace(
        record, case=msgspec.structs.replace(case, options=options, distribution=distribution)
    )


def _to_string(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_string(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_string(item) for item in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def _from_string(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_string(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_string(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _non_finite(value: Any, path: str) -> Iterator[str]:
    """Say where in a tree of builtins a float is inf or nan."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
