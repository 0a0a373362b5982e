"""The fits of the package: they do what they claim, and each is at least as good as what it may be compared with."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2 import library
from fa4verify.exp2.fit import has_shape
from fa4verify.exp2.library import (
    DEGREES,
    OBJECTIVES,
    RANGES,
    find,
    keys,
    named,
    nested,
    read,
    refit,
    shipped_fits,
    text,
)
from fa4verify.exp2.merit import merit
from fa4verify.exp2.remez import Shape
from fa4verify.exp2.sets import SetError, parse, shipped
from tests.exp2.test_fit import REACHED

FITS = shipped_fits()
SEARCHED = tuple(
    key
    for key in keys(DEGREES, ("one", "free", "ends"), RANGES, OBJECTIVES)
    if key[:3] != (1, "ends", "nearest")  # 1 + c/2 = 2 (1 - c/2) at 2/3 alone
)


def test_nothing_is_missing():
    assert set(FITS) == set(SEARCHED)


@pytest.mark.parametrize("key", SEARCHED, ids=library.name)
def test_each_has_its_shape_and_its_figures(key):
    """A sample of 2^16 fractions: its largest error is at most that of all, its mean square within 3 %."""
    degree, term, reduction, _ = key
    entry = FITS[key]
    assert has_shape(entry.chosen, Shape(degree, "one" if term == "ends" else term, term == "ends", reduction))
    sampled = merit(entry.chosen.float32, floor=reduction == "floor", stride=256, shares=False)
    assert 0.8 * entry.figures["max"] < sampled.max <= entry.figures["max"]
    assert abs(sampled.rms / entry.figures["rms"] - 1.0) < 0.03


@pytest.mark.parametrize("key", [
    (2, "free", "floor", "bf16"), (3, "one", "floor", "rms"), (4, "one", "nearest", "max"), (5, "ends", "floor", "max"),
], ids=library.name)  # fmt: skip
def test_figures(key):
    entry = FITS[key]
    again = asdict(merit(entry.chosen.float32, floor=key[2] == "floor"))
    sums = {name: again.pop(name) for name in ("rms", "bias")}
    assert again == {name: entry.figures[name] for name in again}
    assert sums == pytest.approx({name: entry.figures[name] for name in sums}, rel=1e-9)  # order of 2^24 additions


@pytest.mark.parametrize("key", keys(DEGREES, ("one",), RANGES, OBJECTIVES), ids=library.name)
def test_who_is_asked_less_is_no_worse(key):
    degree, _, reduction, objective = key
    free, ends = ((degree, term, reduction, objective) for term in ("free", "ends"))
    assert FITS[free].figures[objective] <= FITS[key].figures[objective]
    assert ends not in FITS or FITS[key].figures[objective] <= FITS[ends].figures[objective]
    if reduction == "floor":
        assert FITS[key].figures[objective] <= getattr(merit(shipped(degree).float32), objective)


@pytest.mark.parametrize("earlier", REACHED, ids=lambda each: f"{each[0]}-{each[1]}-{each[2]}")
def test_against_an_earlier_search(earlier):
    """No worse than sets that a longer search found, to 1e-4, by the figures of this package (max over every x)."""
    degree, objective, _, _, words = earlier
    chosen = parse(words)
    term = "one" if chosen.coefficients[0] == 1.0 else "free"
    theirs = merit(chosen.float32, shares=objective == "bf16").objective(objective)
    assert FITS[(degree, term, "floor", objective)].figures[objective] <= (1 + 1e-4) * theirs


def test_at_least_one_is_free_or_one():
    for degree, _, reduction, objective in keys(DEGREES, ("free",), RANGES, OBJECTIVES):
        found = find(FITS, (degree, "at-least-one", reduction, objective))
        free, one = (FITS[(degree, term, reduction, objective)] for term in ("free", "one"))
        assert found is (free if free.chosen.coefficients[0] >= 1.0 else one)
        assert found.chosen.coefficients[0] >= 1.0
    assert find(FITS, (7, "at-least-one", "floor", "max")) is None


def test_nested():
    """A free search that ends at p0 = 1 serves `one` as well; a worse or other set does not."""
    keyed = {term: FITS[(4, term, "nearest", "rms")] for term in ("one", "free", "ends")}
    better = replace(keyed["one"], figures={**keyed["one"].figures, "rms": 1e-9}, key=keyed["free"].key)
    entries = {keyed["one"].key: keyed["one"], keyed["free"].key: better, keyed["ends"].key: keyed["ends"]}
    found = nested(entries)
    assert found[keyed["one"].key].figures["rms"] == 1e-9
    assert found[keyed["one"].key].chosen.name == "fit:4:one:nearest:rms"
    assert found[keyed["ends"].key] == keyed["ends"]
    entries[keyed["free"].key] = replace(better, chosen=replace(better.chosen, coefficients=(0.5, 0.5)))
    assert nested(entries)[keyed["one"].key] == keyed["one"]
    assert nested(FITS) == FITS


def test_names():
    key = (4, "at-least-one", "nearest", "rms")
    assert parse(" fit:4:at-least-one:nearest:rms") == find(FITS, key).chosen
    assert parse("fit:4:at-least-one:nearest:rms").range_reduction == "nearest"
    for words in ("fit:9:one:floor:max", "fit:3:one:floor", "fit:3:two:floor:max", "fit:x:one:floor:max"):
        with pytest.raises(SetError, match="no such fit; expected"):
            named(words)


def test_text_is_read_back_and_nonsense_is_not():
    assert read(text(FITS)) == FITS
    for content in ("", "[]", '{"fits": [{}]}', '{"fits": [{"degree": 3, "p0": "one"}]}'):
        with pytest.raises(SetError, match="no file of fits"):
            read(content)


def test_refit_of_what_leaves_no_choice():
    """Degree 1 with p(0) = 1 and p(1) = 2 is 1 + f, up to the ulp that p(1) rounds away; both terms of at-least-one."""
    seen, kept = [], []
    found = refit(
        keys((1,), ("ends",), ("floor",), ("max",)),
        seconds=1.0,
        progress=seen.append,
        done=lambda e: kept.append(len(e)),
    )
    (entry,) = found.values()
    assert entry.chosen.coefficients in ((1.0, 1.0), (1.0, 1.0 - 2.0**-24))
    assert entry.command == (
        "fa4verify exp2 fit --degree 1 --p0 one --continuous --range floor --objective max --seconds 1 --seed 0"
    )
    assert (seen, kept) == ([1.0], [1])
    assert refit(keys((1,), ("ends",), ("nearest",), ("max",)), seconds=1.0) == {}
    both = refit(keys((0,), ("at-least-one",), ("floor",), ("max",)), seconds=1.0)
    assert [key[1] for key in both] == ["one", "free"]
    assert both[(0, "one", "floor", "max")].chosen.coefficients == POLY_EX2[0]
    free = both[(0, "free", "floor", "max")]
    assert abs(free.chosen.coefficients[0] - 4 / 3) < 1e-6  # |c - 1| = |c/2 - 1|
    assert np.isclose(free.figures["max"], 1 / 3)
