"""The comparison of all inputs, with the floor in the device's place, right and wrong."""

import json
from importlib.resources import files

import numpy as np

from fa4verify.admission import derive, record
from fa4verify.admission.exhaust import BLOCK, exhaust
from fa4verify.arithmetic import exhaust as floor
from fa4verify.arithmetic import tables

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
