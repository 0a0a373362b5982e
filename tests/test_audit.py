"""The doors of the audit: what is chosen, exit codes, what is printed; nothing is compiled here."""

import json

import pytest

from fa4verify import audit, changelog, flow, releases
from fa4verify.cases import load_suite
from fa4verify.cli import main
from fa4verify.kernels.shipped.audit import contract, results
from fa4verify.kernels.shipped.audit.configurations import ANCHORS, covering, every
from fa4verify.kernels.shipped.audit.facts import Fact, missing
from fa4verify.kernels.shipped.audit.results import Result
from fa4verify.plan import BadRequest

GRID = {one.id: one for one in every()}
SM100 = "fwd-sm_100a-d128-full-e4m3-mha"
GATE = [case for case in load_suite("gate").cases if case.operation == "audit"]


def as_agreed(one, **changed):
    """Return the result that the shipped contract agrees with, with some facts changed."""
    facts = contract.load().facts(one.id)
    if not facts:
        return Result(one, refused="as before")
    kernels = {}
    for name, value in {**facts, **changed}.items():
        kind, fact = name.split(".")
        kernels.setdefault(kind, {})[fact] = Fact(value, (1, 2, 3)) if value is not None else missing("a test")
    return Result(one, kernels)


@pytest.fixture
def found(monkeypatch):
    """Let every audit find what is agreed, except for the facts in the dict that this returns."""
    changed = {}

    def audited(configurations, **_):
        for one in configurations:
            yield as_agreed(one, **changed.get(one.id, {}))

    monkeypatch.setattr(results, "audited", audited)
    monkeypatch.setattr(audit.kernels, "availability", {}.get)  # also where flash-attn-4 is not installed
    return changed


def test_the_default_is_the_covering_set_and_words_narrow_it():
    assert audit.chosen((), (), every=False) == covering()
    some = audit.chosen(("sm_100a",), ("causal bf16",), every=True)
    assert some
    assert all(one.arch == "sm_100a" and one.mask == "causal" and one.dtype == "bf16" for one in some)
    assert audit.chosen((), (SM100,), every=False) == (GRID[SM100],)
    assert {one.direction for one in audit.chosen((), ("bwd-*-det",), every=True)} == {"bwd"}
    with pytest.raises(BadRequest, match="sm_999"):
        audit.chosen(("sm_999",), (), every=False)
    with pytest.raises(BadRequest, match="--all"):
        audit.chosen((), ("d127",), every=False)


@pytest.mark.parametrize(
    ("arch", "config", "said"),
    [
        ((), ("",), "empty"),
        ((), (SM100, "bogus"), "'bogus' beside an id"),
        (("sm_90a",), (SM100,), "is not of sm_90a"),
    ],
)
def test_no_word_of_a_request_is_ignored(arch, config, said):
    with pytest.raises(BadRequest, match=said):
        audit.chosen(arch, config, every=False)


def test_a_contract_is_not_written_from_another_release(capsys):
    assert main(["audit", "--release", "4.0.0b36", "--write-contract"]) == 2
    assert "installed release" in capsys.readouterr().err


def test_an_agreed_release_passes(found, capsys):
    assert main(["audit"]) == 0
    assert "0 FAIL" in capsys.readouterr().out


def test_a_contract_of_another_dsl_is_told(found, monkeypatch, capsys):
    from fa4verify.kernels.shipped.audit import releases as audited_releases

    monkeypatch.setattr(audited_releases, "installed", dict)
    assert main(["audit", "--config", SM100]) == 0
    assert "The contract is of" not in capsys.readouterr().out
    monkeypatch.setattr(audited_releases, "installed", lambda: {"nvidia-cutlass-dsl": "9.9"})
    assert main(["audit", "--config", SM100]) == 0
    assert "(9.9 is installed)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "code", "told"),
    [
        ({"forward.program": "another"}, 3, "another program"),
        ({"forward.float_flow": "another", "forward.program": "other"}, 3, "floats are put together otherwise"),
        ({"forward.tau": "4"}, 1, "P reaches 2^12"),
        ({"forward.rcp": "rcp.rn.f32"}, 1, "agreed 'rcp.approx.ftz.f32'"),
        ({"forward.lg2": None}, 3, "was not found"),
    ],
)
def test_a_deviation_is_told_and_ends_the_command(found, capsys, changed, code, told):
    found[SM100] = changed
    assert main(["audit"]) == code
    assert told in capsys.readouterr().out


def test_one_configuration_shows_its_facts_with_lines(found, capsys):
    assert main(["audit", "--config", SM100]) == 0
    out = capsys.readouterr().out
    assert "forward.tau" in out
    assert "1-3" in out
    assert main(["audit", "--config", SM100, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["configurations"][SM100]["facts"]["forward.offset"] == {"value": "8", "lines": [1, 2, 3]}


def test_the_gate_asks_for_what_the_contract_has():
    assert {case.options["configuration"] for case in GATE} <= set(ANCHORS)
    assert {case.options["configuration"] for case in GATE} <= set(contract.load().configurations)
    assert all(case.options["configuration"].split("-")[1] == case.kernel.removeprefix("fa4@") for case in GATE)


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "PASS"),
        ({"forward.tau": "4"}, "FAIL"),
        ({"forward.tau": None}, "INCONCLUSIVE"),
        ({"forward.program": "another"}, "INCONCLUSIVE"),
    ],
)
def test_a_case_of_the_gate_turns_red(found, monkeypatch, changed, outcome):
    from fa4verify.kernels import audited

    monkeypatch.setattr(audited, "kernel", str)  # where flash-attn-4 is not installed
    case = next(one for one in GATE if one.options["configuration"] == SM100)
    found[SM100] = changed
    record = flow.verify(case)
    assert record.verdict.outcome == outcome, record.verdict
    assert record.command.endswith(case.id)


