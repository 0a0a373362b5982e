"""One Record for every case, whatever the kernel does to its process."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
import torch

from fa4verify.flow import VacuousBudget, admit
from fa4verify.sweep import Setup, Workers, _cause, _last_words, default_workers, sweep
from fa4verify.vocabulary import Budget, Case, Distribution, Shape, Suite

BUDGET = Budget("o", "o", "relative_rmse", "absolute", 0.02, "a few bf16 unit roundoffs (2^-8)")
SHAPE = Shape(seqlen_q=64, seqlen_k=64, heads=2, heads_kv=2, head_dim=32, head_dim_v=32)


def case(kernel, **fields):
    name = kernel if kernel == "standard" else f"their_kernels:{kernel}"
    return Case(
        id=f"case-{kernel}", operation="forward", kernel=name, distribution=Distribution("normal"), shape=SHAPE,
        budgets=(BUDGET,), **{"timeout_s": 100.0} | fields
    )  # fmt: skip


OUTCOMES = {
    "good": ("PASS", "relative_rmse"),
    "prints": ("PASS", "relative_rmse"),
    "standard": ("PASS", "relative_rmse"),
    "zeros": ("FAIL", "relative_rmse"),
    "nan": ("FAIL", "nan"),
    "wrong_shape": ("FAIL", "expected a torch.Tensor (1, 64, 2, 32) torch.bfloat16, got (1, 2, 64, 32)"),
    "wrong_dtype": ("FAIL", "got (1, 64, 2, 32) torch.float32"),
    "mutates": ("FAIL", "wrote to its input k"),
    "without_causal": ("SKIPPED", "does not take causal"),
    "raises": ("CRASHED", "RuntimeError: no such thing"),
    "exits": ("CRASHED", "SystemExit: enough"),
    "leaves": ("CRASHED", "exit code 3; it said: goodbye"),
    "leaves_with_0": ("CRASHED", "the worker process died: exit code 0; it said: done"),
    "segfaults": ("CRASHED", "signal 11 (SIGSEGV); it said: Fatal Python error: Segmentation fault"),
    "hangs": ("TIMEOUT", "no result after 2 s"),
}


def test_what_a_kernel_does_costs_its_own_record_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)
    fields = {"hangs": {"timeout_s": 2.0}, "without_causal": {"causal": True}}
    cases = [case(kernel, **fields.get(kernel, {})) for kernel in OUTCOMES]
    started = []
    records = list(sweep(cases, workers=2, on_start=lambda taken: started.append(taken.id)))

    ids = sorted(case.id for case in cases)
    assert sorted(record.case.id for record in records) == ids
    assert sorted(started) == ids
    for record in records:
        outcome, told = OUTCOMES[record.case.id.removeprefix("case-")]
        messages = " | ".join(finding.message for finding in record.verdict.findings)
        assert (record.case.id, record.verdict.outcome) == (record.case.id, outcome), messages
        assert told.lower() in messages.lower()
        assert "\n" not in record.verdict.findings[0].message
        assert record.case.id in record.command
    with pytest.raises(ProcessLookupError):  # the worker that timed out is dead
        os.kill(int(Path("hanging").read_text()), 0)


def test_a_worker_whose_device_is_lost_hands_over_its_record_and_is_replaced(tmp_path, monkeypatch):
    """A torch without CUDA stands for a context that is gone: nothing on the device answers."""
    if torch.cuda.is_available():
        pytest.skip("here the device answers")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)
    cases = [msgspec.structs.replace(case("good"), id=f"case-{i}") for i in range(2)]
    records = list(sweep([*cases, case("standard")], workers=1, setup=Setup("cuda:0")))
    assert [record.verdict.outcome for record in records] == ["CRASHED", "CRASHED", "PASS"]
    for record in records[:2]:
        assert record.verdict.findings[0].message.startswith("run: ")  # the case's own words, not "the worker died"
        assert "draw" in record.seconds


def test_closing_the_iterator_kills_the_workers_and_keeps_what_was_yielded(tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)
    cases = [case("prints"), case("hangs", timeout_s=600)]
    records = sweep(cases, workers=2)
    assert next(records).verdict.outcome == "PASS"
    while not Path("hanging").exists() or not Path("hanging").read_text():
        time.sleep(0.05)
    began = time.monotonic()
    records.close()
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("hanging").read_text()), 0)
    assert capfd.readouterr() == ("", "")


def test_a_kernel_that_closes_its_streams_costs_the_next_nothing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)
    with Workers(1, backward=False) as workers:
        records = list(workers.verify([case("closes"), case("prints"), case("leaves")]))
    outcomes = [record.verdict.outcome for record in records]
    assert outcomes == ["PASS", "PASS", "CRASHED"]
    assert "it said: goodbye" in records[-1].verdict.findings[0].message


def test_only_the_tail_of_a_log_is_read(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"Fatal Python error: long ago\n" + 3_000_000 * b"noise\n" + b"goodbye\n")
    assert _last_words(log) == "; it said: goodbye"
    assert _last_words(tmp_path / "none") == ""


def test_workers_are_used_again_and_their_threads_change_no_figure():
    found = []
    for threads in (1, 2):
        with Workers(1, threads=threads) as workers:
            for _ in range(threads):
                found.extend(workers.verify([case("standard")]))
    assert len(found) == 3
    assert all(record.metrics == found[0].metrics for record in found)


def test_nothing_asked_starts_nothing():
    assert list(sweep([])) == []


def test_default_workers_respect_affinity_and_quota(monkeypatch):
    files = {
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}"
        for cpu in range(8)
    }
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("fa4verify.sweep._read", lambda path: files.get(path, ""))
    assert default_workers() == 4  # eight hyperthreads of four cores
    files["/sys/fs/cgroup/cpu.max"] = "250000 100000"
    assert default_workers() == 2
    files["/sys/fs/cgroup/cpu.max"] = "max 100000"
    assert default_workers() == 4
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 5})
    assert default_workers() == 1


def test_a_killed_worker_is_told_with_its_signal():
    assert _cause(-signal.SIGKILL) == "signal 9 (SIGKILL, out of memory?)"
    assert _cause(-signal.SIGSEGV) == "signal 11 (SIGSEGV)"


def test_budgets_are_tried_in_workers_as_here():
    lax = msgspec.structs.replace(BUDGET, limit=2.0)
    vacuous = msgspec.structs.replace(case("zeros"), budgets=(lax,))
    suite = Suite("mine", "", (case("standard"), vacuous))
    with Workers(2, backward=False, kernels=frozenset({"standard"})) as pool:
        found = list(pool.refusals(suite.cases))
        with pytest.raises(VacuousBudget, match="mine: case case-zeros: o: zeros would pass"):
            admit(suite, trial=pool.refusals)
    assert found[0] is None
    assert isinstance(found[1], VacuousBudget)


@pytest.mark.parametrize("own", [True, False])
def test_a_record_left_by_a_worker_is_that_of_its_case(tmp_path, own):
    from fa4verify import sweep
    from fa4verify.vocabulary import Case, Distribution, Finding, Record, Verdict

    case = Case("mine", "forward", "fa4-sm90", Distribution("normal"))
    written = case if own else msgspec.structs.replace(case, id="another")
    record = Record(case=written, verdict=Verdict("CRASHED", (Finding("lost"),)))
    (tmp_path / "4711.record").write_bytes(msgspec.json.encode(record))
    assert (sweep._left_behind(tmp_path / "4711", case) is not None) == own
