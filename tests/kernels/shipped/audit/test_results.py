"""What is kept on disk: found again, never across extractors, and failures are not kept."""

import pytest

from fa4verify.kernels.shipped.audit import results
from fa4verify.kernels.shipped.audit.configurations import every
from fa4verify.kernels.shipped.audit.facts import Fact
from tests.kernels.shipped.audit.texts import needs_fa4

pytestmark = needs_fa4
ONE = every()[0]


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Keep results below tmp_path, and count what is compiled instead of compiling."""
    from fa4verify.kernels.shipped.audit import compilation

    calls = []

    def facts(one):
        calls.append(one)
        return {"forward": {"tau": Fact("8", (3, 4))}}

    monkeypatch.setenv("FA4VERIFY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "facts", facts)
    return calls


def test_facts_come_from_disk_the_second_time(counted):
    (first,) = results.audited([ONE])
    (second,) = results.audited([ONE])
    assert first == second
    assert counted == [ONE]
    list(results.audited([ONE], fresh=True))
    assert counted == [ONE, ONE]


def test_another_extractor_reads_nothing_old(counted, monkeypatch):
    list(results.audited([ONE]))
    monkeypatch.setattr(results, "stamp", lambda: "another")
    list(results.audited([ONE]))
    assert len(counted) == 2


def test_a_damaged_file_is_a_miss(counted, tmp_path):
    list(results.audited([ONE]))
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{")
    assert next(iter(results.audited([ONE]))).facts["forward.tau"].value == "8"


def test_refusals_are_kept_and_failures_are_not(counted, monkeypatch):
    from fa4verify.kernels.interface import Unsupported
    from fa4verify.kernels.shipped.audit import compilation

    def raising(error):
        def facts(one):
            counted.append(one)
            raise error

        return facts

    monkeypatch.setattr(compilation, "facts", raising(TypeError("no such keyword")))
    assert [next(iter(results.audited([ONE]))).failed for _ in (1, 2)] == ["TypeError: no such keyword"] * 2
    assert len(counted) == 2
    monkeypatch.setattr(compilation, "facts", raising(Unsupported("not on Ampere")))
    assert [next(iter(results.audited([ONE]))).refused for _ in (1, 2)] == ["not on Ampere"] * 2
    assert len(counted) == 3
