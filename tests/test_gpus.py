"""Which GPUs there are, which are visible, and that a claim keeps others out."""

import os
import subprocess
import sys

import pytest

from fa4verify import gpus

LISTING = """\
0, NVIDIA H200, 9.0, 143771 MiB, 580.159.04, GPU-aaaa-1
1, NVIDIA A100, 8.0, 81920 MiB, 580.159.04, GPU-bbbb-2
No devices were found
"""


@pytest.fixture
def two(monkeypatch):
    found = tuple(gpus.parsed(LISTING))
    monkeypatch.setattr(gpus, "listed", lambda: found)
    return found


def test_a_listing_is_read_and_other_lines_are_not():
    first, second = gpus.parsed(LISTING)
    assert (first.sm, second.index) == ("sm_90", 1)
    assert str(first) == "NVIDIA H200, sm_90, 143771 MiB, driver 580.159.04"


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["H200", "A100"]),
        ("1,0", ["A100", "H200"]),
        ("GPU-bbbb", ["A100"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["A100"]),
        ("GPU-", []),  # names both
    ],
)
def test_the_order_is_that_of_the_cuda_runtime(chosen, names):
    found = gpus._visible(gpus.parsed(LISTING), chosen)
    assert [gpu.name.removeprefix("NVIDIA ") for gpu in found] == names


def test_a_claim_keeps_others_out_and_ends_with_its_block(two, tmp_path):
    with gpus.claim("auto", folder=tmp_path) as first, gpus.claim("auto", folder=tmp_path) as second:
        assert (first, second) == ("cuda:0", "cuda:1")
        for wanted in ("auto", "cuda", "cuda:1"):
            with (
                pytest.raises(gpus.NoGpu, match=f"claimed already.* by process {os.getpid()}"),
                gpus.claim(wanted, folder=tmp_path),
            ):
                pass
    with gpus.claim("cuda:0", folder=tmp_path) as again:
        assert again == "cuda:0"


def test_another_process_is_kept_out_too(two, tmp_path):
    code = (
        "import sys, pathlib; from fa4verify import gpus\n"
        f"gpus.listed = lambda: tuple(gpus.parsed({LISTING!r}))\n"
        "with gpus.claim('cuda:0', folder=pathlib.Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with gpus.claim("cuda:0", folder=tmp_path):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "claimed already: cuda:0 by process" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("wanted", ["cuda:2", "gpu", "cuda:x", "0"])
def test_what_is_not_there_is_one_line(two, wanted, tmp_path):
    with pytest.raises(gpus.NoGpu, match=f"device '{wanted}'"), gpus.claim(wanted, folder=tmp_path):
        pass


def test_without_a_driver_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus.listed.cache_clear()
    try:
        assert gpus.listed() == ()
        with pytest.raises(gpus.NoGpu, match="lists no GPU"), gpus.claim("auto", folder=tmp_path):
            pass
    finally:
        gpus.listed.cache_clear()


def test_another_users_lock_file_locks_all_the_same(two, tmp_path, monkeypatch):
    """Root may write anything, so that the refusal is played."""
    path = tmp_path / "fa4verify-GPU-aaaa-1.lock"
    path.write_text("4711")
    really = os.open

    def refusing(name, flags, *mode):
        if flags & os.O_RDWR and str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(name))
        return really(name, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    with gpus.claim("cuda:0", folder=tmp_path) as device:
        assert device == "cuda:0"
        with pytest.raises(gpus.NoGpu, match="by process 4711"), gpus.claim("cuda:0", folder=tmp_path):
            pass
    with gpus.claim("cuda:0", folder=tmp_path):
        pass


def test_a_lock_is_everybodys_whatever_the_umask(two, tmp_path):
    before = os.umask(0o077)
    try:
        with gpus.claim("cuda:0", folder=tmp_path):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "fa4verify-GPU-aaaa-1.lock").stat().st_mode & 0o777 == 0o666


def test_a_folder_without_place_for_a_lock_is_one_line(two, tmp_path):
    with (
        pytest.raises(gpus.NoGpu, match=r"lock: cannot be locked: No such file"),
        gpus.claim("auto", folder=tmp_path / "gone"),
    ):
        pass


def test_what_hides_all_gpus_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "listed", lambda: ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(gpus.NoGpu, match="CUDA_VISIBLE_DEVICES='MIG-1234'"), gpus.claim("auto", folder=tmp_path):
        pass


def test_cuda_counts_as_nvidia_smi_does(two, tmp_path, monkeypatch):
    """Of unlike GPUs CUDA calls the fastest 0: the lock would be another one's."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "?")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    with gpus.claim("cuda:1", folder=tmp_path):
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
