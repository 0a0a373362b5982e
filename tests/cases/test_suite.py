"""Suites in TOML: what they expand to, and one clear line for everything that can be wrong in them."""

import re

import pytest

from fa4verify.cases import SuiteError, load_suite
from fa4verify.vocabulary import Distribution, Shape, Study

BUDGET = """
[budgets.o]
tensor = "o"
metric = "rmse"
kind = "expected_error"
limit = 1.3
provenance = "a test"
"""
HEAD = 'name = "t"\nabout = "a test"\n' + BUDGET
CASE = """
[[cases]]
kernel = "fa4-sm90"
distribution = "normal"
budgets = ["o"]
"""


def load(tmp_path, text):
    path = tmp_path / "t.toml"
    path.write_text(text)
    return load_suite(str(path))


def error(tmp_path, text):
    with pytest.raises(SuiteError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("t.toml: ")
    return message


def test_a_minimal_suite(tmp_path):
    suite = load(tmp_path, HEAD + CASE)
    (case,) = suite.cases
    assert case.id == "fwd-fa4_sm90-bf16-b1h1s1d128-normal-s0"
    assert case.shape == Shape()
    assert case.distribution == Distribution("normal")
    assert [budget.name for budget in case.budgets] == ["o"]
    assert case.suite.endswith("t.toml")
    assert suite.study is None


def test_shape_shorthands(tmp_path):
    (case,) = load(tmp_path, HEAD + CASE + "shape = { seqlen = 7, heads = 6, head_dim = 192 }\n").cases
    assert case.shape == Shape(1, 7, 7, 6, 6, 192, 192)
    (case,) = load(tmp_path, HEAD + CASE + "shape = { seqlen = 7, seqlen_k = 9, heads = 6, heads_kv = 2 }\n").cases
    assert case.shape == Shape(1, 7, 9, 6, 2, 128, 128)


def test_axes_are_multiplied_out_with_the_last_fastest(tmp_path):
    axes = """
[cases.axes]
dtype = ["bf16", "fp16"]
shape.head_dim = [64, 128]
"options.degree" = [2, 3]
"""
    cases = load(tmp_path, HEAD + CASE + axes).cases
    assert [(case.dtype, case.shape.head_dim, case.shape.head_dim_v, case.options["degree"]) for case in cases] == [
        (dtype, d, d, degree) for dtype in ("bf16", "fp16") for d in (64, 128) for degree in (2, 3)
    ]
    assert cases[0].id == "fwd-fa4_sm90-bf16-b1h1s1d64-normal-degree2-s0"
    assert len({case.id for case in cases}) == 8


def test_variants_set_several_fields_and_win_over_the_block(tmp_path):
    text = (
        CASE
        + """
shape = { seqlen = 300, head_dim = 64 }
[cases.axes]
variants = [
  { causal = true, shape = { seqlen_k = 129 } },
  { window_size = [64, "none"], dtype = "fp16", distribution = { name = "max_staircase", delta = 8 } },
  { learnable_sink = true, softcap = 15, softmax_scale = 0.25, options = { rescale_threshold = 0 }, seed = 3 },
]
"""
    )
    ids = [case.id for case in load(tmp_path, HEAD + text).cases]
    assert ids == [
        "fwd-fa4_sm90-bf16-b1h1q300k129d64-causal-normal-s0",
        "fwd-fa4_sm90-fp16-b1h1s300d64-window64_inf-max_staircase-delta8-s0",
        "fwd-fa4_sm90-bf16-b1h1s300d64-softcap15-sink-scale0.25-normal-rescale_threshold0-s3",
    ]


def test_distribution_arguments_merge_and_a_new_name_replaces(tmp_path):
    text = CASE.replace('"normal"', '{ name = "max_staircase", gap = 20 }') + "shape = { seqlen = 256 }\n[cases.axes]\n"
    first, second = load(tmp_path, HEAD + text + '"distribution.delta" = [1, 2.5]').cases
    assert first.distribution.arguments == {"gap": 20, "delta": 1}
    assert second.distribution.arguments == {"gap": 20, "delta": 2.5}
    (other,) = load(tmp_path, HEAD + text + 'distribution = ["fa3_outlier"]').cases
    assert other.distribution == Distribution("fa3_outlier")


def test_budget_names_follow_kernel_and_dtype(tmp_path):
    budgets = "".join(
        BUDGET.replace("[budgets.o]", f"[budgets.o-{name}]") for name in ("fa4-sm90-bf16", "fa4-sm90-fp16")
    )
    text = CASE.replace('["o"]', '["o-{kernel}-{dtype}"]') + '[cases.axes]\ndtype = ["bf16", "fp16"]\n'
    cases = load(tmp_path, HEAD.replace(BUDGET, budgets) + text).cases
    assert [case.budgets[0].name for case in cases] == ["o-fa4-sm90-bf16", "o-fa4-sm90-fp16"]


def test_a_study(tmp_path):
    study = """
[study]
rows = "options.degree"
columns = ["distribution"]
values = ["o.rmse", "activity.max_p"]
tables = ["dtype"]
relative_to = 3
"""
    options = "options = { degree = 3 }\n"
    assert load(tmp_path, HEAD + CASE + options + study).study == Study(
        "options.degree", ("distribution",), ("o.rmse", "activity.max_p"), ("dtype",), 3
    )


def test_exp2_cases(tmp_path):
    budget = BUDGET.replace('"o"', '"y"').replace("rmse", "max_relative").replace("expected_error", "absolute")
    text = HEAD.replace(BUDGET, budget) + CASE.replace('"normal"', '{ name = "octave", sign = 1 }')
    (case,) = load(tmp_path, text + 'operation = "exp2"\n').cases
    assert case.id == "exp2-fa4_sm90-octave-sign1-s0"


CASE_ERRORS = [
    ('dtyp = "bf16"', "cases[0].dtyp: found an unknown key 'dtyp', expected 'dtype' (did you mean it?)"),
    ("dtype = 16", "cases[0].dtype: found 16, expected 'bf16' or 'fp16'"),
    ('dtype = "bf8"', "cases[0].dtype: found 'bf8', expected 'bf16' or 'fp16'"),
    ('causal = "yes"', "cases[0].causal: found 'yes', expected true or false"),
    ("softcap = -1.0", "cases[0].softcap: found -1.0, expected a finite number of at least 0.0"),
    ("softcap = inf", "cases[0].softcap: found inf, expected a finite number"),
    ("seed = 1.5", "cases[0].seed: found 1.5, expected an integer"),
    ("timeout_s = 0", "cases[0].timeout_s: found 0.0, expected a finite number of at least 0.001"),
    ("id = 'x'", "cases[0].id: found an unknown key 'id'"),
    ("shape = 3", "cases[0].shape: found 3, expected a table"),
    (
        "shape = { head_dims = 64 }",
        "cases[0].shape.head_dims: found an unknown key 'shape.head_dims', expected 'head_dim'",
    ),
    ("shape = { head_dim = 0 }", "cases[0].shape.head_dim: found 0, expected an integer of at least 1"),
    ("shape = { seqlen_k = -1 }", "cases[0].shape.seqlen_k: found -1, expected an integer of at least 0"),
    (
        "shape = { heads = 6, heads_kv = 4 }",
        "cases[0].shape.heads_kv: found heads_kv = 4, expected a divisor of heads = 6",
    ),
    ("window_size = [1]", "cases[0].window_size: found [1], expected [left, right]"),
    ("window_size = [1, 'x']", "cases[0].window_size[1]: found 'x', expected an integer or \"none\""),
    ('requires = ["max_q"]', "cases[0].requires[0]: found 'max_q', expected 'max_p' (did you mean it?)"),
    ('requires = "max_p"', "cases[0].requires: found 'max_p', expected a list of strings"),
    ("window_size = [99999999999, 1]", "cases[0].window_size[0]: found 99999999999, expected at most 2147483647"),
    ("shape = { batch = 99999999999 }", "cases[0].shape.batch: found 99999999999, expected an integer of at least 1"),
    ("seed = 99999999999999999999", "cases[0].seed: found 99999999999999999999, expected at most 9223372036854775807"),
    ("softmax_scale = nan", "cases[0].softmax_scale: found nan, expected a finite number"),
    ("softmax_scale = inf", "cases[0].softmax_scale: found inf, expected a finite number"),
    ("softmax_scale = 1e300", "cases[0].softmax_scale: found 1e+300, expected a finite number that float32 can hold"),
    ("softcap = 1e300", "cases[0].softcap: found 1e+300, expected a finite number that float32 can hold"),
    ("softcap = nan", "cases[0].softcap: found nan, expected a finite number"),
    ('baseline = ""', "cases[0].baseline: found an empty text, expected the name of a kernel"),
    ("options = 3", "cases[0].options: found 3, expected a table"),
    ("axes = 3", "cases[0].axes: found 3, expected a table [cases.axes]"),
    ('axes.dtype = "bf16"', "cases[0].axes.dtype: found 'bf16', expected a list of at least one value"),
    ("axes.dtype = []", "cases[0].axes.dtype: found [], expected a list of at least one value"),
    ('axes.dtype = ["bf16", "x"]', "cases[0].axes.dtype[1]: found 'x', expected 'bf16' or 'fp16'"),
    ('axes.dtyp = ["bf16"]', "cases[0].axes.dtyp[0]: found an unknown key 'dtyp', expected 'dtype' (did you mean it?)"),
    ("axes.shape.dim = [1]", "cases[0].axes.shape.dim[0]: found an unknown key 'shape.dim'"),
    ("axes.variants = [3]", "cases[0].axes.variants[0]: found 3, expected a table of fields of a case"),
    ("axes.variants = [{ causl = true }]", "cases[0].axes.variants[0].causl: found an unknown key 'causl'"),
    ("axes.variants = [{ causal = 1 }]", "cases[0].axes.variants[0].causal: found 1, expected true or false"),
    ("axes.seed = [0, 0]", "cases[0]: found a second case fwd-fa4_sm90-bf16-b1h1s1d128-normal-s0, expected another"),
    ('operation = "exp2"\ncausal = true', "cases[0].causal: found causal in an exp2 case"),
    ('operation = "sideways"', "cases[0].operation: found 'sideways', expected 'forward' or 'exp2' or 'backward' or"),
    ('operation = "backward"', "cases[0].budgets[0]: found 'o' on tensor 'o', expected a budget on dq or dk or dv"),
    (
        "lse_gradient = true",
        "cases[0].lse_gradient: found lse_gradient in a forward case, expected operation = 'backwa",
    ),
    ('operation = "backward"\nruns = 9', "cases[0].runs: found runs in a backward case, expected operation = 'repeat'"),
    ('operation = "repeat"\nbaseline = "standard"', "cases[0].baseline: found baseline in a repeat case"),
]


@pytest.mark.parametrize(("line", "message"), CASE_ERRORS)
def test_errors_in_a_case(tmp_path, line, message):
    assert message in error(tmp_path, HEAD + CASE + line + "\n")


DISTRIBUTION_ERRORS = [
    ('"norml"', "cases[0].distribution: found the unknown distribution 'norml', expected 'normal' (did you mean it?)"),
    ("3", "cases[0].distribution: found 3, expected a name or a table"),
    ("{ sigma = 3 }", "cases[0].distribution: found nothing, expected a name"),
    (
        '{ name = "fa3_outlier", sigm = 3 }',
        "cases[0].distribution.sigm: found an argument that fa3_outlier does not have, expected 'sigma' (did you mean",
    ),
    (
        '{ name = "normal", sigma = 3 }',
        "cases[0].distribution.sigma: found an argument that normal does not have, expected no",
    ),
    ('{ name = "fa3_outlier", sigma = "3" }', "cases[0].distribution.sigma: found '3', expected a number"),
    ('{ name = "fa3_outlier", sigma = nan }', "cases[0].distribution.sigma: found nan, expected a finite number, zero"),
    ('{ name = "fa3_outlier", sigma = -1 }', "cases[0].distribution.sigma: found -1.0, expected a finite number, zero"),
    ('{ name = "scaled_normal", factor = inf }', "cases[0].distribution.factor: found inf, expected a finite number"),
    (
        '{ name = "ones_v", scores = "x" }',
        "cases[0].distribution.scores: found 'x', expected 'normal' or 'fa3_outlier'",
    ),
    (
        '{ name = "dominant_column", columns = 3 }',
        "cases[0].distribution.columns: found 3, expected a list of integers",
    ),
    ('"capture"', "cases[0].distribution.path: found nothing, expected a string (capture needs it)"),
    ('"softcap_range"', "cases[0].distribution: found 'softcap_range' without what it needs, expected softcap > 0"),
    ('"fully_masked_rows"', "found 'fully_masked_rows' without what it needs, expected a query without keys"),
    ('"octave"', "cases[0].distribution: found 'octave' in a case of operation 'forward', expected operation = 'exp2'"),
]


@pytest.mark.parametrize(("value", "message"), DISTRIBUTION_ERRORS)
def test_errors_in_a_distribution(tmp_path, value, message):
    assert message in error(tmp_path, HEAD + CASE.replace('"normal"', value))


def test_an_argument_in_an_axis_is_named_by_its_place_there(tmp_path):
    text = HEAD + CASE.replace('"normal"', '"fa3_outlier"') + '[cases.axes]\n"distribution.sigma" = [1, "x"]\n'
    assert "cases[0].axes.distribution.sigma[1]: found 'x', expected a number" in error(tmp_path, text)


BUDGET_ERRORS = [
    ('tensor = "o"', 'tensor = "p"', "budgets.o.tensor: found 'p', expected one of 'o', 'lse', 'y'"),
    ("rmse", "rsme", "budgets.o.metric: found 'rsme', expected 'rmse' (did you mean it?)"),
    ("rmse", "max_relative", "budgets.o.metric: found 'max_relative', expected"),
    ("expected_error", "relative", "budgets.o.kind: found 'relative', expected 'absolute' or"),
    ("1.3", "-1", "budgets.o.limit: found -1.0, expected a finite number, zero or more"),
    ("1.3", "inf", "budgets.o.limit: found inf, expected a finite number, zero or more"),
    ("1.3", '"1"', "budgets.o.limit: found '1', expected a number"),
    ('provenance = "a test"\n', "", "budgets.o.provenance: found nothing, expected it: it is required"),
    ('"a test"\n', '" "\n', "budgets.o.provenance: found an empty text, expected where the number comes from"),
    ("limit = 1.3", "limit = 1.3\nvalue = 1.0", "budgets.o.value: found a value in a budget of kind 'expected_error'"),
    ("limit = 1.3", "limt = 1.3", "budgets.o.limt: found an unknown key, expected 'limit' (did you mean it?)"),
    (
        "expected_error",
        "ratio_to_baseline",
        "cases[0].budgets[0]: found 'o', a comparison with a baseline, expected baseline =",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BUDGET_ERRORS)
def test_errors_in_a_budget(tmp_path, old, new, message):
    assert old in BUDGET
    assert message in error(tmp_path, HEAD.replace(BUDGET, BUDGET.replace(old, new)) + CASE)


OTHER_ERRORS = [
    (HEAD, "cases: found [], expected at least one block [[cases]]"),
    (HEAD + "cases = 3\n", None),
    ("", "name: found nothing, expected a text: it is required"),
    ('name = "t"\n', "about: found nothing, expected a text: it is required"),
    ("nam = 3\n", "nam: found an unknown key, expected 'name' (did you mean it?)"),
    ("name = [\n", "found invalid TOML ("),
    (HEAD + CASE.replace('["o"]', '["p"]'), "cases[0].budgets[0]: found the unknown budget 'p', expected one of 'o'"),
    (HEAD + CASE.replace('["o"]', "[]"), "cases[0].budgets: found no budget, expected at least one"),
    (HEAD + CASE.replace('budgets = ["o"]', ""), "cases[0].budgets: found no budget, expected at least one"),
    (HEAD + CASE.replace('kernel = "fa4-sm90"', ""), "cases[0].kernel: found nothing, expected a name: it is required"),
    (HEAD + BUDGET.replace("budgets.o", "budgets.unused") + CASE, "budgets.unused: found a budget that no case uses"),
    ("budgets = 3\n" + 'name = "t"\nabout = "t"\n', "budgets: found 3, expected a table"),
    (HEAD + CASE + '[study]\nrows = "x"\ncolumns = []\nvalues = []\n', "study.rows: found 'x', expected"),
    (
        HEAD + CASE + '[study]\nrows = "dtype"\ncolumns = []\nvalues = ["o.rms"]\n',
        "study.values[0]: found 'o.rms', expected 'rmse'",
    ),
    (
        HEAD + CASE + '[study]\nrows = "dtype"\ncolumns = []\nvalues = ["p.rmse"]\n',
        "study.values[0]: found 'p.rmse', expected it to start",
    ),
    (
        HEAD + CASE + '[study]\nrows = "shape.foo"\ncolumns = []\nvalues = []\n',
        "study.rows: found 'shape.foo', expected a path that at least one case has",
    ),
    (
        HEAD + CASE + '[study]\nrows = "dtype"\ncolumns = ["options.degree"]\nvalues = []\n',
        "study.columns[0]: found 'options.degree', expected a path that at least one case has",
    ),
    ("x = " + 2000 * "[" + 2000 * "]", "found lists or tables nested too deeply"),
    ("x = " + 5000 * "9", "found invalid TOML ("),
    (HEAD + CASE + '[study]\nrow = "dtype"\n', "study.row: found an unknown key, expected 'rows' (did you mean it?)"),
    (HEAD + CASE + '[study]\nrows = "dtype"\n', "study.columns: found nothing, expected it: it is required"),
]


@pytest.mark.parametrize(("text", "message"), OTHER_ERRORS)
def test_errors_elsewhere(tmp_path, text, message):
    found = error(tmp_path, text)
    assert message is None or message in found


def test_a_suite_has_only_so_many_cases(tmp_path, monkeypatch):
    monkeypatch.setattr("fa4verify.cases.suite.MOST_CASES", 2)
    assert len(load(tmp_path, HEAD + CASE + "axes.seed = [0, 1]\n").cases) == 2
    seeds = f"axes.seed = {list(range(400))}\naxes.timeout_s = {list(range(1, 301))}\n"
    assert "cases[0].axes: found more than 100000 cases (120000)" in error(tmp_path, HEAD + CASE + seeds)
    assert "cases[0]: found more than 2 cases" in error(tmp_path, HEAD + CASE + "axes.seed = [0, 1, 2]\n")


def test_files_and_names_that_are_not_there(tmp_path):
    with pytest.raises(
        SuiteError, match=r"^found no suite 'gat', expected 'gate' \(did you mean it\?\), or a path that ends in"
    ):
        load_suite("gat")
    with pytest.raises(SuiteError, match=r"found no file 'none.toml', expected a suite in TOML"):
        load_suite("none.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe4"')
    with pytest.raises(SuiteError, match=r"latin.toml: found byte 8 that is not UTF-8"):
        load_suite(tmp_path / "latin.toml")


def test_the_errors_above_start_from_a_suite_that_loads(tmp_path):
    """Otherwise they could all be about something else."""
    assert load(tmp_path, HEAD + CASE + 'requires = ["max_p"]\nseed = 1\n').cases
    assert not re.search(r"\bx\b", HEAD + CASE)
