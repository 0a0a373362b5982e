"""The exhaustive check: figures to meet, each hazard with a set that has it and one that has not, the three views."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fa4verify import cli
from fa4verify.exp2 import render
from fa4verify.exp2.check import INPUTS, check
from fa4verify.exp2.evaluate import evaluate, evaluate_bits
from fa4verify.exp2.findings import examine, seams, specials
from fa4verify.exp2.passes import tally_range
from fa4verify.exp2.sets import CoefficientSet, parse, shipped
from fa4verify.exp2.statistics import collect, everything

F32 = np.float32
DROP_IN = "0x1.00002cp+0,0x1.62d13ap-1,0x1.ee7b9cp-3,0x1.aa115ap-5,0x1.bb6f60p-7"


@pytest.fixture(scope="module")
def shipped_report():
    done = []
    report = check(shipped(3), progress=done.append)
    assert sum(done) == INPUTS == report.inputs
    return report


def at(report, name, measure="x"):
    return next(each for each in report.summaries if (each.name, each.measure) == (name, measure))


def test_figures_of_the_shipped_set(shipped_report):
    """H200 and prototypes (docs/arithmetic.md): 8.7688e-5, 6.0286e-5, +8.24e-6, 0.997 % bf16, 7.97 % fp16 over f."""
    over_f = at(shipped_report, "-k/2^24", "f")
    assert f"{over_f.worst:.4e}" == "8.7688e-05"
    assert f"{over_f.rmse:.4e}" == "6.0286e-05"
    assert f"{over_f.mean:.2e}" == "8.24e-06"
    assert (round(100 * over_f.mismatches["bf16"], 3), round(100 * over_f.mismatches["fp16"], 2)) == (0.997, 7.97)
    assert at(shipped_report, "[-126, 0)").inputs == 0x42FC0000
    assert at(shipped_report, "[0, 1)").inputs == 0x3F800000
    assert at(shipped_report, "[-127, 8)").worst == -1.0  # at -127, where the result is 0
    assert shipped_report.seams.smallest == 1429
    assert (shipped_report.seams.down, shipped_report.steps_down_inside) == (0, 0)


def test_the_largest_error_is_where_it_is_said_to_be(shipped_report):
    for summary in shipped_report.summaries:
        x = np.uint32(summary.worst_bits).view(F32)
        y = evaluate_bits(summary.worst_bits, 1, shipped(3).coefficients)[0]
        assert float(y) / 2.0 ** float(x) - 1 == pytest.approx(summary.worst, abs=1e-15)


def test_what_every_set_has_is_noted_and_fails_nothing(shipped_report):
    assert not shipped_report.failed
    assert {finding.kind for finding in shipped_report.findings} == {"jump", "nan_lost", "subnormal", "wraps"}
    assert shipped_report.first_failing_special.x == "NaN"
    assert next(each for each in shipped_report.specials if each.x == "129").got == "-0"


def test_classes_from_128_on(shipped_report):
    message = next(finding.message for finding in shipped_report.findings if finding.kind == "wraps")
    counts = [int(word) for word in message.split("wraps around:")[1].split() if word.isdigit()]
    assert sum(counts) == 0x80000000 - 0x43000000
    assert min(counts) > 0


@pytest.mark.parametrize("first", [0x43000000, 0x43800000 - 5, 0x4A7FF003, 0x7F7FF000])
def test_tally_by_numpy(first):
    """Counts of results above four limits as unsigned bits, where x wraps, is huge, infinite and NaN."""
    limits, counts, count = (
        np.array([0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF, 0xFF800000], np.uint32),
        np.zeros(4, int),
        10007,
    )
    tally_range(first, count, shipped(3).float32, False, False, limits, counts)
    bits = evaluate_bits(first, count, shipped(3).coefficients).view(np.uint32)
    assert counts.tolist() == [int(np.sum(bits > limit)) for limit in limits]


def findings_of(chosen, lowest=-127, highest=128):
    """Return the findings from few chunks: those of [-127, -64) and [1, 128)."""
    figures = collect([*everything(lowest, -64), *everything(1, highest)], chosen)
    beyond = dict.fromkeys(("negative", "nan", "finite", "infinite"), 0)
    found = examine(chosen, figures, specials(chosen, False), seams(chosen, False), beyond, 8, False)
    return {finding.kind: finding for finding in found}


def rounded(*values):
    return CoefficientSet("x", tuple(float(F32(value)) for value in values))


def test_p0_below_one():
    found = findings_of(rounded(1 - 2.0**-24, 0.6951, 0.2276, 0.0771))
    assert found["masked"].severity == "fail"
    assert "gives nan, not 0: p0 = 0x1.fffffep-1 < 1" in found["masked"].message
    assert "masked" not in findings_of(rounded(1.0, 0.6951, 0.2276, 0.0771))


def test_p0_above_one_is_noted():
    found = findings_of(parse(DROP_IN))
    assert found["masked"].severity == "note"
    assert not [finding for finding in found.values() if finding.severity == "fail"]


def test_p_of_one_above_two():
    found = findings_of(rounded(1.0, 0.6952, 0.2276, 0.0773))
    assert found["p1_above_2"].severity == found["step_down_at_edges"].severity == "fail"
    assert found["nonfinite_above"].severity == "note"
    assert "p1_above_2" not in findings_of(shipped(2))


def test_steps_down_inside_octaves():
    found = findings_of(rounded(1.0, 1.2, -0.2))
    assert "step_down_inside" not in found
    falling = findings_of(rounded(1.0, 1.6, -0.9))
    assert falling["step_down_inside"].severity == "fail"
    assert float(falling["step_down_inside"].message.split("x = ")[1].split()[0]) % 1 > 1.6 / 1.8 - 1e-3


def test_negative_and_infinite_results():
    assert findings_of(rounded(-1.0, 0.5))["sign"].severity == "fail"
    assert findings_of(rounded(2.0**126, 2.0**125))["nonfinite"].severity == "fail"


def test_nearest_has_its_seams_at_halves():
    """The largest step of the whole sweep over [-3, 3) is the seam's, for a set with a gap there."""
    chosen = CoefficientSet("x", tuple(float(F32(v)) for v in (1.0, 0.7, 0.25)), "nearest")
    found = seams(chosen, False)
    x = np.concatenate([-np.arange(3 * 2**16)[::-1] / 2**16, np.arange(1, 3 * 2**16) / 2**16])
    y = evaluate(x.astype(F32), chosen.coefficients, "nearest").astype(np.float64)
    jumps = np.flatnonzero(np.abs(np.diff(y) / y[1:]) > 1e-3)
    assert np.all(np.abs(x[jumps] % 1 - 0.5) < 2.0**-15)
    assert abs(found.smallest_at % 1 - 0.5) < 1e-4
    assert found.largest > 2.0**23 * 1e-3


