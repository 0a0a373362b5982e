"""What failing cases have in common, and where an index is: by hand."""

from __future__ import annotations

import msgspec

from fa4verify.reports.location import locate
from fa4verify.reports.patterns import Pattern, patterns
from fa4verify.vocabulary import Metrics, Profile, Shape
from tests.reports.make import case, record


def many(outcome_of):
    found = []
    for dtype in ("bf16", "fp16"):
        for causal in (False, True):
            for keys in (128, 200, 2048):
                one = case(
                    f"{dtype}-{causal}-{keys}", dtype=dtype, causal=causal, shape=Shape(1, 128, keys, 2, 2, 64, 64)
                )
                found.append(record(one.id, outcome_of(one), case=one))
    return found


def test_the_property_that_all_failures_share_comes_first():
    found = patterns(many(lambda one: "FAIL" if one.dtype == "fp16" and one.causal else "PASS"))
    assert {item.what for item in found[:2]} == {"dtype fp16", "mask causal"}
    assert found[0] == Pattern(found[0].what, 3, 6)


def test_a_ragged_length():
    found = patterns(many(lambda one: "CRASHED" if one.shape.seqlen_k == 200 else "PASS"))
    assert found[0] == Pattern("keys not a multiple of 128", 4, 4)


def test_no_pattern_where_all_fail_or_none_or_one():
    assert patterns(many(lambda _: "FAIL")) == patterns(many(lambda _: "PASS")) == ()
    assert patterns(many(lambda one: "FAIL" if one.id == "fp16-True-200" else "PASS")) == ()


def test_a_place_in_words():
    item = record("a", provenance={"tiles": "192x80"})
    assert locate(item, "o", (0, 200, 3, 5)) == (
        "batch 0, query 200, head 3, channel 5; row 8 of query tile 1 (192 rows a tile)"
    )
    assert locate(item, "dk", (1, 170, 0)) == "batch 1, key 170, KV head 0; column 10 of KV tile 2 (80 keys a tile)"
    assert locate(record("a"), "lse", (0, 1, 130)).endswith("row 2 of query tile 1 (128 rows a tile)")
    assert locate(item, "y", (7,)) == "input 7"
    assert locate(item, None, (1,)) == locate(item, "o", None) == locate(item, "other", (1,)) == ""


def test_the_key_that_weighs_most_is_told_of_its_own_row_only():
    measured = Metrics({}, {"max_abs": (0, 1, 2)}, profile=Profile(worst_key=300))
    item = msgspec.structs.replace(record("a"), metrics={"lse": measured})
    assert "is 300: column 44 of KV tile 2" in locate(item, "lse", (0, 1, 2))
    assert "300" not in locate(item, "lse", (0, 1, 3))
