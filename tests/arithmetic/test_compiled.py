"""Machine code is dropped when any source of the package changed, and only then."""

import os
import subprocess
import sys

from fa4verify.arithmetic.compiled import discard_stale

INNER = "import numba\n\n@numba.njit(cache=True)\ndef inner():\n    return {value}\n"
OUTER = "import numba\nfrom inner import inner\n\n@numba.njit(cache=True)\ndef outer():\n    return inner()\n"


def test_only_a_changed_source_discards(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    cached = tmp_path / "__pycache__" / "a.nbc"
    assert discard_stale(tmp_path)
    cached.write_bytes(b"code")
    assert not discard_stale(tmp_path)
    assert cached.exists()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert discard_stale(tmp_path)
    assert not cached.exists()


def test_a_new_and_a_renamed_source_discard(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    discard_stale(tmp_path)
    (tmp_path / "b.py").write_text("")
    assert discard_stale(tmp_path)
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert discard_stale(tmp_path)


def test_an_edit_of_the_floor_discards_and_one_of_a_neighbour_does_not(tmp_path):
    floor, room, neighbour = (tmp_path / name for name in ("floor", "room", "neighbour"))
    for folder in (floor, room, neighbour):
        folder.mkdir()
        (folder / "a.py").write_text("x = 1\n")
    discard_stale(room, floor)
    (neighbour / "a.py").write_text("x = 2\n")
    assert not discard_stale(room, floor)
    (floor / "a.py").write_text("x = 2\n")
    assert discard_stale(room, floor)
    assert not discard_stale(room, floor)


def test_the_fault_it_guards_against_is_real_and_gone(tmp_path):
    """An edited inlined function: numba alone returns the old value, with the guard the new one."""
    (tmp_path / "outer.py").write_text(OUTER)

    def run(value, guarded):
        (tmp_path / "inner.py").write_text(INNER.format(value=value))
        if guarded:
            discard_stale(tmp_path)
        code = "from outer import outer; print(outer())"
        environment = {**os.environ, "NUMBA_CACHE_DIR": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        return int(done.stdout)

    assert run(1, guarded=True) == 1
    assert run(2, guarded=False) == 1, "numba notices by itself now: the guard may go"
    assert run(3, guarded=True) == 3
