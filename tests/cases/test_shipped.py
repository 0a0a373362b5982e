"""The suites that come with the package: complete, unambiguous, each wrong kernel has its case."""

from collections import Counter

import pytest

from fa4verify.cases import load_suite, suites

FP8 = ("fa3_table", "fp8_budget", "fp8_length")
STUDIES = ("bias", "determinism", "exp2", *FP8, "octave", "peers", "rescale", "stages")
ON_A_GPU = ("determinism-gpu", "fidelity")
NAMES = tuple(sorted((*STUDIES, *ON_A_GPU, "gate", "release", "smoke"), key="{}.toml".format))  # as files are


def test_all_are_listed():
    assert tuple(suites()) == NAMES
    assert all(len(about) > 20 for about in suites().values())


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_and_names_itself(name):
    suite = load_suite(name)
    assert suite.name == name
    assert max(Counter(case.id for case in suite.cases).values()) == 1
    assert all(case.suite == name and len(case.id) < 160 and " " not in case.id for case in suite.cases)
    assert (suite.study is not None) == (name in STUDIES)


def gigaflops(cases):
    """Multiplications and additions of Q K^T and P V, half of them under a causal mask."""
    total = 0.0
    for case in cases:
        if case.operation == "forward":
            s = case.shape
            pairs = s.batch * s.heads * s.seqlen_q * s.seqlen_k * (0.5 if case.causal else 1.0)
            total += 2 * pairs * (s.head_dim + s.head_dim_v)
    return total / 1e9


@pytest.mark.parametrize(("name", "limit"), [("smoke", 5), ("gate", 150), ("exp2", 100), ("rescale", 300)])
def test_work_fits_the_time(name, limit):
    """4 GFLOP/s on two cores: 5 in a second or two, 150 in 40 s; the rest of a case's time is truth and metrics."""
    assert gigaflops(load_suite(name).cases) < limit


def test_gate_covers_what_the_kernels_do():
    cases = [case for case in load_suite("gate").cases if case.operation == "forward"]
    for kernel in ("fa4-sm90", "fa4-sm100"):
        mine = [case for case in cases if case.kernel == kernel]
        for dtype in ("bf16", "fp16"):
            assert {c.shape.head_dim for c in mine if c.dtype == dtype} >= {64, 96, 128, 192, 256}
        assert {c.shape.heads // c.shape.heads_kv for c in mine} >= {1, 2, 3, 7, 8}
        assert any(c.causal for c in mine)
        assert any(c.window_size != (None, None) for c in mine)
        assert any(c.softcap for c in mine)
        assert any(c.learnable_sink for c in mine)
        assert {c.shape.seqlen_q for c in mine} >= {1, 77}
        assert {c.shape.seqlen_k for c in mine} >= {0, 1}
        assert any(c.distribution.name == "fa3_outlier" and c.shape.seqlen_k >= 2048 for c in mine)
    assert cases[0].distribution.name == "fa3_outlier"


def test_gate_covers_what_the_backwards_do():
    cases = [case for case in load_suite("gate").cases if case.operation == "backward"]
    for kernel in ("fa4-sm90", "fa4-sm100"):
        mine = [case for case in cases if case.kernel == kernel]
        for dtype in ("bf16", "fp16"):
            assert {c.shape.head_dim for c in mine if c.dtype == dtype} >= {64, 96, 128, 192, 256}
            assert any(c.lse_gradient for c in mine if c.dtype == dtype)
        assert {c.shape.heads // c.shape.heads_kv for c in mine} >= {1, 2, 3, 4, 8}
        for feature in ("causal", "softcap", "learnable_sink"):
            assert any(getattr(c, feature) for c in mine), feature
        assert any(c.window_size != (None, None) for c in mine)
        assert any(not c.deterministic and c.shape.seqlen_k >= 1024 for c in mine)  # eight KV tiles to add
        assert {c.shape.seqlen_q for c in mine} >= {0, 1}
        assert {c.shape.seqlen_k for c in mine} >= {0, 1, 2}
        assert {c.distribution.name for c in mine} >= {
            "cancellation_bwd",
            "grad_adversarial",
            "lse_loss",
            "scaled_dout",
        }
    # Head dims whose accumulators FA4 reads back in another layout have no place where everything must pass.
    assert all(c.shape.head_dim % 32 == 0 for c in cases)


def test_gate_says_for_each_block_what_it_fails():
    from importlib.resources import files

    text = files("fa4verify.cases").joinpath("suites", "gate.toml").read_text()
    for fault in (
        "zeros",
        "KV tile dropped",
        "causal off by one",
        "scale * (1 + 2^-7)",
        "degree 2",
        "p3 off by 8 ulp",
        "emulation on all columns",
        "P truncated",
        "bf16 row sum",
        "rescale forgotten",
        "maximum of this tile only",
        "floored at 0",
        "-5e4",
        "GQA heads swapped",
        "LSE in base 2",
    ):
        assert any(fault in line for line in text.splitlines() if line.startswith("#")), fault


def test_studies_hold_every_point():
    points = load_suite("exp2").cases
    assert len(points) == 6 * 6 * 2 * 3
    assert {case.options["degree"] for case in points} == set(range(6))
    points = load_suite("rescale").cases
    assert {case.options["rescale_threshold"] for case in points} == {0, 1, 2, 4, 6, 8, 10, 12, 16}
    assert {case.distribution.name for case in points} == {"normal", "fa3_outlier", "scaled_normal", "max_staircase"}


def test_hardware_columns_are_emulated_by_no_configuration():
    """FA4 4.0.0b36: the last four of every `freq` columns of the 32-column fragments from `start`, not of the last."""
    emulated = {
        32 * fragment + k
        for freq, start in ((10, 1), (16, 1), (32, 1), (16, 0), (14, 0), (32, 0), (8, 1))
        for fragment in range(start, 3)
        for k in range(32)
        if (k - k % 2) % freq >= freq - 4
    }
    assert {44, 95, 12, 10} <= emulated
    asked = [c for c in load_suite("gate").cases if "columns" in c.distribution.arguments]
    assert asked
    assert all(emulated.isdisjoint(case.distribution.arguments["columns"]) for case in asked)
