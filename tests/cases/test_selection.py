"""The selection language against the cases it should pick."""

import pytest

from fa4verify.cases import SuiteError, load_suite, select

GATE = load_suite("gate").cases


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("", lambda case: case.id != ""),
        ("outlier", lambda case: "outlier" in case.id),
        ("OUTLIER", lambda case: "outlier" in case.id),
        ("sm100 and causal", lambda case: "sm100" in case.id and "causal" in case.id),
        ("sm100 and not causal", lambda case: "sm100" in case.id and "causal" not in case.id),
        ("fp16 or causal and sm90", lambda case: "fp16" in case.id or ("causal" in case.id and "sm90" in case.id)),
        ("(fp16 or causal) and sm90", lambda case: ("fp16" in case.id or "causal" in case.id) and "sm90" in case.id),
        ("not (fp16 or causal)", lambda case: not ("fp16" in case.id or "causal" in case.id)),
        ("not not fp16", lambda case: "fp16" in case.id),
        ("kernel=fa4-sm100", lambda case: case.kernel == "fa4-sm100"),
        ("dtype=fp16 and shape.head_dim=128", lambda case: case.dtype == "fp16" and case.shape.head_dim == 128),
        ("distribution=max_*", lambda case: case.distribution.name == "max_staircase"),
        ("distribution.delta=8", lambda case: case.distribution.arguments.get("delta") == 8),
        ("causal=true", lambda case: case.causal),
        ("softcap=15", lambda case: case.softcap == 15),
        ("options.degree=3", lambda case: case.options.get("degree") == 3),
        ("requires=rescales_done", lambda case: "rescales_done" in case.requires),
        ("budgets=lse-hardware-columns", lambda case: any(b.name == "lse-hardware-columns" for b in case.budgets)),
        ("window_size=64,0", lambda case: case.window_size == (64, 0)),
        ("operation=exp2", lambda case: case.operation == "exp2"),
    ],
)
def test_selects(expression, wanted):
    expected = tuple(case for case in GATE if wanted(case))
    assert select(GATE, expression) == expected
    assert expected


def test_every_id_selects_itself():
    for case in GATE:
        assert select(GATE, f"id={case.id}") == (case,)


def test_nothing_is_not_an_error():
    assert select(GATE, "no_such_word") == ()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("and", "found 'and', expected a word or field=value"),
        ("a and", "found the end, expected a word or field=value"),
        ("a b", "found 'b', expected 'and', 'or' or the end"),
        ("(a", "found the end, expected ')'"),
        ("a)", "found ')', expected 'and', 'or' or the end"),
        ("not", "found the end, expected a word or field=value"),
        ("dtyp=bf16", "found 'dtyp=bf16', expected a field of a case, 'dtype' (did you mean it?)"),
        ("shape=3", "found 'shape=3', expected a field of the shape"),
        ("shape.head=3", "found 'shape.head=3', expected a field of the shape, 'heads'"),
    ],
)
def test_errors_are_one_line(expression, message):
    with pytest.raises(SuiteError) as caught:
        select(GATE, expression)
    assert message in str(caught.value)
    assert f"selection {expression!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("expression", ["(" * 5000, "not " * 5000 + "dtype=bf16"])
def test_deep_nesting_is_one_line_too(expression):
    with pytest.raises(SuiteError, match="found too many nested terms"):
        select(GATE, expression)
