"""Figures: all there, small, the same bytes in any process, readable on white and black, hostile names as text."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fa4verify.reports.figures import canvas, checks, errors, figures
from fa4verify.vocabulary import Metrics, Profile
from tests.reports.contrast import ratio_of
from tests.reports.make import HOSTILE, case, record, verdict
from tests.reports.pictured import everything, failing

NAMES = [
    "checks", "exceedance-forward-bf16", "exceedance-forward-fp16", "exceedance-backward-bf16",
    "exceedance-backward-fp16", "ulps", "lengths", "octave", "columns", "rows-o", "rows-dq", "rescale", "determinism",
]  # fmt: skip
BYTES = """
import hashlib
from fa4verify.reports.figures import figures
from tests.reports.pictured import everything
print(hashlib.sha256("".join(figure.svg for figure in figures(everything())).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def drawn():
    return {figure.name: figure for figure in figures(everything())}


def test_every_figure_is_there_and_small(drawn):
    assert list(drawn) == NAMES
    sizes = {name: len(figure.svg.encode()) for name, figure in drawn.items()}
    assert max(sizes.values()) <= 30_000, sizes


def test_no_record_no_figure():
    assert figures([]) == ()
    assert figures([record("a"), record("b", "SKIPPED")]) == ()


def test_the_same_bytes_in_another_process_with_another_home(drawn, tmp_path):
    """Hash seed, time zone, locale, a matplotlibrc of the user's: none of them may show."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\naxes.grid: False\nsvg.hashsalt: other\n")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "MPLCONFIGDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ran = subprocess.run([sys.executable, "-c", BYTES], env=environment, capture_output=True, text=True, check=True)
    own = hashlib.sha256("".join(figure.svg for figure in drawn.values()).encode()).hexdigest()
    assert ran.stdout.strip() == own


def test_they_are_wellformed_self_contained_and_share_a_page(drawn):
    ids = []
    for figure in drawn.values():
        root = ET.fromstring(figure.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        own = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert all(name.startswith(f"{figure.name}-") for name in own)
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', figure.svg))
        assert used == set(own), "every reference leads somewhere, and nothing else has an id"
        ids += own
        for word in ("http", "<style", "<script", "<image", "metadata", "<!--", canvas.INK):
            assert word not in figure.svg.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"\d\.\d{3}", re.sub(r">[^<]*<", "><", figure.svg)), (
            "coordinates to a hundredth of a point"
        )
    assert len(ids) == len(set(ids))


def test_colours_stand_out_on_white_and_on_black(drawn):
    """WCAG 2.2, 1.4.11: 3 to 1 for what is needed to understand a graphic."""
    for colour in (*canvas.SERIES, canvas.GREY):
        assert ratio_of(colour, "#ffffff") >= 3.0, colour
        assert ratio_of(colour, "#14171a") >= 3.0, colour
    assert ratio_of("#56B4E9", "#ffffff") < 3.0, "the check can fail: Okabe and Ito's sky blue is too pale on white"
    lightness = [ratio_of(step, "#000000") for step in canvas.STEPS]
    assert lightness == sorted(lightness), "steps of a map differ in lightness, whoever looks"
    known = {colour.lower() for colour in (*canvas.SERIES, *canvas.STEPS, canvas.GREY)}
    for figure in drawn.values():
        assert set(re.findall(r"#[0-9a-f]{6}\b", figure.svg)) <= known


def test_names_of_kernels_stay_text():
    evil = ["$x^2$", "</svg><script>alert(1)</script>", HOSTILE, "$\\frac{", "&lt;", "x" * 100_000]
    records = [
        msgspec.structs.replace(item, case=msgspec.structs.replace(item.case, id=f"{place}", kernel=name))
        for place, name in enumerate(evil)
        for item in (failing("a", "b"),)
    ]
    for figure in figures(records):
        assert len(figure.svg) < 40_000
        root = ET.fromstring(figure.svg)
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        shown = {element.text for element in root.iter() if element.tag.endswith("}text")}
        if figure.name == "ulps":
            assert {"$x^2$", "&lt;", "$\\frac{"} <= shown


def test_exceedance_against_counting():
    """One case of 1000 elements: the share beyond an edge is a count; between edges it is interpolated in octaves."""
    sizes = np.exp2(np.random.default_rng(0).uniform(-20, -6, 1000))
    codes = np.floor(np.log2(sizes)).astype(int) * 2 + (sizes / np.exp2(np.floor(np.log2(sizes))) >= 1.5)
    counts = np.bincount(codes - codes.min())
    found = Metrics(
        {"truth_rms": 2.0}, profile=Profile(errors=tuple(counts.tolist()), errors_from=int(codes.min()), exact=1000)
    )
    shares = errors._beyond(found, floor=False)
    for octave, share in zip(errors.HALF_OCTAVES, shares, strict=True):
        if octave == int(octave):  # edges of octaves are edges of bins
            assert share == pytest.approx((sizes > 2.0 * 2.0**octave).sum() / 2000, abs=1e-12)
    assert errors._beyond(Metrics({"truth_rms": 0.0}, profile=found.profile), floor=False) is None


def test_the_matrix_knows_caught_held_and_never_judged():
    good = record("good", case=case("good", kernel="sound"))
    bad = failing("bad", "wrong")
    dead = record("dead", "CRASHED", case=case("dead", kernel="dead"))
    found = {kernel: checks._cells([item], set()) for kernel, item in (("sound", good), ("wrong", bad), ("dead", dead))}
    assert found["wrong"] == {"o rmse": True, "FlashAttention's rule": False}
    assert found["dead"] == {"crashed": True}
    assert not any(found["sound"].values())


def test_a_false_alarm_of_the_rule_does_not_count():
    alarm = record("alarm", fa_rule=False, case=case("alarm", kernel="sound"))
    same = record("same", "FAIL", fa_rule=False, verdict=verdict("FAIL"), case=case("same", kernel="wrong"))
    other = record("other", "FAIL", fa_rule=False, case=case("other", kernel="wrong", dtype="fp16"))
    alarms = checks._false_alarms([alarm, same, other])
    assert checks.RULE not in checks._cells([same], alarms)
    assert checks._cells([other], alarms)[checks.RULE] is True


def test_a_map_of_nothing_but_zeros_is_left_out():
    exact = Metrics({"worst_row_relative_l2": 0.0}, profile=Profile(rows=((-1024, None),)))
    assert figures([record("a", metrics={"o": exact})]) == ()


def test_svg_files_end_up_in_a_folder(elsewhere, capsys):
    from fa4verify.cli import main
    from fa4verify.runs import RunWriter
    from tests.reports.make import run

    finished = run(*everything())
    with RunWriter(Path("run.jsonl"), finished.header) as writer:
        for item in finished.records:
            writer.write(item)
    assert main(["report", "run.jsonl", "--figures", "drawn", "--html", "report.html"]) == 1
    assert sorted(path.stem for path in Path("drawn").iterdir()) == sorted(NAMES)
    assert "report.html" in capsys.readouterr().out
    page = Path("report.html").read_text()
    assert all(path.read_text() in page for path in Path("drawn").iterdir())
    assert main(["report", "run.jsonl", "--html", "report.html/below"]) == 2
    assert "cannot write" in capsys.readouterr().err
