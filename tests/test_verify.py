"""One case walks from TOML to verdict."""

import msgspec
import pytest

import fa4verify


def test_smoke_case_passes_and_round_trips():
    (case,) = fa4verify.load_suite("smoke").cases
    record = fa4verify.verify(case)
    assert record.verdict.outcome == "PASS"
    assert 1e-4 < record.metrics["o"].values["relative_rmse"] < 8e-3
    assert msgspec.json.decode(msgspec.json.encode(record), type=fa4verify.Record) == record


def test_a_pass_without_evidence_cannot_be_built():
    with pytest.raises(ValueError, match="at least one budget"):
        fa4verify.Verdict("PASS")
