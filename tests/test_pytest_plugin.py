"""The plugin, in a repository that only has fa4verify installed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fa4verify.baseline import keep
from fa4verify.cases import load_suite
from fa4verify.gpus import listed
from fa4verify.plan import header_of
from fa4verify.pytest_plugin import Accuracy, CaseItem, NotPassed
from fa4verify.runs import Run, read
from fa4verify.vocabulary import Case, Distribution, Finding, Metrics, Record, Study, Suite, Verdict

CASES = """
[[cases]]
distribution = "normal"
shape = { seqlen = 64, heads = 2, heads_kv = 1, head_dim = 32, head_dim_v = 32 }
budgets = ["o-relative"]
kernel = "standard"
causal = true
axes = { kernel = [
    "their_kernels:zeros", "their_kernels:raises", "their_kernels:prints", "their_kernels:without_causal",
] }
"""
OWN = "def test_of_their_own():\n    pass\n"


@pytest.fixture
def repository(pytester, elsewhere, monkeypatch):
    """Return a function that runs pytest in their repository."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    elsewhere(CASES)
    Path("test_own.py").write_text(OWN)
    Path("pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    script = Path(sys.executable).with_name("pytest")

    def run(*words):
        return pytester.run(script, "-p", "no:cacheprovider", *words, timeout=300)

    return run


def outcomes(path):
    return {record.case.id: record.verdict.outcome for record in read(Path(path)).records}


def test_importing_the_plugin_and_a_plain_pytest_load_nothing(repository):
    heavy = {"torch", "numba", "numpy", "msgspec", "pebble"}
    program = f"import sys, fa4verify.pytest_plugin; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    Path("test_own.py").write_text(
        "import sys\ndef test_own():\n    assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    for words in ([], ["-m", "not accuracy"]):
        result = repository(*words)
        result.assert_outcomes(passed=1)


def test_each_case_is_an_item_with_the_same_verdict_under_xdist(repository):
    asked = ["-m", "accuracy", "--accuracy-suite", "tiny.toml"]
    result = repository(*asked, "--accuracy-record", "alone.jsonl", "-rsf")
    result.assert_outcomes(passed=2, failed=2, skipped=1, deselected=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random([
        "FAIL fwd-their_kernels:zeros-*",
        "*o relative_rmse*",
        "again: fa4verify run tiny.toml --select id=fwd-their_kernels:zeros-*",
        "CRASHED fwd-their_kernels:raises-*",
        "run: RuntimeError: no such thing",
        "SKIPPED * their_kernels:without_causal does not take causal",
        "collected 6 items / 1 deselected / 5 selected",
        "fa4verify: Records in alone.jsonl",
        "FAILED tiny::fwd-their_kernels:zeros-*",
    ])  # fmt: skip
    result.stdout.no_fnmatch_line("*Traceback*")
    alone = read(Path("alone.jsonl"))
    assert sorted(alone.header.asked) == sorted(record.case.id for record in alone.records)

    parallel = repository(
        "-n", "2", "-m", "accuracy", "--accuracy-suite", "tiny.toml", "--accuracy-record", "xdist.jsonl"
    )
    parallel.assert_outcomes(passed=2, failed=2, skipped=1)
    assert outcomes("xdist.jsonl") == outcomes("alone.jsonl")
    figures = [{r.case.id: r.metrics for r in read(Path(path)).records} for path in ("alone.jsonl", "xdist.jsonl")]
    assert figures[0] == figures[1]


@pytest.fixture
def kept(elsewhere):
    """Return a function that writes a baseline of their suite, ids beginning with `name`, and returns its Record."""

    def write(name="fwd-standard-"):
        (case,) = load_suite(elsewhere()).cases
        case = msgspec.structs.replace(case, id=case.id.replace("fwd-standard-", name))
        record = Record(case, Verdict("PASS", (Finding("held", passed=True),)), metrics={"o": Metrics({"rmse": 1e-9})})
        keep(Run(header_of(Suite("tiny", "", (case,)), None), (record,)), Path("kept.jsonl.xz"))
        return record

    return write


def opened(**options):
    """Return the plugin of a session with these options, `ini` for what pytest's configuration names."""
    named = options.pop("ini", "")
    given = {"--accuracy-suite": "tiny.toml"} | {f"--accuracy-{name}": value for name, value in options.items()}
    config = SimpleNamespace(
        getoption=given.get, getini=lambda _: named, rootpath=Path.cwd(), workerinput={"accuracy_device": None}
    )
    door = Accuracy(config)
    door.pytest_sessionstart()
    return door


def test_a_case_that_departs_from_the_baseline_fails_and_says_what_drifted(repository, elsewhere, kept):
    kept()
    Path("pytest.ini").write_text(f"{Path('pytest.ini').read_text()}accuracy_baseline = kept.jsonl.xz\n")
    result = repository("-m", "accuracy", "--accuracy-suite", "tiny.toml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "DRIFTED fwd-standard-*",
        "baseline: o rmse was 1.00e-9, is *, may move 0: worse",
        "again: fa4verify run tiny.toml --select id=fwd-standard-*",
    ])  # fmt: skip


def test_a_baseline_that_is_kept_passes_and_one_of_other_cases_holds_nobody(elsewhere, kept):
    record = kept()
    moved = msgspec.structs.replace(record, metrics={"o": Metrics({"rmse": 2e-9})})
    for door in (opened(baseline="kept.jsonl.xz"), opened(ini="kept.jsonl.xz")):
        assert door.baseline.departs(record) == ()
        assert door.baseline.departs(moved) == ("baseline: o rmse was 1.00e-9, is 2.00e-9, may move 0: worse",)
    assert opened().baseline is None
    kept(name="fwd-another-")
    assert opened(ini="kept.jsonl.xz").baseline.departs(moved) == ()
    with pytest.raises(pytest.UsageError, match=r"kept.jsonl.xz: has none of the cases of tiny"):
        opened(baseline="kept.jsonl.xz")
    with pytest.raises(pytest.UsageError, match=r"gone.jsonl.xz: cannot read"):
        opened(ini="gone.jsonl.xz")


def test_what_a_kernel_said_is_printed_not_obeyed():
    evil = "\x1b[2J<script>" * 10_000
    case = Case(id=evil, operation="forward", kernel="standard", distribution=Distribution("normal"))
    failed = NotPassed(Record(case, Verdict("FAIL", (Finding(evil),)), command=evil))
    shown = CaseItem.repr_failure(object.__new__(CaseItem), SimpleNamespace(value=failed))
    assert "\x1b" not in shown
    assert len(shown) < 6000
    assert "characters, all of them in the run file" in shown


IDLE = """
from fa4verify.vocabulary import Output
from their_kernels import good

def attention(q, k, v, **options):
    o, lse = good(q, k, v, **options)
    return Output(o=o, lse=lse, activity={"rescales_skipped": 0.0})
"""
BLIND = """
[[cases]]
distribution = "normal"
shape = { seqlen = 32, head_dim = 32, head_dim_v = 32 }
budgets = ["o-relative"]
kernel = "idle:attention"
requires = ["rescales_skipped"]
"""


def test_without_a_gpu_its_kernels_skip_with_the_reason_or_fail_if_one_is_required(repository):
    if listed():
        pytest.skip("there is a GPU")
    chosen = ("--accuracy-suite", "tiny.toml", "--accuracy-kernel", "sdpa-math", "--accuracy-select", "kernel=standard")
    result = repository(*chosen, "-rs")
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*SKIPPED*runs on a GPU*"])
    repository(*chosen, "--accuracy-require-gpu").assert_outcomes(failed=1, passed=1)
    assert repository(*chosen, "--accuracy-device", "cuda:0").ret == 4  # a usage error
    assert repository(*chosen[:2], *chosen[4:], "--accuracy-require-gpu").ret == 4  # an emulation alone


def test_kernel_and_select_beside_their_own_tests_and_a_case_that_proves_nothing(repository, elsewhere):
    elsewhere(CASES + BLIND)
    Path("idle.py").write_text(IDLE)
    chosen = ["--accuracy-kernel", "idle:attention", "--accuracy-select", "not causal"]
    result = repository("--accuracy-suite", "tiny.toml", *chosen, "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([
        "test_own.py::test_of_their_own PASSED*",
        "tiny::fwd-idle:attention-bf16-b1h2kv1s64d32-normal-s0 PASSED*",
        "tiny::fwd-idle:attention-* FAILED*",
        "INCONCLUSIVE fwd-idle:attention-*",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "raised"),
    [
        ("FAIL", pytest.xfail.Exception),
        ("INCONCLUSIVE", pytest.xfail.Exception),
        ("SKIPPED", pytest.skip.Exception),
        ("CRASHED", NotPassed),
        ("TIMEOUT", NotPassed),
    ],
)
def test_a_fail_in_a_study_is_a_point_of_the_curve(outcome, raised):
    case = Case(id="c", operation="forward", kernel="standard", distribution=Distribution("normal"))
    record = Record(case, Verdict(outcome, (Finding("why"),)))
    suite = Suite("s", "about", (case,), Study(rows="dtype", columns=("kernel",), values=("o.rmse",)))
    item = object.__new__(CaseItem)
    item.case, item.door = case, SimpleNamespace(record=lambda _: record, suite=suite, baseline=None)
    with pytest.raises(raised, match="why"):
        item.runtest()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--accuracy-suite", "gaet"], "gate"),
        (["--accuracy-suite", "tiny.toml", "--accuracy-kernel", "no.such:thing"], "No module named 'no'"),
        (["--accuracy-suite", "tiny.toml", "--accuracy-select", "zzz"], "no case matches 'zzz'"),
        (["--accuracy-suite", "huge.toml"], "the truth has no finite element"),
        (
            ["--accuracy-suite", "tiny.toml", "--accuracy-select", "standard", "--accuracy-record", "test_own.py"],
            "cannot create",
        ),
    ],
)
def test_a_mistake_is_a_usage_error(repository, elsewhere, words, told):
    text = Path(elsewhere(name="huge.toml")).read_text()
    huge = '{ name = "scaled_normal", factor = 1e300 }'
    Path("huge.toml").write_text(text.replace('"normal"', huge))
    result = repository("-m", "accuracy", "--accuracy-suite", "tiny.toml", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.strip()]
    assert line.startswith("ERROR: ")
    assert told in line
