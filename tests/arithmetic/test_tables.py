"""Tables of another device: chosen before anything reads them, whole or not at all, never from a stale cache."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fa4verify.arithmetic import mufu, tables


def shipped():
    return tables.read()


@pytest.fixture
def other(tmp_path):
    """Return the tables of a device whose ex2 adds four to c0 of its first row: 2^0 comes out larger."""
    changed = shipped()
    changed["ex2"][0][0] += 4
    (tmp_path / tables.FILE).write_text(json.dumps(changed))
    return tmp_path


def test_a_fresh_process_emulates_the_other_device(other):
    code = (
        "import sys, pathlib; from fa4verify.arithmetic import tables; tables.use(pathlib.Path(sys.argv[1]));"
        "tables.use(pathlib.Path(sys.argv[1]));"
        "import numpy; from fa4verify.arithmetic.mufu import ex2_array;"
        "print(*(float(y).hex() for y in ex2_array(numpy.float32([0.0, 0.5]))))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(other)], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [float(x).hex() for x in mufu.ex2_array(np.float32([0.0, 0.5]))]
    assert told[1] == ours[1]
    assert told[0] != ours[0]
    assert list((other / "compiled").rglob("*.nbi")), "compiled elsewhere: another table would find it"


def test_tables_in_use_cannot_be_changed(other):
    with pytest.raises(RuntimeError, match="in use already"):
        tables.use(other)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda t: t["rcp"].pop(), "rcp is not a table of 128 rows"),
        (lambda t: t["lg2"][3].pop(), "lg2 is not a table"),
        (lambda t: t["tanh"][0].__setitem__(1, 0.5), "tanh is not a table"),
        (lambda t: t["ex2"].__setitem__(3, 7), "ex2 is not a table"),
        (lambda t: t.pop("tanh_segment_bits"), "no tanh_segment_bits"),
        (lambda t: t["tanh_segment_bits"].__setitem__(0, 5), "no tanh_segment_bits that make 51"),
        (lambda t: t.update(tanh_segment_bits="3"), "no tanh_segment_bits"),
    ],
)
def test_half_a_table_is_refused(tmp_path, damage, words):
    damaged = shipped()
    damage(damaged)
    with pytest.raises(ValueError, match=words):
        tables._checked(damaged, tmp_path / tables.FILE)


def test_code_compiled_before_the_tables_changed_is_not_used(other):
    """The checksum of the file is part of the cache's path."""
    code = (
        "import sys, pathlib; from fa4verify.arithmetic import tables; tables.use(pathlib.Path(sys.argv[1]));"
        "from numba.core import config; print(config.CACHE_DIR)"
    )

    def cache():
        command = [sys.executable, "-c", code, str(other)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    first = cache()
    assert cache() == first
    assert first.startswith(str(other.resolve() / "compiled"))
    changed = json.loads((other / tables.FILE).read_text())
    changed["rcp"][5][2] += 1
    (other / tables.FILE).write_text(json.dumps(changed))
    assert cache() != first
