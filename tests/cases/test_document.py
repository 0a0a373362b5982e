"""docs/distributions.md is complete and current, and so is what the table says."""

import inspect
from pathlib import Path

import pytest

from fa4verify.cases import distributions, draw
from fa4verify.cases.blocks import FIELDS, SHAPE_FIELDS
from fa4verify.cases.distributions import TABLE
from fa4verify.cases.distributions.document import document
from tests.cases.build import case

DOCS = Path(__file__).parents[2] / "docs"
ASKED_FOR = [
    "normal",
    "fa3_outlier",
    "scaled_normal",
    "max_staircase",
    "repeated_maxima",
    "constant_rows",
    "ones_v",
    "onehot_ladder",
    "large_logits",
    "negative_rows",
    "fully_masked_rows",
    "first_tile_masked",
    "single_key_rows",
    "sink_tokens",
    "massive_activations",
    "k_common_offset",
    "tail_mass",
    "long_sequence",
    "uniform_tiny_output",
    "tiny_values",
    "nan_inf_poison",
    "ragged_varlen",
    "gqa_marked",
    "softcap_range",
    "low_rank_qk",
    "dominant_column",
    "capture",
    "octave",
    "fractions",
    "working_range",
    "specials",
    "nothing",
]


GRADIENTS_ALONE = ["scaled_dout", "cancellation_bwd", "grad_adversarial", "lse_loss", "dout_poison"]


def test_every_distribution_is_there():
    assert sorted(TABLE) == sorted([*ASKED_FOR, *GRADIENTS_ALONE])
    assert all(len(line) > 15 and line.endswith(".") for line in distributions().values())


@pytest.mark.parametrize("name", TABLE)
def test_each_docstring_says_what_it_detects_and_how_it_is_checked(name):
    text = inspect.getdoc(TABLE[name].generate)
    assert "\nDetects " in text
    assert "\nCheck" in text
    for argument in TABLE[name].parameters():
        assert argument in text


def test_the_page_is_current():
    found = (DOCS / "distributions.md").read_text()
    assert found == document(), "run: python -m fa4verify.cases.distributions.document > docs/distributions.md"
    assert all(f"### {name}\n" in found for name in TABLE)


def test_the_page_on_suites_knows_every_key():
    page = (DOCS / "suites.md").read_text()
    for key in (*FIELDS, *SHAPE_FIELDS, "axes", "variants", "provenance", "relative_to"):
        assert f"`{key}`" in page or f"{key} =" in page, key


@pytest.mark.parametrize(
    "name",
    [name for name, entry in TABLE.items() if "backward" in entry.operations and not entry.needs and name != "capture"],
)
@pytest.mark.parametrize("sizes", [{"seqlen_q": 0}, {"seqlen_k": 0}, {"seqlen_q": 1, "seqlen_k": 1, "head_dim": 8}])
def test_those_without_needs_draw_any_size(name, sizes):
    a_case = case(name, sizes=sizes, operation="forward" if "forward" in TABLE[name].operations else "backward")
    tensors = draw(a_case).tensors
    shape = a_case.shape
    assert tuple(tensors["q"].shape) == (1, shape.seqlen_q, 2, shape.head_dim)
    assert tuple(tensors["v"].shape) == (1, shape.seqlen_k, 2, shape.head_dim_v)
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
