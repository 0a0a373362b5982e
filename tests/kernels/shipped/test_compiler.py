"""What is kept on disk comes back, what is damaged is compiled anew, and a changed source has another folder."""

import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fa4verify.kernels.shipped import compiler
from fa4verify.kernels.shipped.compiler import Compiled, KernelCache, cache_folder, taken_apart
from fa4verify.kernels.shipped.target import TARGETS


class FromTheDsl:
    """What `cute.compile` returns, as far as it is looked at."""

    def __init__(self, ptx=".visible .entry kernel()"):
        self.artifacts = SimpleNamespace(PTX=ptx)

    def export_to_c(self, object_file_path, function_name):
        """Write the object."""
        Path(object_file_path).write_bytes(b"object of " + function_name.encode())


def ran(function, arguments):
    raise AssertionError("nothing is run here")


def test_a_kernel_is_taken_apart_once_and_read_back(tmp_path):
    first = KernelCache("_flash_attn_fwd", tmp_path, ran)
    key = (1, "a", (True, None))
    assert key not in first
    first[key] = FromTheDsl()
    second = KernelCache("_flash_attn_fwd", tmp_path, ran)
    assert key in second
    assert second[key].compiled == first[key].compiled == Compiled(b"object of fa4verify", ".visible .entry kernel()")
    assert (1, "b", (True, None)) not in second
    assert key not in KernelCache("_flash_attn_bwd", tmp_path, ran), "the same key of another function"


@pytest.mark.parametrize("kept", [b"", b"x", zlib.compress(b"\x93\x01\x02\x03"), None])
def test_a_damaged_file_is_a_miss_and_is_replaced(tmp_path, kept):
    cache = KernelCache("f", tmp_path, ran)
    cache["k"] = FromTheDsl()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5] if kept is None else kept)
    again = KernelCache("f", tmp_path, ran)
    assert "k" not in again
    again["k"] = FromTheDsl()
    assert "k" in KernelCache("f", tmp_path, ran)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = KernelCache("f", blocked / "below", ran)
    cache["k"] = FromTheDsl()
    assert "k" in cache
    assert "k" not in KernelCache("f", blocked / "below", ran)


def test_without_ptx_nothing_is_kept():
    with pytest.raises(RuntimeError, match="kept no PTX"):
        taken_apart(FromTheDsl(ptx=None))


def test_the_folder_depends_on_target_and_sources(tmp_path, monkeypatch):
    pytest.importorskip("flash_attn.cute", exc_type=ImportError)
    monkeypatch.setenv("FA4VERIFY_CACHE_DIR", str(tmp_path))
    hopper = TARGETS["sm_90a"]
    folders = {cache_folder(target) for target in (*TARGETS.values(), replace(hopper, sm_count=114))}
    assert len(folders) == len(TARGETS) + 1
    assert cache_folder(hopper) == cache_folder(replace(hopper))
    monkeypatch.setattr(compiler, "_VERSIONS", ("msgspec",))
    compiler._fingerprint.cache_clear()
    other = cache_folder(hopper)
    compiler._fingerprint.cache_clear()
    assert other not in folders
    monkeypatch.setenv("FA4VERIFY_CACHE_DIR", "")
    assert cache_folder(hopper) is None


def test_a_file_holds_exactly_what_was_compiled(tmp_path):
    cache = KernelCache("f", tmp_path, ran)
    cache["k"] = FromTheDsl()
    (file,) = tmp_path.iterdir()
    assert msgspec.msgpack.decode(zlib.decompress(file.read_bytes())) == {
        "object_file": b"object of fa4verify",
        "ptx": ".visible .entry kernel()",
    }
