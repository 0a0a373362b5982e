"""Run files: what was written is read back, and every broken file is one clear line."""

from __future__ import annotations

import errno
import math
import os
import resource
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from fa4verify import runs
from fa4verify.runs import RunFileError, RunHeader, RunWriter
from fa4verify.vocabulary import Case, Distribution, Finding, Metrics, Record, Study, Verdict

DATE = datetime(2026, 11, 29, 19, 15, tzinfo=UTC)


def header(*asked: str, **fields: object) -> RunHeader:
    return RunHeader(date=DATE, version="0.1", suite="gate", asked=asked, **fields)


def record(name: str, **fields: object) -> Record:
    case = Case(id=name, operation="forward", kernel="fa4-sm90", distribution=Distribution("normal"))
    fields = {"case": case, "verdict": Verdict("PASS", (Finding("o.rmse 1 <= 2", passed=True),))} | fields
    return Record(**fields)


def written(path: Path, *records: Record, **fields: object) -> Path:
    with RunWriter(path, header(*(item.case.id for item in records), **fields)) as writer:
        for item in records:
            assert writer.write(item) == item
    return path


def test_everything_comes_back(tmp_path: Path) -> None:
    names = ("a", "b\nnewline", "c | pipe `tick` \x00\x1b[31m", "数值 \U0001f4a5 \u2028")
    records = [
        record(
            name,
            metrics={"o": Metrics({"rmse": 5e-324, "max_abs": 1.7976931348623157e308}, {"max_abs": (0, 1, 2)})},
            verdict=Verdict("FAIL", (Finding(name, value=0.1, limit=-0.0, where=(1, 2)),)),
        )
        for name in names
    ]
    study = Study(rows="options.tau", columns=("dtype",), values=("o.rmse",), relative_to=0)
    path = written(tmp_path / "new" / "folders" / "run.jsonl", *records, study=study, fingerprint={"cpu": "x"})
    run = runs.read(path)
    assert run.records == tuple(records)
    assert run.header == header(*names, study=study, fingerprint={"cpu": "x"})
    assert run.notes == ()
    assert len(path.read_bytes().splitlines()) == 5, "one line for each Record, whatever is in it"


def test_lines_are_on_disk_before_the_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    path = tmp_path / "run.jsonl"
    with RunWriter(path, header("a", "b")) as writer:
        for name in ("a", "b"):
            writer.write(record(name))
            assert runs.read(path).records[-1].case.id == name
            assert synced[-1] == path.stat().st_size
    assert len(synced) == 3


def test_a_file_cut_at_any_byte_is_readable_or_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "run.jsonl", record("a"), record("é"), record("c"))
    whole = path.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        monkeypatch.setattr(Path, "read_bytes", lambda _, size=size: whole[:size])
        if size < ends[0]:
            with pytest.raises(RunFileError, match=r"^/.*jsonl: .*(empty|not a fa4verify run file|cut off)[^\n]*$"):
                runs.read(path)
            continue
        run = runs.read(path)
        complete = sum(end <= size for end in ends[1:])  # only its newline may be missing
        note = f"line {complete + 2} is cut off: {complete} of 3 cases are readable"
        cut_off = size not in {*ends, *(end + 1 for end in ends)}
        assert len(run.records) == complete
        assert run.notes == ((note,) if cut_off else ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"id,rmse\na,1\n", "not a fa4verify run file"),
        (b"{}\n", "not a fa4verify run file"),
        (b'{"file":"another","schema":1}\n', "not a fa4verify run file"),
        (b"\xff\xfe\x00", "not a fa4verify run file"),
        (b'{"file":"fa4verify-run","sch', "the header is cut off, no case is readable"),
        (
            b'{"file":"fa4verify-run","schema":2,"new":[]}\n',
            "written by a newer fa4verify (schema 2, this one reads up to 1)",
        ),
        (b'{"file":"fa4verify-run","schema":1}\n', "the header is unreadable (Object missing required field `date`)"),
    ],
)
def test_a_file_without_a_header_to_trust_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RunFileError) as caught:
        runs.read(path)
    assert str(caught.value) == f"{path}: {message}"


