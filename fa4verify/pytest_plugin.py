"""The pytest door (entry point `pytest11`): each case of a suite is a test item, in any repository.

Contract: without being asked the plugin adds options and a marker and imports nothing. It is asked by `-m accuracy`
(any marker expression that names it other than by `not accuracy`) or by one of its own options; then the cases of
--accuracy-suite, the gate by default, join the collected tests, marked `accuracy` and named by their case id. pytest's
own `-m` and `-k` deselect among them as among all tests; --accuracy-select does so before the suite is built.

A PASS passes, SKIPPED skips with its reason, FAIL, CRASHED and TIMEOUT fail; INCONCLUSIVE fails too, because a test
that proved nothing must not count as passed. In a study, where a FAIL is a point of a curve, FAIL and INCONCLUSIVE are
xfailed. The failure message is the report: findings and the command that reruns the case.

Cases run in worker processes (sweep.py): as many as there are cores, ahead of pytest; under xdist, one for each of its
processes. Verdicts are the same either way. --accuracy-record writes every Record, from the controlling process alone.

With --accuracy-baseline FILE (or `accuracy_baseline = FILE` in pytest's configuration, below its root) a case that
departs from that run fails too, with what drifted; cases that the file does not have are not held to it.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from fa4verify.baseline import Baseline
    from fa4verify.runs import RunWriter
    from fa4verify.sweep import Setup, Workers
    from fa4verify.vocabulary import Case, Record, Suite

_OPTIONS = {
    "--accuracy-suite": ("SUITE", "verify this suite, by name or as a TOML file (default with -m accuracy: gate)"),
    "--accuracy-kernel": ("NAME", "run every case with this kernel: a name, or your own as package.module:attribute"),
    "--accuracy-select": ("EXPR", "only the cases that match, as in `fa4verify run --select`"),
    "--accuracy-device": ("DEVICE", "where GPU kernels run: cuda:N, cpu or auto (default), as in `fa4verify run`"),
    "--accuracy-baseline": ("RUN", "a case that departs from this run file fails (`fa4verify baseline` makes one)"),
    "--accuracy-record": ("PATH", "write every Record to this new run file, for `fa4verify report`"),
}


_INI = "accuracy_baseline"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the --accuracy options."""
    group = parser.getgroup("accuracy", "numerical accuracy (fa4verify)")
    for option, (metavar, about) in _OPTIONS.items():
        group.addoption(option, metavar=metavar, default=None, help=about)
    group.addoption("--accuracy-require-gpu", action="store_true", help="a case skipped for want of a GPU fails")
    parser.addini(_INI, "run file that the cases of -m accuracy are held to, below the root folder", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the rest of the plugin if it is asked for."""
    config.addinivalue_line("markers", "accuracy: a case of a fa4verify suite, judged against float64 truth")
    marks = config.getoption("markexpr", "") or ""
    named = re.search(r"\baccuracy\b", re.sub(r"\bnot\s+accuracy\b", "", marks))
    if named or any(config.getoption(option) for option in _OPTIONS):
        config.pluginmanager.register(Accuracy(config), "fa4verify-accuracy")


class Accuracy:
    """One pytest process that verifies cases."""

    suite: Suite
    baseline: Baseline | None = None

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)  # set in xdist's workers alone
        self._writer: RunWriter | None = None
        self._workers: Workers | None = None
        self._ahead: Iterator[Record] = iter(())
        self._done: dict[str, Record] = {}
        self._held = ExitStack()
        self.device: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Load the suite; what is wrong with it is a usage error."""
        from fa4verify.baseline import Baseline
        from fa4verify.plan import BadRequest, admitted, header_of, placed, plan
        from fa4verify.runs import RunFileError, RunWriter

        if os.getcwd() not in sys.path:  # noqa: PTH109 - an entry of sys.path is text
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m pytest` does; `pytest` does not
        option = self.config.getoption
        try:
            self.suite = plan(
                option("--accuracy-suite") or "gate",
                kernel=option("--accuracy-kernel"),
                select=option("--accuracy-select"),
                budgets=False,
            )
            if self._worker is None:
                place = option("--accuracy-device") or "auto"
                required = option("--accuracy-require-gpu")
                self.device = self._held.enter_context(placed(self.suite, place, require_gpu=required))
                admitted(self.suite, self.device)
            else:  # what the controlling process has claimed for all
                self.device = self._worker["accuracy_device"]
            header = header_of(
                self.suite, option("--accuracy-kernel"), select=option("--accuracy-select"), device=self.device
            )
            if found := self._baseline_file():
                self.baseline = Baseline(found, header)
            if option("--accuracy-record") and self._worker is None:
                self._writer = RunWriter(Path(option("--accuracy-record")), header).__enter__()
        except (BadRequest, RunFileError) as error:
            raise pytest.UsageError(str(error)) from error

        asked = option("--accuracy-baseline")
        if asked and self.baseline and not any(case.id in self.baseline for case in self.suite.cases):
            raise pytest.UsageError(f"{asked}: has none of the cases of {self.suite.name}")

    def _baseline_file(self) -> Path | None:
        """Return what was asked for; what pytest's configuration names stands below its root."""
        asked, named = self.config.getoption("--accuracy-baseline"), self.config.getini(_INI)
        return Path(asked) if asked else self.config.rootpath / named if named else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell one of xdist's workers which device is ours."""
        node.workerinput["accuracy_device"] = self.device

    def _setup(self) -> Setup:
        from fa4verify.sweep import Setup

        return Setup(self.device, self.config.getoption("--accuracy-require-gpu"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add an item for each case, before pytest's own -m and -k have their say."""
        parent = SuiteCollector.from_parent(session, name=self.suite.name, nodeid=self.suite.name, door=self)
        items.extend(session.genitems(parent))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the work: what was selected, in order."""
        from fa4verify.sweep import Workers, default_workers, sweep

        if self._worker is None:
            cases = [item.case for item in session.items if isinstance(item, CaseItem)]
            self._ahead = sweep(cases, setup=self._setup())
        else:
            threads = max(1, default_workers() // self._worker["workercount"])
            self._workers = Workers(1, threads=threads, setup=self._setup())

    def record(self, case: Case) -> Record:
        """Return the Record of a case; without xdist the other cores work ahead on the next ones."""
        from fa4verify.sweep import sweep

        if self._workers is not None:
            return next(self._workers.verify([case]))
        for record in self._ahead:
            self._done[record.case.id] = record
            if case.id in self._done:
                break
        if case.id not in self._done:  # asked for a second time, by a plugin that reruns failures
            self._done[case.id] = next(sweep([case], workers=1, setup=self._setup()))
        return self._done.pop(case.id)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the Record along with the report, in types that travel between xdist's processes."""
        report = yield
        if isinstance(item, CaseItem) and item.record is not None and report.when == "call":
            import msgspec

            setattr(report, "accuracy_record", msgspec.to_builtins(item.record))  # noqa: B010 - not a field it declares
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the Record that came with a report."""
        if self._writer is not None and hasattr(report, "accuracy_record"):
            import msgspec

            from fa4verify.vocabulary import Record

            self._writer.write(msgspec.convert(report.accuracy_record, Record))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the Records are."""
        if self._writer is not None:
            terminalreporter.write_line(f"fa4verify: Records in {self._writer.path}")

    def pytest_unconfigure(self) -> None:
        """Kill the workers and close the run file."""
        close = getattr(self._ahead, "close", None)
        if close is not None:
            close()
        if self._workers is not None:
            self._workers.stop()
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
        self._held.close()


class SuiteCollector(pytest.Collector):
    """The parent of a suite's items."""

    def __init__(self, *, door: Accuracy, **rest: Any) -> None:
        super().__init__(**rest)
        self.door = door

    def collect(self) -> Iterator[CaseItem]:
        """Yield an item for each case."""
        for case in self.door.suite.cases:
            yield CaseItem.from_parent(self, name=case.id, case=case, door=self.door)


class CaseItem(pytest.Item):
    """A case as a test."""

    def __init__(self, *, case: Case, door: Accuracy, **rest: Any) -> None:
        super().__init__(**rest)
        self.case, self.door = case, door
        self.record: Record | None = None
        self.add_marker("accuracy")

    def runtest(self) -> None:
        """Verify the case and translate its outcome."""
        self.record = self.door.record(self.case)
        outcome, findings = self.record.verdict.outcome, self.record.verdict.findings
        if self.door.baseline is not None and (told := self.door.baseline.departs(self.record)):
            raise NotPassed(self.record, told)
        if outcome == "SKIPPED":
            pytest.skip(findings[0].message)
        if outcome in ("FAIL", "INCONCLUSIVE") and self.door.suite.study is not None:
            pytest.xfail(f"{outcome} is a point of the study: {findings[0].message}")
        if outcome != "PASS":
            raise NotPassed(self.record)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the report instead of a traceback."""
        if not isinstance(excinfo.value, NotPassed):
            return super().repr_failure(excinfo, style)
        from fa4verify.reports.page import block, text

        record, departed = excinfo.value.record, excinfo.value.departed
        told = [block(finding.message) for finding in record.verdict.findings if not finding.passed]
        outcome = "DRIFTED" if departed and record.verdict.outcome == "PASS" else record.verdict.outcome
        return "\n".join([f"{outcome} {text(record.case.id)}", *told, *departed, f"again: {block(record.command)}"])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Name the item by its case."""
        return self.path, None, self.name


class NotPassed(Exception):  # noqa: N818 - a verdict, not an error of the program
    """A case that did not pass, or departs from the baseline; the Record and these lines say why."""

    def __init__(self, record: Record, departed: tuple[str, ...] = ()) -> None:
        super().__init__(departed[0] if departed else f"{record.verdict.outcome}: {record.verdict.findings[0].message}")
        self.record, self.departed = record, departed