def test_scalar_form_and_reduction_reach_the_arithmetic():
    """A negative subnormal x: 1 in the scalar form, p(1) / 2 in the packed one."""
    packed, scalar = (specials(shipped(3), ftz) for ftz in (False, True))
    assert [a.x for a, b in zip(packed, scalar, strict=True) if a.got_bits != b.got_bits] == ["-2^-149"]


@pytest.mark.parametrize("tau", [0, 128])
def test_tau_has_limits(tau):
    with pytest.raises(ValueError, match="expected 1 to 127"):
        check(shipped(3), tau=tau)


def test_json_has_everything_and_reads_back(shipped_report):
    content = json.loads(render.as_json(shipped_report))
    assert parse(json.dumps(content["set"])).coefficients == shipped(3).coefficients
    assert content["failed"] is False
    assert content["first_failing_special"] == "NaN"
    assert {"summaries", "histogram", "seams", "specials", "findings", "seconds", "tau", "form"} <= set(content)
    worst = content["summaries"][0]
    assert float.fromhex(worst["worst_x"]) == float(np.uint32(worst["worst_bits"]).view(F32))
    assert sum(each["inputs"] for each in content["histogram"]) == at(shipped_report, "[-126, 8)").inputs
    assert math.isclose(sum(each["share"] for each in content["histogram"]), 1.0, rel_tol=1e-12)


def test_markdown_and_terminal_show_the_same_figures(shipped_report):
    document = render.markdown(shipped_report)
    screen = io.StringIO()
    render.terminal(shipped_report, Console(file=screen, width=140))
    for text in (
        "+8.7688e-05",
        "0x1.9c7ab4p-4",
        "0x1.63ea32p-1",
        "+1429 ulp",
        "0.997%",
        "all 4294967296 inputs",
        "attention",
    ):
        assert text in document
        assert text in screen.getvalue()
    assert "\x1b" not in screen.getvalue()
    widths = {
        len(line.replace("\\|", "").split("|")) for line in document.splitlines() if "RMSE" in line or "1429" in line
    }
    assert 11 in widths


def test_a_hostile_name_stays_one_cell(shipped_report):
    bad = replace(shipped_report, chosen=CoefficientSet("a|b\n\x1b[31m", (1.0, 0.5)))
    screen = io.StringIO()
    render.terminal(bad, Console(file=screen, width=140))
    assert "\x1b" not in screen.getvalue()
    assert render.markdown(bad).splitlines()[0] == "# a\\|b \\x1b[31m"


def test_command_line(capsys):
    assert cli.main(["exp2", "check", "1,0.5,0x1p-1p", "--json"]) == 2
    assert capsys.readouterr().err == (
        "fa4verify: p2: '0x1p-1p' is not a number: expected a decimal or a C hex float such as 0x1.63ea32p-1\n"
    )
    assert cli.main(["exp2", "check", "fa4:3", "--json", "--markdown"]) == 2
    assert cli.main(["exp2", "check", "fa4:3", "--tau", "128"]) == 2
    assert cli.main(["exp2", "check", "fa4:3", "--range", "up"]) == 2
    assert "fa4verify: " in capsys.readouterr().err


def test_a_failing_set_exits_with_1(capsys):
    """p0 one ulp below 1: all else is as in the shipped set."""
    assert cli.main(["exp2", "check", "0x1.fffffep-1,0x1.63ea32p-1,0x1.d20d48p-3,0x1.3be13ap-4", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert [finding["kind"] for finding in content["findings"] if finding["severity"] == "fail"] == ["masked"]


def test_nearest_from_the_command_line(capsys):
    assert cli.main(["exp2", "check", "fa4:5", "--range", "nearest", "--scalar", "--tau", "3", "--markdown"]) in (0, 1)
    document = capsys.readouterr().out
    assert "range nearest, scalar (add.rm.ftz)" in document
    assert "[-126, 3)" in document