def test_no_file_and_a_folder_are_one_clear_line(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(RunFileError) as caught:
            runs.read(path)
        assert str(caught.value) == f"{path}: cannot read: {message}"


@pytest.mark.parametrize(
    "line", [b"garbage", b"\x00" * 40, b"{}", b'{"case":{"id":"\xff"}}', b'{"case":{"options":{"a":' + b"[" * 9000]
)
def test_a_corrupt_line_in_the_middle_costs_itself_only(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path / "run.jsonl", record("a"), record("b"), record("c"))
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    run = runs.read(path)
    assert [item.case.id for item in run.records] == ["a", "c"]
    (note,) = run.notes
    assert note.startswith("line 3 is unreadable (")
    assert note.endswith(": 2 of 3 cases are readable")
    assert "\n" not in note


def test_a_forged_pass_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", record("a"))
    path.write_bytes(path.read_bytes().replace(b'"passed":true', b'"passed":false'))
    run = runs.read(path)
    assert run.records == ()
    assert "a PASS needs at least one budget" in run.notes[0]


def test_infinite_arguments_are_legitimate(tmp_path: Path) -> None:
    case = Case(
        id="a",
        operation="forward",
        kernel="fa4-sm100",
        distribution=Distribution("sinks", {"values": [-math.inf, 0.5]}),
        options={"rescale_threshold": math.inf, "nested": {"c": [1.0, math.inf]}, "mode": "infinite"},
    )
    path = written(tmp_path / "run.jsonl", record("a", case=case))
    assert b'"rescale_threshold":"inf"' in path.read_bytes()
    assert runs.read(path).records[0].case == case


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"metrics": {"o": Metrics({"rmse": math.nan})}}, "metrics.o.values.rmse is nan"),
        ({"activity": {"max_p": math.inf}}, "activity.max_p is inf"),
        ({"provenance": {"path": "\ud800"}}, "surrogates not allowed"),
        ({"command": object()}, "Encoding objects of type object is unsupported"),
    ],
)
def test_what_strict_json_cannot_tell_is_stored_as_crashed(tmp_path: Path, fields: dict, problem: str) -> None:
    with RunWriter(tmp_path / "run.jsonl", header("a")) as writer:
        if "command" in fields:
            fields = {"case": msgspec.structs.replace(record("a").case, options={"degree": fields["command"]})}
        stored = writer.write(record("a", **fields))
    assert runs.read(writer.path).records == (stored,)
    assert stored.verdict.outcome == "CRASHED"
    assert stored.verdict.findings[0].message.startswith("was PASS, but cannot be stored: ")
    assert problem in stored.verdict.findings[0].message


def test_an_infinite_value_of_a_finding_keeps_the_verdict(tmp_path: Path) -> None:
    verdict = Verdict("FAIL", (Finding("o.rmse is inf times the baseline", value=math.inf, limit=2.0),))
    path = written(tmp_path / "run.jsonl", record("a", verdict=verdict))
    (finding,) = runs.read(path).records[0].verdict.findings
    assert finding == Finding("o.rmse is inf times the baseline", value=None, limit=2.0)


def test_a_full_disk_is_one_clear_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with RunWriter(path, header("a", "b", "c")) as writer:
        writer.write(record("a"))
        assert writer._file is not None
        file, full = os.dup(writer._file.fileno()), os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file.fileno())
        with pytest.raises(RunFileError) as caught:
            writer.write(record("b"))
        os.dup2(file, writer._file.fileno())
        os.close(file)
        os.close(full)
    assert (
        str(caught.value) == f"{path}: cannot write: {os.strerror(errno.ENOSPC)}; the records made so far are readable"
    )
    run = runs.read(path)
    assert [item.case.id for item in run.records] == ["a"]
    assert run.notes == ()


def test_a_line_written_in_part_is_taken_back(tmp_path: Path) -> None:
    """A file-size limit lets the kernel write half a line, as a disk does that fills up."""
    path = tmp_path / "run.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunWriter(path, header("a", "b", "c")) as writer:
        writer.write(record("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
        try:
            with pytest.raises(RunFileError, match="cannot write: File too large"):
                writer.write(record("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert runs.read(path).notes == ()
        writer.write(record("c"))
    run = runs.read(path)
    assert [item.case.id for item in run.records] == ["a", "c"]
    assert run.notes == ()


def test_the_writer_refuses_to_overwrite_and_to_write_where_it_cannot(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", record("a"))
    for target, message in (
        (path, "run.jsonl: cannot create: File exists"),
        (path / "below", "run.jsonl: cannot create: File exists"),
    ):
        with pytest.raises(RunFileError, match=message), RunWriter(target, header()):
            pass
    assert len(runs.read(path).records) == 1


def test_default_paths_never_collide_and_hold_no_surprises(tmp_path: Path) -> None:
    head = header(machine="xeon-2c", commit="abc123")
    first = runs.default_path(tmp_path, head)
    assert first == tmp_path / "xeon-2c" / "20261129T191500Z-abc123.jsonl"
    written(first)
    second = runs.default_path(tmp_path, head)
    assert second.name == "20261129T191500Z-abc123-2.jsonl"
    written(second)
    assert runs.default_path(tmp_path, head).name == "20261129T191500Z-abc123-3.jsonl"
    assert runs.default_path(tmp_path, header()) == tmp_path / "unknown" / "20261129T191500Z.jsonl"
    hostile = runs.default_path(tmp_path, header(machine="../../etc", commit="a/b c"))
    assert hostile == tmp_path / "etc" / "20261129T191500Z-a-b-c.jsonl"


def test_the_header_says_how_to_run_it_again_and_on_what():
    cpu = header((), kernel="mine:attention", select="causal and dtype=bf16", fingerprint={"cpu": "A CPU"})
    assert " ".join(cpu.command(cpu.select)) == (
        "fa4verify run gate --select causal and dtype=bf16 --kernel mine:attention"
    )
    assert cpu.place == "A CPU"
    gpu = header((), device="cuda:1", fingerprint={"cpu": "A CPU", "gpu 0": "another", "gpu 1": "H200"})
    assert gpu.command("id=a")[-4:] == ["--select", "id=a", "--device", "cuda:1"]
    assert gpu.place == "H200, A CPU"
    assert header(()).place == "an unknown machine"
