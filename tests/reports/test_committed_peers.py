"""The page of an H200's run is what its run file says."""

from pathlib import Path

from benchmarks.peers_page import page
from fa4verify.runs import read

REPORTS = Path(__file__).parents[2] / "docs" / "reports"
NAME = "h200-peers"


def test_the_page_is_what_the_run_file_says():
    run = read(REPORTS / f"{NAME}.jsonl.xz")
    assert page(run, NAME) == (REPORTS / f"{NAME}.md").read_text()


def test_what_docs_say_of_it():
    """docs/gpu.md: every FAIL is `standard-gpu`, and every case of that fails; six hold NaN."""
    records = read(REPORTS / f"{NAME}.jsonl.xz").records
    failed = [record for record in records if record.verdict.outcome != "PASS"]
    assert (len(records), len(failed)) == (504, 72)
    assert failed == [record for record in records if record.case.kernel == "standard-gpu"]
    wrong = [record for record in failed if any(f.metric == "nonfinite_mismatches" for f in record.verdict.findings)]
    assert len(wrong) == 6
    assert {(record.case.dtype, record.case.distribution.name) for record in wrong} == {("fp16", "massive_activations")}
