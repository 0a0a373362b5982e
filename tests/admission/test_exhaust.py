"""The comparison of all inputs, with the floor in the device's place, right and wrong."""

import contextlib
import json
from importlib.resources import files

import numpy as np
import pytest

from fa4verify.admission import derive, record
from fa4verify.admission.exhaust import BLOCK, exhaust
from fa4verify.arithmetic import exhaust as floor
from fa4verify.arithmetic import tables
from fa4verify.cli import main
from fa4verify.plan import BadRequest
from fa4verify.runs import RunFileError

SHIPPED = json.loads(files("fa4verify.arithmetic").joinpath("mufu_tables.json").read_text())


def test_a_right_device_agrees_and_a_wrong_one_is_named():
    right = exhaust("ex2", floor.model, threads=2, blocks=[130, 385])
    assert (right.inputs, right.unlike, right.first, len(right.checksums)) == (2 * BLOCK, 0, None, 2)

    def wrong(name, first, count):
        answers = floor.model(name, first, count)
        answers[-1] += np.uint32(1)
        return answers

    off = exhaust("ex2", wrong, threads=2, blocks=[385, 130])
    at = 386 * BLOCK - 1
    ours = int(floor.model("ex2", at, 1)[0])
    assert (off.unlike, off.first) == (2, (f"{at:08x}", f"{ours + 1:08x}", f"{ours:08x}"))
    assert off.checksums[1] != right.checksums[0]
    assert "2 unlike" in str(off)
    assert "first at" in str(off)


def test_tables_are_written_and_can_be_loaded(tmp_path, monkeypatch, capsys):
    changed = json.loads(json.dumps(SHIPPED))
    changed["lg2"][3][0] += 1
    found = {name: changed[name] for name in (*tables.ROWS, "tanh_segment_bits")}
    monkeypatch.setattr(derive, "derived", lambda *_: (found, dict.fromkeys(tables.ROWS, 0)))
    assert record.write_tables(tmp_path, floor.model, SHIPPED, "a device") == ["lg2"]
    written = tables._checked(json.loads((tmp_path / tables.FILE).read_text()), tmp_path)
    assert written["lg2"][3] == changed["lg2"][3]
    assert written["provenance"]["device"] == "a device"


def test_another_structure_writes_nothing(tmp_path, monkeypatch, capsys):
    found = {name: SHIPPED[name] for name in tables.ROWS}
    monkeypatch.setattr(derive, "derived", lambda *_: (found, {"ex2": 1, "rcp": 0, "lg2": 0, "tanh": 0}))
    assert record.write_tables(tmp_path, floor.model, SHIPPED, "a device") is None
    assert "another structure" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [np.zeros(BLOCK - 1, np.uint32), np.zeros(0, np.uint32), np.zeros(BLOCK, np.float32)])
def test_answers_that_are_no_answers_are_not_counted(given):
    with pytest.raises(ValueError, match="expected one uint32 each"):
        exhaust("ex2", lambda *_: given, threads=1, blocks=[130])


def _asked(monkeypatch, blocks, answers=floor.model):
    from fa4verify.admission import exhaust as module

    monkeypatch.setattr(module, "on_gpu", lambda _: answers)
    monkeypatch.setattr(module, "exhaust", lambda *a, **o: exhaust(*a, **o, blocks=blocks))


@pytest.mark.parametrize("blocks", [[], [0, 1]])
def test_blocks_that_were_skipped_admit_nothing(monkeypatch, blocks):
    _asked(monkeypatch, blocks)
    assert record.compare("cuda:0", names=["ex2"], threads=1, tables=None, json_file=None) == 1


def test_what_cannot_be_written_is_refused_before_the_device_is_asked(monkeypatch, tmp_path):
    def answers(*_):
        raise AssertionError("asked")

    _asked(monkeypatch, [], answers)
    (tmp_path / "file").write_text("")
    for file in (tmp_path, tmp_path / "file" / "a.json"):
        with pytest.raises(RunFileError, match="cannot write"):
            record.compare("cuda:0", names=["ex2"], threads=1, tables=None, json_file=file)
    with pytest.raises(BadRequest, match="is not empty"):
        record.record(tmp_path, "cuda:0", threads=1)


@pytest.mark.parametrize("command", [["admit"], ["record-device", "folder"]])
def test_no_thread_compares_nothing(command, capsys):
    assert main([*command, "--threads", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["admit"], ["record-device", "folder"]])
def test_a_device_that_torch_cannot_use_is_one_line(command, monkeypatch, capsys):
    monkeypatch.setattr("fa4verify.gpus.claim", lambda _: contextlib.nullcontext("cuda:63"))
    assert main(command) == 2
    assert capsys.readouterr().err.startswith("fa4verify: device 'cuda:63': torch cannot use it")
