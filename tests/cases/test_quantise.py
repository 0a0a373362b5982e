"""8-bit inputs: codes times descales are the draws to half a step, whatever shares a scale; what a suite may ask."""

import msgspec
import numpy as np
import pytest
import torch

from fa4verify.arithmetic.hadamard import rotate_back, signs
from fa4verify.cases import SuiteError, draw, in_format, last_rows, load_suite
from fa4verify.cases.naming import case_id
from fa4verify.vocabulary import Quantisation

from .build import attention, case

SIZES = {"batch": 2, "seqlen_q": 130, "seqlen_k": 300, "heads": 4, "heads_kv": 2, "head_dim": 32}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
HALF_STEP = {"e4m3": (2.0**-4, 2.0**-10), "e5m2": (2.0**-3, 2.0**-17)}  # relative, and among subnormals


def asked(dtype="e4m3", **how):
    fields = {"quantisation": Quantisation(**how), "truth": "draws"}
    return case("fa3_outlier", dtype=dtype, sizes=SIZES, fields=fields)


def spread(descale, name):
    """Return the scale of every element, one axis at a time: (batch, tokens, heads, 1)."""
    tokens, heads = (130, 4) if name == "q" else (300, 2)
    found = np.zeros((2, tokens, heads, 1))
    for b, t, h in np.ndindex(2, tokens, heads):
        found[b, t, h] = descale[b, h, t // 128] if descale.ndim == 3 else descale[b, h // (heads // 2)]
    return found


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("scales", ["tensor", "head", "block"])
def test_codes_times_descales_are_the_draws_to_half_a_step(dtype, scales, power_of_two):
    inputs = draw(asked(dtype, scales=scales, power_of_two=power_of_two))
    relative, absolute = HALF_STEP[dtype]
    for name in "qkv":
        scale = spread(inputs.tensors[f"{name}_descale"].double().numpy(), name)
        codes, exact = inputs.tensors[name].double().numpy(), inputs.draws[name]
        assert np.all(np.abs(codes * scale - exact) <= np.maximum(relative * np.abs(exact), absolute * scale))
        assert np.abs(codes).max() <= LARGEST[dtype]
        assert np.abs(codes).max() > LARGEST[dtype] * (0.45 if power_of_two else 0.99), "the largest is near the end"


def test_what_shares_a_scale():
    descales = {how: draw(asked(scales=how)).tensors for how in ("tensor", "head", "block")}
    assert len(set(descales["tensor"]["k_descale"].flatten().tolist())) == 1
    assert descales["head"]["q_descale"].shape == descales["head"]["k_descale"].shape == (2, 2)
    assert len(set(descales["head"]["k_descale"].flatten().tolist())) == 4
    assert descales["block"]["q_descale"].shape == (2, 4, 2)
    assert descales["block"]["v_descale"].shape == (2, 2, 3)
    exact = draw(asked(scales="block")).draws
    largest = np.abs(exact["q"][1, :, 2:4]).max()
    assert descales["head"]["q_descale"][1, 1].item() == pytest.approx(largest / 448, rel=2.0**-19)


def test_without_scales_numbers_saturate_and_there_is_no_descale():
    inputs = draw(case("scaled_normal", dtype="e4m3", factor=300.0))
    assert set(inputs.tensors) == {"q", "k", "v"}
    assert inputs.tensors["q"].dtype == torch.float8_e4m3fn
    assert inputs.tensors["q"].float().abs().max() == 448
    assert inputs.tensors["q"].isnan().sum() == 0


def test_incoherent_inputs_are_the_draws_rotated_with_shared_signs():
    inputs = draw(asked(scales="block", incoherent=True))
    for name in "qk":
        scale = spread(inputs.tensors[f"{name}_descale"].double().numpy(), name)
        back = rotate_back(inputs.tensors[name].double().numpy() * scale, signs(32))
        # An error of a rotated row is spread over its channels: at most its length.
        norm = np.linalg.norm(inputs.draws[name], axis=-1)
        assert np.all(np.linalg.norm(back - inputs.draws[name], axis=-1) <= 2.0**-4 * norm)
    plain = draw(asked(scales="block"))
    assert torch.equal(inputs.tensors["v"].view(torch.uint8), plain.tensors["v"].view(torch.uint8))


def test_the_draws_do_not_depend_on_how_they_are_quantised():
    one, other = draw(asked(scales="head")), draw(asked(scales="block", incoherent=True))
    assert all(np.array_equal(one.draws[name], other.draws[name]) for name in "qkv")
    assert draw(case(dtype="e4m3")).draws == {}


def test_the_same_draws_in_the_other_format():
    inputs = draw(asked(scales="head"))
    other, changed = in_format(asked(scales="head"), inputs, "e5m2")
    assert other.dtype == "e5m2"
    assert changed.tensors["k"].dtype == torch.float8_e5m2
    error = {}
    for name, found in (("e4m3", inputs), ("e5m2", changed)):
        scale = spread(found.tensors["k_descale"].double().numpy(), "k")
        error[name] = np.square(found.tensors["k"].double().numpy() * scale - inputs.draws["k"]).mean()
    assert 3 < error["e5m2"] / error["e4m3"] < 5


def test_the_last_rows_are_the_same_problem():
    whole = asked(scales="head")
    small, cut = last_rows(whole, draw(whole), 32)

    def meant(given):
        """Return q, k, v of the first batch as numbers."""
        found = {}
        for name in "qkv":
            codes, scale = given.tensors[name].double().numpy()[:1], given.tensors[f"{name}_descale"].double().numpy()
            found[name] = codes * np.repeat(scale[:1], codes.shape[2] // 2, axis=1)[:, None, :, None]
        return found

    (o, lse), (o_small, lse_small) = attention(whole, meant(draw(whole))), attention(small, meant(cut))
    assert np.allclose(o[:, -32:], o_small)
    assert np.allclose(lse[..., -32:], lse_small)


def test_the_last_rows_have_their_blocks_scale():
    """Block 1 of Q holds two rows only."""
    whole = asked(scales="block", incoherent=True)
    inputs = draw(whole)
    small, cut = last_rows(whole, inputs, 32)
    assert small.shape.seqlen_q == 2
    assert torch.equal(cut.tensors["q_descale"], inputs.tensors["q_descale"][:1, :, 1:])
    assert torch.equal(cut.tensors["q"].float(), inputs.tensors["q"][:1, 128:].float())
    assert np.array_equal(cut.draws["q"], inputs.draws["q"][:1, 128:])


def test_ids_tell_quantisations_apart():
    ids = {case_id(asked(**how)) for how in ({}, {"scales": "head"}, {"scales": "head", "power_of_two": True})}
    assert len(ids) == 3
    assert case_id(asked(scales="block", incoherent=True)).endswith("-block-incoherent-draws-fa3_outlier-s0")
    assert case_id(msgspec.structs.replace(asked(), label="a line")) == case_id(asked())


HEAD = """name = "x"
about = "x"
[budgets.o]
tensor = "o"
metric = "relative_rmse"
kind = "absolute"
limit = 0.1
provenance = "x"
[[cases]]
kernel = "fa4-sm100"
distribution = "normal"
budgets = ["o"]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('quantisation = { scales = "head" }', "a quantisation of 16-bit inputs, expected dtype = 'e4m3' or 'e5m2'"),
        ('dtype = "e4m3"\nquantisation = { scale = "head" }', "an unknown key 'quantisation.scale'"),
        ('dtype = "e4m3"\nquantisation = { scales = "row" }', "quantisation.scales: found 'row'"),
        ('dtype = "e4m3"\nbaseline = "e5m2"', "expected an 8-bit dtype and truth = 'draws'"),
        ('dtype = "e4m3"\noperation = "backward"', "'e4m3' in a backward case, expected operation = 'forward'"),
        ('truth = "paper"', "truth: found 'paper', expected 'inputs' or 'draws'"),
    ],
)
def test_what_a_suite_may_not_ask_for(tmp_path, text, said):
    file = tmp_path / "x.toml"
    file.write_text(HEAD + text + "\n")
    with pytest.raises(SuiteError, match="cases"):
        load_suite(file)
    with pytest.raises(SuiteError) as raised:
        load_suite(file)
    assert said in str(raised.value)


def test_full_wins_over_every_block(tmp_path):
    file = tmp_path / "x.toml"
    more = '[cases.axes]\n"shape.seqlen_q" = [8, 16]\n'
    file.write_text("[full]\nshape = { seqlen_q = 512 }\nseed = 3\n" + HEAD.replace('name = "x"\nabout = "x"\n', ""))
    file.write_text('name = "x"\nabout = "x"\n' + file.read_text())
    assert [c.shape.seqlen_q for c in load_suite(file).cases] == [1]
    (only,) = load_suite(file, full=True).cases
    assert (only.shape.seqlen_q, only.seed) == (512, 3)
    file.write_text(HEAD + more)
    with pytest.raises(SuiteError, match="this suite has no larger form"):
        load_suite(file, full=True)
    assert {c.shape.seqlen_q for c in load_suite("fa3_table", full=True).cases} == {8192}
