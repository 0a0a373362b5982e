"""The contract: what it says of whom, verdicts, and that the shipped one is what it claims to be."""

import pytest

from fa4verify.kernels.shipped.audit import contract
from fa4verify.kernels.shipped.audit.configurations import ANCHORS, covering, every
from fa4verify.kernels.shipped.audit.facts import Fact, missing
from fa4verify.kernels.shipped.audit.results import Result

GRID = {one.id: one for one in every()}
MINE = [one for one in every() if one.direction == "bwd" and one.arch == "sm_90a"][:12]


def result(one, *, delta="fma.rn.f32", adds="red", **more):
    return Result(one, {"backward": {"delta": Fact(delta, (7,)), "adds": Fact(adds), **more}})


def written(results):
    return contract.contract_of(results, {"flash-attn-4": "1"}, {"delta": "a test"})


def test_a_contract_says_of_each_what_was_found():
    """Also after a round trip through TOML; values that follow no factor are listed one by one."""
    found = [result(one, adds=("red", "bulk", "none")[at % 3]) for at, one in enumerate(MINE)]
    path_text = contract.text_of(written(found))
    again = contract.msgspec.convert(contract.tomllib.loads(path_text), contract.Contract)
    assert again == written(found)
    for one in found:
        assert again.facts(one.configuration.id) == {name: fact.value for name, fact in one.facts.items()}
    assert again.facts("bwd-sm_120a-d64-full-bf16-mha") == {}


def test_patterns_are_short_and_match_nothing_else():
    ids = [one.id for one in MINE]
    causal = [identity for identity in ids if "causal" in identity]
    assert contract.patterns(ids, ids) == ("bwd-*-*-*-*-*",)
    for chosen in (causal, ids[:1], ids[1:5]):
        found = contract.patterns(chosen, ids)
        matched = [one for one in ids if any(contract.fnmatchcase(one, pattern) for pattern in found)]
        assert matched == [one for one in ids if one in chosen]


@pytest.mark.parametrize(
    ("changed", "verdict", "told"),
    [
        ({}, "PASS", ""),
        ({"delta": "add.f32"}, "FAIL", "PTX line 7"),
        ({"adds": "atom"}, "FAIL", "'atom', agreed 'red'"),
        ({"another": Fact("x")}, "INCONCLUSIVE", "no row for it"),
        ({"delta": None}, "INCONCLUSIVE", "delta was not found"),
    ],
)
def test_verdicts(changed, verdict, told):
    judged = contract.judge(result(MINE[0], **changed), written([result(MINE[0])]))
    assert judged.verdict == verdict
    assert told in "".join(judged.findings)


def test_a_fact_that_is_gone_or_unreadable_is_no_pass():
    agreed = written([result(MINE[0])])
    gone = Result(MINE[0], {"backward": {"delta": Fact("fma.rn.f32")}})
    assert contract.judge(gone, agreed).verdict == "INCONCLUSIVE"
    unread = result(MINE[0])
    unread.kernels["backward"]["adds"] = missing("a test")
    assert contract.judge(unread, agreed).verdict == "INCONCLUSIVE"
    assert contract.judge(Result(MINE[0]), agreed).verdict == "INCONCLUSIVE"
    assert contract.judge(Result(MINE[0], failed="TypeError"), agreed).verdict == "INCONCLUSIVE"
    assert contract.judge(result(MINE[1]), agreed).verdict == "INCONCLUSIVE"


def test_a_refusal_is_skipped_only_where_nothing_was_agreed():
    agreed = written([result(MINE[0]), Result(MINE[1], refused="no")])
    assert contract.judge(Result(MINE[1], refused="no"), agreed).verdict == "SKIPPED"
    assert contract.judge(Result(MINE[0], refused="no"), agreed).verdict == "INCONCLUSIVE"


def test_nothing_is_agreed_upon_that_was_not_found():
    for bad in (Result(MINE[0], failed="x"), result(MINE[0], adds=None)):
        with pytest.raises(ValueError, match=MINE[0].id):
            written([bad])


def test_the_shipped_contract():
    """It covers what an audit asks for by default, each fact with provenance; FP8 as published: offset 8, tau 0."""
    agreed = contract.load()
    asked = {one.id for one in covering()}
    assert asked <= {*agreed.configurations, *agreed.refused}
    assert {*ANCHORS} <= {*agreed.configurations}
    assert agreed.agreed.keys() >= {"flash-attn-4", "nvidia-cutlass-dsl", "date"}
    for facts in agreed.kernels.values():
        for name in facts:
            assert agreed.provenance.get(name), f"no provenance of {name}"
    for identity in agreed.configurations:
        facts = agreed.facts(identity)
        assert facts, identity
        assert len(facts) == sum(
            any(contract.fnmatchcase(identity, one) for one in patterns)
            for kind in agreed.kernels.values()
            for values in kind.values()
            for patterns in values.values()
        ), f"two values of one fact for {identity}"
        if GRID[identity].dtype in ("e4m3", "e5m2"):
            assert (facts["forward.offset"], facts["forward.tau"]) == ("8", "0")


def test_an_unreadable_contract_is_told(tmp_path):
    path = tmp_path / "contract.toml"
    path.write_text("configurations = 3")
    with pytest.raises(ValueError, match=r"contract\.toml"):
        contract.load(path)
