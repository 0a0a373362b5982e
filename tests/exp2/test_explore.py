"""The table, its three views, the figure and the command."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fa4verify import cli
from fa4verify.exp2 import explore_view
from fa4verify.exp2.errors import SetError
from fa4verify.exp2.explore import candidates, explore, hazards, with_attention
from fa4verify.exp2.figure import draw
from fa4verify.exp2.hardware import MEASURED
from fa4verify.exp2.library import CONSTANT_TERMS, OBJECTIVES, RANGES, find, keys, shipped_fits
from fa4verify.exp2.merit import merit
from fa4verify.exp2.sets import CoefficientSet, parse, shipped

WANTED = keys((2, 3), CONSTANT_TERMS, RANGES, OBJECTIVES)
ONE_ULP = CoefficientSet("one ulp", (*shipped(3).coefficients[:3], shipped(3).coefficients[3] + 2.0**-27))


@pytest.fixture(scope="module")
def found():
    return explore(WANTED, [ONE_ULP])


def row(found, name):
    return next(each for each in found.rows if each.chosen.name == name)


def test_rows(found):
    assert [each.chosen.name for each in found.rows if each.kind == "fa4"] == ["fa4:2", "fa4:3"]
    assert [each.fmas for each in found.rows] == sorted(each.fmas for each in found.rows)
    assert found.mufu == MEASURED
    sets = [(each.chosen.coefficients, each.chosen.range_reduction) for each in found.rows]
    assert len(sets) == len(set(sets))
    answered = {(each.fmas, each.chosen.range_reduction, *answer) for each in found.rows for answer in each.answers}
    assert answered == {(degree, reduction, term, objective) for degree, term, reduction, objective in WANTED}
    best = row(found, "fit:2:free:floor:rms")
    assert best.answers == (("at-least-one", "rms"), ("free", "rms"))
    assert best.ratios["rms"] == best.figures["rms"] / merit(shipped(2).float32).rms
    assert row(found, "fa4:3").ratios == {}


def test_one_ulp_is_told_from_the_shipped_set(found):
    given, theirs = row(found, "one ulp"), row(found, "fa4:3")
    assert given.kind == "given"
    assert all(given.figures[name] != theirs.figures[name] for name in ("rms", "bias", "bf16", "fp16"))
    assert 0.99 < given.ratios["rms"] < 1.01


def test_what_is_known_is_not_shown_twice_and_what_is_unknown_not_at_all():
    again = replace(shipped(3), name="mine")
    assert [each.chosen.name for each in explore([], [again]).rows] == ["fa4:3"]
    assert [each.chosen.name for each in explore(keys((0, 6, 7), ("one",), ("floor",), ("max",))).rows] == ["fa4:0"]
    fits = {(3, "one", "floor", "max"): replace(shipped_fits()[(3, "one", "floor", "max")], chosen=again)}
    (only,) = explore(keys((3,), ("one",), ("floor",), ("max",)), (), fits).rows
    assert (only.kind, only.answers) == ("fa4", (("one", "max"),))


def test_hazards():
    third = shipped(3).coefficients
    assert hazards(shipped(3)) == ()
    assert hazards(CoefficientSet("", (1 - 2.0**-24, *third[1:]))) == ("masked NaN",)
    assert hazards(CoefficientSet("", (*third[:3], third[3] + 2.0**-12))) == ("steps down",)
    half = CoefficientSet("", (1.0, 0.6875, 0.25), "nearest")
    assert hazards(half) == ()  # p(1/2) = 1.40625 < 2 p(-1/2) = 1.4375
    assert hazards(replace(half, coefficients=(1.0, 0.75, 0.25))) == ("steps down",)  # 1.4375 > 2 * 0.6875


def test_candidates_are_what_a_kernel_could_adopt(found):
    chosen = candidates(found)
    assert all(each.coefficients[0] >= 1.0 for each in chosen)
    names = {each.name for each in chosen}
    assert [each.degree for each in chosen] == sorted(each.degree for each in chosen)
    assert {"fa4:2", "fa4:3", "one ulp"} <= names
    assert {"fit:3:one:floor:rms", "fit:3:ends:floor:rms", "fit:3:one:nearest:bf16", "fit:2:free:floor:rms"} <= names
    assert "fit:3:free:floor:rms" not in names


@pytest.fixture(scope="module")
def whole():
    done = []
    chosen = explore(keys((3,), ("one",), ("nearest",), ("rms",)), [CoefficientSet("p0 < 1", (0.75, 0.5))])
    result = with_attention(chosen, seeds=1, progress=done.append)
    assert sum(done) == 100
    return result


def test_views(whole):
    out = io.StringIO()
    explore_view.terminal(whole, Console(file=out, width=240, color_system=None))
    shown = out.getvalue()
    lines = shown.splitlines()
    assert lines[1].split() == ["MUFU", "0", "-", "1.440e-07", "4.656e-08", "-2.88e-08", "0.000966%", "0.00725%"]
    assert next(line for line in lines if line.startswith("fa4:3")).split()[3:6] == [
        "8.769e-05",
        "6.029e-05",
        "+8.24e-06",
    ]
    assert "masked NaN" in next(line for line in lines if line.startswith("p0 < 1"))
    assert re.search(r"p0 < 1 +1 +bf16.* NaN", shown)
    content = json.loads(explore_view.as_json(whole))
    assert [each["kind"] for each in content["sets"]] == [each.kind for each in whole.rows]
    fit = next(each for each in content["sets"] if each["kind"] == "fit")
    assert parse(json.dumps({key: fit[key] for key in ("name", "coefficients", "range")})).range_reduction == "nearest"
    assert len(content["attention"]["effects"]) == 5 * 2 * 4
    assert all(each["lse_max"] is None or each["lse_max"] > 0 for each in content["attention"]["effects"])
    document = explore_view.markdown(whole)
    for table in re.findall(r"(?:^\|.*\n)+", document, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert document.count("\n## ") == 2


def test_figure_is_the_same_text_twice(whole):
    pytest.importorskip("matplotlib")
    svg = draw(whole)
    assert svg == draw(whole)
    assert svg.startswith("<?xml")
    assert "<dc:date>" not in svg
    for words in ("largest relative error", "other bf16 roundings", "LSE: largest error, rows of one key", "MUFU"):
        assert f">{words}" in svg or words in svg
    other = replace(whole, effects=tuple(replace(each, lse_rmse=2 * each.lse_rmse) for each in whole.effects))
    assert draw(other) != svg


def test_without_matplotlib_the_figure_says_so(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SetError, match="--figure needs matplotlib"):
        draw(whole)


def test_command(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "explore.svg"
    words = ["exp2", "explore", "--degree", "3", "--p0", "one", "--range", "floor", "--objective", "max"]
    words += ["--set", "1,0.7", "--set", "1,0.71", "--no-attention"]
    assert cli.main([*words, "--json", "--figure", str(picture)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in content["sets"]] == ["fa4:1", "given", "given 2", "fa4:3", "fit:3:one:floor:max"]
    assert content["attention"]["effects"] == []
    assert picture.read_text().startswith("<?xml")
    assert cli.main([*words, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("# exp2")
    assert cli.main(words) == 0
    assert "given 2" in capsys.readouterr().out


def test_refit_is_kept(tmp_path, capsys):
    file = tmp_path / "fits.json"
    words = [
        "exp2",
        "explore",
        "--degree",
        "1",
        "--p0",
        "ends",
        "--range",
        "floor",
        "--objective",
        "rms",
        "--no-attention",
    ]
    assert cli.main([*words, "--refit", "--seconds", "1", "--save", str(file), "--json"]) == 0
    assert "fit:1:ends:floor:rms" in capsys.readouterr().out
    (fit,) = json.loads(file.read_text())["fits"]
    assert (fit["degree"], fit["p0"], fit["coefficients"][0]) == (1, "ends", "0x1p+0")


def test_the_guide_says_what_the_fits_do():
    """Every ratio of docs/exp2.md, and the coefficients that it recommends."""
    page = (Path(__file__).parents[2] / "docs" / "exp2.md").read_text("utf-8")
    table = re.findall(r"^\| (\d) \| ([^|]*)((?:\|[ \d.,]+)+)\|$", page, re.MULTILINE)
    assert [int(degree) for degree, _, _ in table] == [1, 2, 3, 4, 5]
    fits = shipped_fits()
    columns = [("floor", "one"), ("floor", "at-least-one"), ("floor", "free"), ("floor", "ends")]
    columns += [("nearest", "one"), ("nearest", "free")]
    for degree, theirs, cells in table:
        reference = merit(shipped(int(degree)).float32)
        shown = f"{reference.max:.3e}, {reference.rms:.3e}, {100 * reference.bf16:.3g} %"
        assert theirs.strip() == shown
        for (reduction, term), cell in zip(columns, cells.strip("|").split("|"), strict=True):
            ratios = [
                find(fits, (int(degree), term, reduction, objective)).figures[objective] / getattr(reference, objective)
                for objective in OBJECTIVES
            ]
            assert cell.strip() == ", ".join(f"{ratio:.3f}" for ratio in ratios)
    recommended = parse(re.search(r"^`(1, 0x[^`]+)`", page, re.MULTILINE)[1])
    assert recommended.coefficients == fits[(3, "one", "nearest", "bf16")].chosen.coefficients


@pytest.mark.parametrize("words", [
    ["--json", "--markdown"], ["--save", "x.json"], ["--set", "nonsense"], ["--degree", "8"], ["--p0", "two"],
    ["--seeds", "0"], ["--set", "fit:3:one:floor:e4m3"],
    ["--degree", "3", "--no-attention", "--figure", "/nowhere/at/all.svg"],
], ids=" ".join)  # fmt: skip
def test_mistakes_are_one_line(words, capsys):
    assert cli.main(["exp2", "explore", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) >= 1