def test_a_kernel_without_ptx_is_skipped():
    import msgspec

    record = flow.verify(msgspec.structs.replace(GATE[0], kernel="fa4-sm90"))
    assert (record.verdict.outcome, record.verdict.findings[0].message) == ("SKIPPED", "fa4-sm90 has no PTX to audit")


def audited(release, **changed):
    one = GRID[SM100]
    return changelog.Audited(release, {"nvidia-cutlass-dsl": "1"}, {one.id: as_agreed(one, **changed)})


def test_the_changelog_names_what_differs_and_nothing_else():
    old, new = audited("1"), audited("2", **{"forward.tau": "4"})
    assert changelog.changes(old, old) == []
    (change,) = changelog.changes(old, new)
    assert (change.fact, change.before, change.after, change.configurations) == ("forward.tau", "0", "4", (SM100,))
    assert new.unsafe
    assert not old.unsafe
    (change,) = changelog.changes(old, audited("3", **{"forward.program": "x"}))
    assert (change.fact, change.before, change.after) == ("forward.program", "one digest", "another")
    gone = changelog.Audited("3", {}, {SM100: Result(GRID[SM100], failed="TypeError: x")})
    (change,) = changelog.changes(old, gone)
    assert change.after == "does not compile (TypeError: x)"


@pytest.mark.parametrize(
    ("by_newest", "by_oldest", "dsl"),
    [(1, 0, None), (0, 1, "4.4.2"), (0, 0, None)],
    ids=["newest", "oldest", "neither"],
)
def test_the_oldest_dsl_is_tried_where_the_newest_compiles_nothing(monkeypatch, by_newest, by_oldest, dsl):
    one = GRID[SM100]
    compiles = {"newest": by_newest, "4.4.2": by_oldest}

    def environment(release, dsl="newest"):
        return dsl

    def audited_in(python, asked, workers):
        return [as_agreed(one) if compiles[python] else Result(one, failed="TypeError")]

    monkeypatch.setattr(changelog.releases, "environment", environment)
    monkeypatch.setattr(changelog.releases, "oldest_dsl", {"newest": "4.4.2"}.get)
    monkeypatch.setattr(changelog.releases, "versions_in", lambda python: {changelog.releases.DSL: python})
    monkeypatch.setattr(changelog.releases, "audited_in", audited_in)
    found = changelog.audited("4.0.0b8", [one])
    assert (found.dsl, found.compiled) == (dsl, max(by_newest, by_oldest))
    assert ("which pip takes" in found.note) == (dsl is not None)
    assert ("the oldest: TypeError" in found.note) == (not found.compiled)


def test_results_are_compared_bit_by_bit_and_with_truth():
    import torch

    case = changelog.RUN[0]
    truth = changelog.references.solve(case, changelog.cases.draw(case)).tensors
    right = {name: torch.from_numpy(truth[name]).float() for name in ("o", "lse")}
    off = {**right, "o": right["o"] + 1e-3}
    same = {one.id: right for one in changelog.RUN}
    assert all(one.equal for one in changelog.compared_runs(same, same, "1", "2"))
    told = changelog.compared_runs({**same, case.id: off}, same, "1", "2")[0]
    assert told.equal is False
    assert "2 is nearer to float64" in told.text
    assert "lse" not in told.text
    told = changelog.compared_runs({**same, case.id: "Unsupported: no"}, same, "1", "2")[0]
    assert told.equal is None
    assert "1: Unsupported: no" in told.text


def test_without_an_index_the_error_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FA4VERIFY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert main(["audit", "--release", "4.0.0b20"]) == 2
    said = capsys.readouterr().err
    assert "package index cannot be reached" in said
    assert len(said.splitlines()) == 1


def test_without_flash_attn_the_reason_is_told(monkeypatch, capsys):
    monkeypatch.setattr(audit.kernels, "availability", lambda name: f"{name} needs flash-attn-4, not installed")
    assert main(["audit"]) == 2
    assert "flash-attn-4, not installed" in capsys.readouterr().err


def test_options_that_need_a_release_say_so(capsys):
    assert main(["audit", "--against", "4.0.0b20"]) == 2
    assert "--release" in capsys.readouterr().err


def test_the_page_has_a_row_for_every_release(monkeypatch):
    kept = {"1": audited("1"), "2": audited("2", **{"forward.tau": "4"}), "4": changelog.Audited("4", {}, {}, "gone")}
    monkeypatch.setattr(releases, "_kept", kept.get)
    text = releases.page(("1", "2", "3", "4"))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "rescale threshold τ 0 → 4" in rows["2"]
    assert "**FAIL**" in rows["2"]
    assert "none" in rows["1"]
    assert "not looked at" in rows["3"]
    assert "cannot be installed: gone" in rows["4"]
    assert "3 of 4 releases" in text
    (avoid,) = [line for line in text.splitlines() if line.startswith("- **2** for")]
    assert SM100 in avoid
    assert "2^12" in avoid
