"""The self-test passes here, and each of its checks fails on a machine that is made wrong on purpose."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fa4verify import devices
from fa4verify.gpus import Gpu

if TYPE_CHECKING:
    from pathlib import Path


def statuses(word: str) -> set[str]:
    return {status for name, check in devices._CHECKS if word in name for status, _ in check()}


def test_this_machine_can_be_trusted() -> None:
    checks = devices.self_test()
    assert [check for check in checks if check.status == "fail"] == []
    assert {check.name for check in checks} == {name for name, _ in devices._CHECKS}


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush subnormals")
def test_flushed_subnormals_are_found_by_every_library() -> None:
    torch.set_flush_denormal(True)
    try:
        checks = devices.self_test()
    finally:
        torch.set_flush_denormal(False)
    failed = [check for check in checks if check.status == "fail"]
    assert {check.name for check in failed} == {"subnormals, numpy", "subnormals, numba", "subnormals, torch"}
    assert "inputs (DAZ) and results (FTZ) are flushed to zero" in failed[0].found
    assert statuses("subnormals") == {"ok"}


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_tf32_is_found(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert statuses("TF32") == {"fail"}
    finally:
        torch.set_float32_matmul_precision(before)
    assert statuses("TF32") == {"ok"}


def test_a_product_that_depends_on_threads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cores", lambda: 8)
    assert devices._threads(lambda _: b"same")[0] == "ok"
    assert devices._threads(lambda threads: bytes([threads]))[0] == "warn"
    monkeypatch.setattr(devices, "_cores", lambda: 1)
    assert devices._threads(lambda _: b"same")[0] == "absent"


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    devices.self_test()
    assert torch.get_num_threads() == before


def test_the_fma_triple_tells_three_ways_of_adding_apart() -> None:
    a, b, c = map(np.float32, devices.FMA_TRIPLE)
    assert [float(x) for x in (a, b, c)] == list(devices.FMA_TRIPLE), "the triple must be exact in fp32"
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    lower, upper = Fraction(devices.FUSED), Fraction(devices.NOT_FUSED)
    assert upper - lower == Fraction(2) ** -23
    assert lower < exact < (lower + upper) / 2, "rounded once, the sum is the lower neighbour"
    assert float(a * b + c) == devices.NOT_FUSED
    assert float(np.float32(np.float64(a) * np.float64(b) + np.float64(c))) == devices.NOT_FUSED


def test_a_wrong_fma_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two results swapped, a true FMA looks like one that is not fused and the other way round."""
    fused, apart = devices.FUSED, devices.NOT_FUSED
    monkeypatch.setattr(devices, "FUSED", apart)
    monkeypatch.setattr(devices, "NOT_FUSED", fused)
    assert statuses("FMA") == {"fail"}


def test_a_missing_or_broken_library_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("half installed")
        yield

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(devices, "_CHECKS", (("torch", devices._tf32), ("broken", broken)))
    missing, failed = devices.self_test()
    assert (missing.status, failed.status) == ("absent", "fail")
    assert failed.found == "RuntimeError: half installed"


def test_the_fingerprint_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys; from fa4verify import devices; facts = devices.fingerprint(gpus=True); devices.machine_slug();"
        "assert not {'torch', 'numba'} & set(sys.modules); print(*facts)"
    )
    named = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"python", "os", "cpu", "cores", "torch", "numpy", "flash-attn-4", "blas"} <= set(named)


def test_the_fingerprint_tells_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PACKAGES", ("numpy", "no-such-package"))
    facts = devices.fingerprint()
    assert facts["no-such-package"] == "not installed"
    assert facts["numpy"] == np.__version__
    assert all(isinstance(value, str) and value for value in facts.values())


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "listed", tuple)
    assert devices._gpus() == {"gpu": "none (nvidia-smi gave no list)"}
    found = Gpu(0, "NVIDIA H200", "9.0", "143771 MiB", "570.1", "GPU-1")
    monkeypatch.setattr(devices, "listed", lambda: (found,))
    assert devices._gpus() == {"gpu 0": "NVIDIA H200, sm_90, 143771 MiB, driver 570.1"}


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "intel-xeon-platinum-8480c"),
        ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core"),
        ("unknown", "unknown"),
        ("../../etc/数值", "etc"),
    ],
)
def test_the_slug_is_a_plain_folder_name(monkeypatch: pytest.MonkeyPatch, model: str, slug: str) -> None:
    monkeypatch.setattr(devices, "_cpu", lambda: (model, []))
    monkeypatch.setattr(devices, "_cores", lambda: 4)
    assert devices.machine_slug().endswith(f"-{slug}-4c")


def test_the_commit_and_whether_it_is_clean(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *command], check=True, capture_output=True)

    assert devices.git_commit(tmp_path / "nowhere") == ""
    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    git("tag", "v1")
    clean = devices.git_commit(tmp_path)
    assert len(clean) == 12
    assert int(clean, 16) >= 0
    (tmp_path / "file").write_text("b")
    assert devices.git_commit(tmp_path) == f"{clean}-dirty"
