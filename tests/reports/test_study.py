"""Curves as tables: every record lands in its cell, holes stay visible, failures are marked."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from fa4verify.reports.study import Table, tables, value_at
from fa4verify.vocabulary import Distribution, Metrics, Outcome, Record, Study
from tests.reports.make import case, record

STUDY = Study(
    rows="options.rescale_threshold",
    columns=("dtype",),
    values=("o.rmse", "activity.rescales_skipped", "activity.max_p"),
    tables=("distribution",),
    relative_to=0,
)
OUTLIER = Distribution("fa3_outlier", {"sigma": 10})


def point(
    tau: float | None,
    rmse: float,
    outcome: Outcome = "PASS",
    *,
    dtype: str = "bf16",
    distribution: Distribution = OUTLIER,
    seed: int = 0,
) -> Record:
    options = {} if tau is None else {"rescale_threshold": tau}
    name = f"{tau}-{dtype}-{distribution.name}-{seed}"
    measured = {} if outcome == "CRASHED" else {"o": Metrics({"rmse": rmse})}
    activity = {} if outcome == "CRASHED" else {"rescales_done": 1, "rescales_skipped": 3, "max_p": 2.0 ** (tau or 0)}
    problem = case(name, dtype=dtype, distribution=distribution, options=options, seed=seed)
    return record(name, outcome, case=problem, metrics=measured, activity=activity)


def texts(table: Table) -> dict[str, list[str]]:
    return {label: [cell.text for cell in cells] for label, cells in table.lines}


def test_a_curve() -> None:
    normal = Distribution("normal")
    points = [
        point(8, 1.2e-4, "FAIL"),
        point(0, 5e-5),
        point(10, 9e-4, "CRASHED"),
        point(0, 4e-5, dtype="fp16"),
        point(8, 0.5, "INCONCLUSIVE", distribution=normal),
        point(0, 4e-5, distribution=normal),
    ]
    outlier, plain = tables(STUDY, points)
    assert outlier.title == "distribution fa3_outlier(sigma=10)"
    assert plain.title == "distribution normal"
    columns = [("o.rmse", "/0"), ("activity.rescales_skipped",), ("activity.max_p",)]
    names = [[f"{dtype} {column[0]}", *column[1:]] for dtype in ("bf16", "fp16") for column in columns]
    assert list(outlier.headers) == ["rescale_threshold", *itertools.chain(*names)]
    assert texts(outlier) == {
        "0": ["5.00e-5", "1", "75%", "1", "4.00e-5", "1", "75%", "1"],
        "8": ["1.20e-4 !", "2.400", "75% !", "256 !", "-", "-", "-", "-"],
        "10": ["CRASHED", "-", "CRASHED", "CRASHED", "-", "-", "-", "-"],
    }
    assert len(plain.headers) == 5, "a column that no point of the table has is left out"
    assert texts(plain)["8"] == ["0.500 ?", "1.250e+4", "75% ?", "256 ?"]
    assert [cell.outcome for cell in outlier.lines[0][1]] == ["FAIL"] * 4 + [""] * 4


def test_every_value_appears_exactly_once() -> None:
    """Structured so that a swap of any two axes shows: each value encodes its place."""
    grid = list(itertools.product(range(3), ("bf16", "fp16"), ("a", "b")))
    points = [
        point(tau, 100 * tau + 10 * (dtype == "fp16") + (name == "b") + 1, dtype=dtype, distribution=Distribution(name))
        for tau, dtype, name in grid
    ]
    study = Study(STUDY.rows, ("dtype",), ("o.rmse",), ("distribution",))
    one, two = tables(study, points)
    assert texts(one) == {"0": ["1", "11"], "1": ["101", "111"], "2": ["201", "211"]}
    assert texts(two) == {"0": ["2", "12"], "1": ["102", "112"], "2": ["202", "212"]}
    assert [label for label, _ in tables(study, reversed(points))[0].lines] == ["2", "1", "0"], "as asked for"


def test_points_of_several_seeds_are_their_mean_and_their_worst_outcome() -> None:
    (table,) = tables(STUDY, [point(0, 1.0), point(0, 2.0, "FAIL", seed=1)])
    assert texts(table)["0"][:2] == ["1.50 !", "1"]


def test_a_ratio_of_two_metrics_is_a_value_and_what_no_point_has_is_no_column() -> None:
    study = Study(rows="dtype", columns=(), values=("dq.rmse", "o.rmse/floor_rmse", "o.rmse"))
    measured = Metrics({"rmse": 3.0, "floor_rmse": 2.0})
    points = [record("a", case=case("a"), metrics={"o": measured})]
    (table,) = tables(study, points)
    assert table.headers == ("dtype", "o.rmse/floor_rmse", "o.rmse")
    assert [cell.text for cell in table.lines[0][1]] == ["1.50", "3"]


def test_without_a_base_there_are_no_ratios() -> None:
    for study in (Study(STUDY.rows, ("dtype",), ("o.rmse",)), Study(STUDY.rows, ("dtype",), ("o.rmse",), (), 99)):
        (table,) = tables(study, [point(0, 1.0), point(None, 2.0)])
        assert table.headers == ("rescale_threshold", "bf16 o.rmse")
        assert table.title == "all"
        assert texts(table) == {"default": ["2"], "0": ["1"]}


def test_no_records_give_no_tables() -> None:
    assert tables(STUDY, []) == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [("dtype", "bf16"), ("shape.seqlen_k", 8), ("options.tau", 4), ("options.none", None), ("no.such.path", None)],
)
def test_dotted_paths(path: str, value: object) -> None:
    assert value_at(case("a", options={"tau": 4}), path) == value


def test_published_figures_stand_beside_ours():
    study = msgspec.structs.replace(STUDY, columns=(), tables=(), relative_to=None, published={"8": 2e-4})
    (table,) = tables(study, [point(8.0, 1e-4), point(8.0, 3.2e-4, seed=1), point(0.0, 1e-4)])
    assert table.headers[1:5] == ("o.rmse", "published", "deviation", "over cases")
    assert texts(table)["8"][:4] == ["2.10e-4", "2.00e-4", "+5.0%", "74.1%"]
    assert texts(table)["0"][1:4] == ["-", "-", "-"]


def test_what_lies_beyond_the_safe_budget_of_an_8_bit_format_is_marked():
    eight = msgspec.structs.replace(STUDY, tables=(), relative_to=None, values=("o.rmse",))
    found = [point(tau, 0.1, dtype=dtype) for dtype in ("e4m3", "e5m2", "bf16") for tau in (0.0, 0.8, 1.0, 8.0)]
    (table,) = tables(eight, found)
    marked = {label: [" >" in text for text in row] for label, row in texts(table).items()}
    assert marked == {
        "0": [False] * 3,
        "0.8": [False] * 3,
        "1": [True, False, False],
        "8": [True, True, False],
    }
