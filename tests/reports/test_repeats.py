"""Repeated runs as tables: every cell of the matrix, and RMSE over orders beside the deterministic order's."""

from __future__ import annotations

import io

from rich.console import Console

from fa4verify.reports import markdown, terminal
from fa4verify.reports.repeats import heads_of, mask_of, tables
from fa4verify.reports.summary import summarise
from fa4verify.vocabulary import Finding, Metrics, Outcome, Record, Shape, Verdict
from tests.reports.make import case, record, run, verdict

EVERY = {"o": 1.0, "lse": 1.0, "dq": 1.0, "dk": 1.0, "dv": 1.0}


def cell(
    name: str,
    outcome: Outcome = "PASS",
    *,
    heads_kv: int = 4,
    head_dim: int = 64,
    distinct: dict[str, float] | None = None,
    why: str = "why",
    **fields: object,
) -> Record:
    shape = Shape(1, 128, 1024, 4, heads_kv, head_dim, head_dim)
    problem = case(name, operation="repeat", shape=shape, runs=20, **fields)
    patterns = EVERY | (distinct or {})
    measured = {tensor: Metrics({"distinct": count, "runs": 20.0}) for tensor, count in patterns.items()}
    said = verdict(outcome) if outcome in ("PASS", "FAIL") else Verdict(outcome, (Finding(why),))
    return record(name, case=problem, verdict=said, metrics=measured, activity={"dq_adds_max": 8.0, "dkv_adds": 2.0})


def spread(name: str, keys: int, **values: float) -> Record:
    made = cell(name, deterministic=False)
    shape = Shape(1, 128, keys, 4, 4, 64, 64)
    known = {
        "distinct": 19.0,
        "runs": 20.0,
        "distinct_shuffled": 3.0,
        "differing_share": 1e-4,
        "rmse": 2.0,
        "rmse_low": 1.99,
        "rmse_high": 2.03,
        "rmse_deterministic": 1.999,
        "orders_better": 0.25,
    }
    problem = case(name, operation="repeat", shape=shape, deterministic=False, options={"grad_dtype": "fp32"})
    metrics = {"dq": Metrics(known | values), "dk": Metrics({"distinct": 1.0, "rmse": 1.0})}
    return record(name, case=problem, metrics=metrics, activity=made.activity)


def test_heads_and_masks() -> None:
    assert [heads_of(cell("a", heads_kv=n).case) for n in (4, 2, 1)] == ["MHA", "GQA", "MQA"]
    one = case("a", operation="repeat", shape=Shape(1, 4, 8, 1, 1, 64, 64))
    assert heads_of(one) == "MHA"
    assert mask_of(cell("a", causal=True).case) == "causal"
    assert mask_of(cell("a", window_size=(5, 0)).case) == "window"
    assert mask_of(cell("a").case) == "full"


def test_the_matrix_says_what_became_of_the_flag_in_each_cell() -> None:
    (table,) = tables(
        [
            cell("a"),
            cell("b", head_dim=128, outcome="FAIL", distinct={"dq": 20.0, "dv": 2.0}),
            cell("c", heads_kv=2, causal=True, outcome="SKIPPED", why="mine does not take deterministic"),
            cell("d", heads_kv=1, window_size=(9, 0), head_dim=128, outcome="INCONCLUSIVE", why="no power: ..."),
            cell("f", heads_kv=1, window_size=(9, 0), outcome="SKIPPED", why="mine does not take window_size"),
            cell("g", heads_kv=1, outcome="CRASHED"),
            record("e"),
        ]
    )
    assert table.title == "deterministic: fa4-sm90, bf16"
    assert table.headers == ("heads, mask", "d64", "d128")
    assert [(label, [c.text for c in cells]) for label, cells in table.lines] == [
        ("MHA full", ["honoured 20", "ignored: dq 20, dv 2"]),
        ("GQA causal", ["refused", "-"]),
        ("MQA window", ["skipped", "no power"]),
        ("MQA full", ["crashed", "-"]),
    ]


def test_the_worst_of_two_records_decides_a_cell() -> None:
    (table,) = tables([cell("a"), cell("b", outcome="FAIL", distinct={"o": 2.0}), cell("c")])
    assert table.lines[0][1][0].text == "ignored: o 2"


def test_rmse_over_orders_beside_the_deterministic_one() -> None:
    (table,) = tables([spread("a", 8192), spread("b", 384, rmse_deterministic=1.98, orders_better=0.0)])
    assert table.title == "RMSE of dq over orders: fa4-sm90 bf16 d64 h4kv4, normal, grad_dtype=fp32"
    assert [label for label, _ in table.lines] == ["384", "8192"]
    texts = [[c.text for c in cells] for _, cells in table.lines]
    assert texts[0] == ["8", "20", "19", "0.01%", "2", "0.0200", "-0.0100", "0%"]
    assert texts[1] == ["8", "20", "19", "0.01%", "2", "0.0200", "-5.00e-4", "25%"]


def test_nothing_repeated_no_table() -> None:
    assert tables([record("a")]) == ()


def test_both_reports_show_the_matrix() -> None:
    summary = summarise(run(cell("a"), cell("b", outcome="FAIL", distinct={"dq": 7.0})))
    stream = io.StringIO()
    terminal.render(summary, console=Console(file=stream, width=140))
    for text in (stream.getvalue(), markdown.render(summary)):
        assert "MHA full" in text
        assert "ignored: dq 7" in text
        assert "honoured N" in text
    assert "## Repeated runs" in markdown.render(summary)
    plain = summarise(run(record("a")))
    assert "Repeated" not in markdown.render(plain)
