"""The command line: exit codes, files, and one line for each mistake."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from io import FileIO
from pathlib import Path

import pytest

from fa4verify.cli import main
from fa4verify.runs import read

OTHER_CASES = """
[[cases]]
distribution = "normal"
shape = { seqlen = 64, heads = 2, heads_kv = 1, head_dim = 32, head_dim_v = 32 }
budgets = ["o-relative"]
kernel = "their_kernels:good"
axes = { variants = [%s] }
"""


def command(*words, **options):
    """Start the installed command, as a user does."""
    script = Path(sys.executable).with_name("fa4verify")
    return subprocess.Popen([script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def newest():
    return max(Path("runs").glob("*/*.jsonl"), key=os.path.getmtime)


def test_a_run_writes_records_and_reports_and_a_report_can_be_made_again(elsewhere, capsys):
    ran = command("run", elsewhere(), "--out", "out", "--workers", "1")
    shown, said = ran.communicate(timeout=300)
    assert ran.returncode == 0, said
    (path,) = Path("out/runs").glob("*/*.jsonl")
    finished = read(path)
    assert [record.verdict.outcome for record in finished.records] == ["PASS"]
    markdown, xml = (Path("out/reports", f"{path.stem}.{kind}") for kind in ("md", "xml"))
    assert finished.records[0].case.id in markdown.read_text()
    assert ET.parse(xml).find(".//testcase") is not None
    assert "PASS" in shown
    for file in (path, markdown, xml):
        assert str(file) in shown
    assert "1/1" in said  # the progress, on stderr

    Path("file").touch()  # no folder for reports can be made below it, but the verdicts are told
    assert main(["report", str(path), "--out", "file"]) == 2
    told = capsys.readouterr()
    assert "PASS" in told.out
    assert "cannot write" in told.err
    assert told.err.count("\n") == 1
    markdown.unlink()
    assert main(["report", str(path), "--out", "out"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"next: fa4verify report {path} --html report.html"
    assert main(["report", str(path), "--out", "out", "--quiet"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["report", str(path), "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["PASS"] == 1
    assert markdown.exists()
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["report", str(path), "--out", "out"]) == 3  # a case is missing


def test_a_baseline_holds_a_run_to_its_figures_and_a_diff_tells_what_changed(elsewhere, capfd):
    suite = elsewhere()
    assert main(["run", suite, "--workers", "1"]) == 0
    first = newest().rename("first.jsonl")
    again = ["run", suite, "--workers", "1", "--baseline", "first.jsonl"]
    assert main(again) == 0, "the same figures, to the bit"
    assert "No regression: nothing changed; 1 case in both runs." in capfd.readouterr().out
    found = re.search(r'"rmse":([0-9.e-]+)', first.read_text())
    first.write_text(first.read_text().replace(found[0], f'"rmse":{float(found[1]) * 1.0001!r}', 1))
    assert main(again) == 1, "better than the baseline is not what the baseline promises either"
    shown = capfd.readouterr().out
    assert "1 drifted otherwise" in shown
    markdown = Path("reports", f"{newest().stem}.md").read_text()
    assert "## What changed" in markdown
    second = newest().rename("second.jsonl")
    assert main(["diff", "first.jsonl", str(second)]) == 0, "nothing got worse"
    assert main(["diff", str(second), "first.jsonl", "--html", "out/diff.html"]) == 1
    assert "Regressed: 1 drifted for the worse" in capfd.readouterr().out
    assert ">What changed</a>" in Path("out/diff.html").read_text()
    assert main(["diff", str(second), "first.jsonl", "--markdown"]) == 1
    assert capfd.readouterr().out.startswith("# What changed\n\nRegressed: 1 drifted")


def test_a_baseline_is_kept_small_told_against_the_last_one_and_refused_where_it_is_none(elsewhere, capfd):
    suite = elsewhere()
    assert main(["run", suite, "--workers", "1"]) == 0
    path = newest()
    assert main(["baseline", str(path), "kept/tiny.jsonl.xz"]) == 0
    assert "written: kept/tiny.jsonl.xz (1 case," in capfd.readouterr().out
    kept = Path("kept/tiny.jsonl.xz")
    assert main(["diff", str(kept), str(path)]) == 0
    assert "No regression: nothing changed" in capfd.readouterr().out
    assert main(["report", str(kept), "--quiet"]) == 0
    capfd.readouterr()
    before = kept.read_bytes()
    assert main(["baseline", str(path), str(kept), "--quiet"]) == 0
    assert capfd.readouterr().out.startswith("No regression: nothing changed; 1 case in both runs.\nwritten: ")
    assert kept.read_bytes() == before, "the same run, the same bytes"
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["baseline", str(path), str(kept)]) == 2
    assert "1 MISSING, line 2 is cut off" in capfd.readouterr().err
    assert kept.read_bytes() == before
    assert [file.name for file in Path("kept").iterdir()] == ["tiny.jsonl.xz"]
    kept.write_bytes(before[:-20])
    assert main(["run", suite, "--baseline", str(kept)]) == 2
    assert "kept/tiny.jsonl.xz: cannot be unpacked" in capfd.readouterr().err


def test_kernels_of_the_current_folder_and_what_becomes_of_each(elsewhere, capfd):
    kernels = ("zeros", "raises", "wrong_shape", "without_causal")
    variants = [
        f'{{ kernel = "their_kernels:{name}", causal = {str(name == "without_causal").lower()} }}' for name in kernels
    ]
    suite = elsewhere(OTHER_CASES % ", ".join(variants))
    assert main(["run", suite, "--workers", "1"]) == 1
    shown, _ = capfd.readouterr()
    assert "Traceback" not in shown
    (path,) = Path("runs").glob("*/*.jsonl")
    outcomes = {record.case.kernel: record.verdict.outcome for record in read(path).records}
    assert outcomes == {
        "standard": "PASS",
        "their_kernels:zeros": "FAIL",
        "their_kernels:raises": "CRASHED",
        "their_kernels:wrong_shape": "FAIL",
        "their_kernels:without_causal": "SKIPPED",
    }
    # The command that a report gives runs that case alone, here with a kernel put in place of the suite's.
    assert main(["run", suite, "--kernel", "their_kernels:good", "--select", "causal=true", "--workers", "1"]) == 0
    (substituted,) = read(newest()).records
    assert main([*shlex.split(substituted.command)[1:], "--workers", "1"]) == 0
    (again,) = read(newest()).records
    assert again.case == substituted.case
    assert again.case.kernel == "their_kernels:good"
    assert again.metrics == substituted.metrics


VACUOUS = """
[budgets.anything]
tensor = "o"
metric = "max_abs"
kind = "absolute"
limit = 1000.0
provenance = "none"
[[cases]]
distribution = "normal"
shape = { seqlen = 64, heads = 2, heads_kv = 1, head_dim = 32, head_dim_v = 32 }
budgets = ["anything"]
kernel = "standard"
causal = true
"""


NOT_NUMBERS = OTHER_CASES % '{ kernel = "standard", distribution = { name = "scaled_normal", factor = 1e300 } }'


@pytest.mark.parametrize(
    ("extra", "words", "told"),
    [
        ("", ["run", "gaet"], "gate"),
        ("", ["run", "missing.toml"], "missing.toml"),
        ("= nonsense", ["run", "tiny.toml"], "TOML"),
        ("sofcap = 1.0", ["run", "tiny.toml"], "cases[0].sofcap"),
        ("causal = 3", ["run", "tiny.toml"], "cases[0].causal"),
        (NOT_NUMBERS, ["run", "tiny.toml"], "the truth has no finite element"),
        (VACUOUS, ["run", "tiny.toml"], "anything"),
        ("", ["run", "tiny.toml", "--kernel", "fa4-sm9"], "fa4-sm90"),
        ("", ["run", "tiny.toml", "--kernel", "their_kernels:goood"], "did you mean 'good'"),
        ("", ["run", "tiny.toml", "--kernel", "their_kernel:good"], "No module named 'their_kernel'"),
        ("", ["run", "tiny.toml", "--kernel", "script:main"], "'script' exits when imported (code 0)"),
        ("", ["run", "tiny.toml", "--select", "nothing_like_it"], "no case matches 'nothing_like_it'"),
        ("", ["run", "tiny.toml", "--select", "(dtype=bf16"], "expected ')'"),
        ("", ["run", "tiny.toml", "--workers", "0"], "at least 1"),
        ("", ["run", "tiny.toml", "--wrokers", "1"], "--workers"),
        ("", ["run", "tiny.toml", "--out", "tiny.toml"], "cannot create"),
        ("", ["report", "missing.jsonl"], "missing.jsonl: cannot read"),
        ("", ["report", "tiny.toml"], "not a fa4verify run file"),
        ("", ["diff", "missing.jsonl", "tiny.toml"], "missing.jsonl: cannot read"),
        ("", ["run", "tiny.toml", "--baseline", "missing.jsonl"], "missing.jsonl: cannot read"),
        ("", ["run", "tiny.toml", "--require-gpu"], "no kernel of these cases runs on one"),
        ("", ["list", "everything"], "suites"),
        ("", ["frobnicate"], "admit, record-device, run, list, report, diff, baseline"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(elsewhere, capsys, extra, words, told):
    elsewhere(extra)
    Path("script.py").write_text("raise SystemExit(0)\n")
    assert main(words) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert said.startswith("fa4verify: ")
    assert said.count("\n") == 1
    assert told in said


@pytest.mark.parametrize(("sent", "code", "told"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_signal_at_any_time_is_one_line(capsys, monkeypatch, sent, code, told):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "fa4verify.doctor.examine", lambda: os.kill(os.getpid(), getattr(signal, sent)) or time.sleep(9)
    )
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == f"fa4verify: {told}\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_whoever_exits_inside_a_command_has_judged_nothing(capsys, monkeypatch):
    monkeypatch.setattr("fa4verify.doctor.examine", lambda: sys.exit(0))
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "fa4verify: something ended the command with exit code 0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without space")
def test_a_full_disk_gets_one_line(elsewhere, capsys, monkeypatch):
    monkeypatch.setattr("fa4verify.runs.FileIO", lambda *_: FileIO("/dev/full", "wb"))
    assert main(["run", elsewhere()]) == 2
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("send", "sent", "code", "told"),
    [
        (os.killpg, signal.SIGINT, 130, "interrupted"),  # as the terminal does: to the workers too
        (os.kill, signal.SIGTERM, 143, "terminated"),  # as a CI's runner does
    ],
)
def test_ctrl_c_and_sigterm_keep_what_is_done_and_leave_no_process(elsewhere, send, sent, code, told):
    suite = elsewhere(OTHER_CASES % '{ kernel = "their_kernels:hangs", timeout_s = 600.0 }')
    ran = command("run", suite, "--workers", "2", start_new_session=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and ran.poll() is None:
        lines = [path.read_text().count("\n") for path in Path("runs").glob("*/*.jsonl")]
        if lines == [2] and Path("hanging").exists() and Path("hanging").read_text():
            break
        time.sleep(0.1)
    send(ran.pid, sent)
    shown, said = ran.communicate(timeout=60)
    assert ran.returncode == code, said
    (path,) = Path("runs").glob("*/*.jsonl")
    assert said.splitlines()[-1].startswith(f"fa4verify: {told}: 1 of 2 Records are in {path}")
    assert "Traceback" not in shown + said
    assert [record.verdict.outcome for record in read(path).records] == ["PASS"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("hanging").read_text()), 0)


def test_lists(elsewhere, capsys):
    for what, told in [("suites", "gate"), ("kernels", "fa4-sm90"), ("distributions", "fa3_outlier")]:
        assert main(["list", what]) == 0
        assert told in capsys.readouterr().out
    assert main(["list", "cases", elsewhere()]) == 0
    assert capsys.readouterr().out == "fwd-standard-bf16-b1h2kv1s64d32-normal-s0\n"


def test_help_and_usage_errors_load_nothing_heavy():
    program = (
        "import sys; from fa4verify.cli import main; main(['--help']); main(['run', 'gaet']); "
        "print(*{'torch', 'numba'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    assert done.stderr.splitlines()[-1] == ""


def test_doctor_says_what_is_here_and_exits_by_the_cpu_path(capsys, monkeypatch):
    from fa4verify import devices, doctor

    monkeypatch.setattr(devices, "self_test", lambda: [devices.Check("FMA, numba", "ok", "rounds once")])
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("torch", "flash-attn-4", "standard", "FMA, numba", "the CPU path is sound"):
        assert word in shown
    monkeypatch.setattr(devices, "self_test", lambda: [devices.Check("subnormals", "fail", "flushed")])
    assert main(["doctor"]) == 1
    assert "NOT sound" in capsys.readouterr().out
    monkeypatch.setattr(devices, "self_test", list)
    monkeypatch.setattr(doctor, "version", lambda name: "0.1" if name == "numpy" else "99")
    assert main(["doctor"]) == 1
    assert "0.1, wanted >=1.26" in capsys.readouterr().out
