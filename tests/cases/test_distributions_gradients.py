"""What comes back from the loss, held to what the docstrings claim."""

import msgspec
import numpy as np
import pytest
import torch

from fa4verify.cases import SuiteError, draw, last_rows, load_suite
from fa4verify.cases.naming import case_id
from fa4verify.references import solve
from tests.cases.build import arrays, attention, case, nats, raw_scores

SIZES = {"seqlen_q": 48, "seqlen_k": 80, "heads": 4, "heads_kv": 2, "head_dim": 32}


def backward(distribution="normal", *, fields=None, **arguments):
    return case(distribution, sizes=SIZES, operation="backward", fields=fields, **arguments)


def probabilities(a_case, tensors):
    _, lse = attention(a_case, tensors)
    return np.exp(raw_scores(tensors) * nats(a_case) - lse[..., None])


def gradients(a_case):
    return solve(a_case, draw(a_case)).tensors


def test_dout_and_dlse_are_normal_unless_said_otherwise_and_only_where_used():
    tensors = draw(backward(fields={"lse_gradient": True})).tensors
    assert (tensors["dout"].shape, tensors["dout"].dtype) == ((1, 48, 4, 32), torch.bfloat16)
    assert (tensors["dlse"].shape, tensors["dlse"].dtype) == ((1, 4, 48), torch.float32)
    n = tensors["dout"].numel()
    assert tensors["dout"].double().var() == pytest.approx(1, abs=5 * (2 / n) ** 0.5)
    without = draw(backward()).tensors
    assert set(without) == {"q", "k", "v", "dout"}
    assert all(torch.equal(without[name], tensors[name]) for name in without)
    assert set(draw(case("repeated_maxima")).tensors) == {"q", "k", "v"}


def test_the_order_of_adds_changes_no_input():
    one, other = (draw(backward(fields={"deterministic": flag})).tensors for flag in (True, False))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("exponent", [-20, 40])
def test_scaled_dout_scales_every_gradient(exponent):
    fields = {"lse_gradient": True, "learnable_sink": True}
    one, many = (backward("scaled_dout", exponent=e, fields=fields) for e in (0, exponent))
    inputs = draw(one)
    scaled = {name: inputs.tensors[name] * 2.0**exponent for name in ("dout", "dlse")}
    base = solve(one, inputs).tensors
    found = solve(many, type(inputs)({**inputs.tensors, **scaled})).tensors
    for name in base:
        assert np.allclose(found[name], base[name] * 2.0**exponent, rtol=1e-12, atol=0)
    assert draw(many).tensors["dout"].double().std() == pytest.approx(2.0**exponent, rel=0.05)


@pytest.mark.parametrize("spread", [0.03125, 0.125])
def test_cancellation_leaves_a_small_share_of_dp(spread):
    a_case = backward("cancellation_bwd", spread=spread)
    tensors = arrays(a_case)
    v = np.repeat(tensors["v"], 2, axis=2)
    dp = np.einsum("bqhd,bkhd->bhqk", tensors["dout"], v)
    delta = gradients(a_case)["delta"]
    left = np.abs(dp - delta[..., None])
    # |V|^2 is 32 channels of about 7/3; a channel's own part is independent.
    share = np.sqrt((left**2).mean() / (delta**2).mean())
    assert share == pytest.approx(spread / np.sqrt(32 * 7 / 3), rel=0.3)


def test_without_spread_o_is_v_and_dq_is_zero():
    a_case = backward("cancellation_bwd", spread=0.0)
    tensors, found = arrays(a_case), gradients(a_case)
    common = np.repeat(tensors["v"][:, :1], 2, axis=2)
    assert np.all(tensors["v"] == tensors["v"][:, :1])
    expected = (common * tensors["dout"]).sum(axis=-1).swapaxes(1, 2)
    assert np.allclose(found["delta"], expected, rtol=1e-12)
    assert abs(found["dq"]).max() < 1e-12


def test_grad_adversarial_has_one_huge_element_and_one_hot_queries():
    tensors = arrays(backward("grad_adversarial"))
    assert np.all((tensors["q"] != 0).sum(axis=-1) == 1)
    assert np.all((tensors["k"] == 76).sum(axis=(0, 1, 3)) == 1)
    assert tensors["k"].max() == 76
    looking = (tensors["q"][..., 0] != 0).mean()
    assert 0.35 < looking < 0.7


def test_lse_loss_gives_the_mean_key():
    a_case = backward("lse_loss", fields={"lse_gradient": True})
    tensors, found = arrays(a_case), gradients(a_case)
    k = np.repeat(tensors["k"], 2, axis=2)
    p = probabilities(a_case, tensors) * tensors["dlse"][..., None]
    assert np.allclose(found["dq"], nats(a_case) * np.einsum("bhqk,bkhd->bqhd", p, k), rtol=1e-10, atol=1e-14)
    assert not found["dv"].any()


def test_poison_in_dout_goes_where_it_belongs():
    a_case = backward("dout_poison")
    found = gradients(a_case)
    assert draw(a_case).tensors["dout"].isnan().sum() == 1
    lost = {name: np.argwhere(~np.isfinite(x)) for name, x in found.items()}
    assert {tuple(i) for i in lost["dq"][:, 1:3]} == {(24, 0)}
    assert set(lost["dv"][:, 3]) == {16}
    assert set(lost["dk"][:, 2]) == {0}


def test_repeated_maxima_pulls_one_way():
    tensors = arrays(backward("repeated_maxima"))
    assert tensors["dout"].min() >= 0.5
    forward = arrays(case("repeated_maxima", sizes=SIZES))
    assert tensors["v"].max() < 0
    assert forward["v"].max() < 0


def test_last_rows_keep_their_own_dout_and_dq():
    a_case = backward(fields={"causal": True, "lse_gradient": True, "learnable_sink": True})
    inputs = draw(a_case)
    small, part = last_rows(a_case, inputs, 10)
    whole, tail = solve(a_case, inputs).tensors, solve(small, part).tensors
    assert np.allclose(tail["dq"], whole["dq"][:, -10:], rtol=1e-12, atol=1e-15)
    assert np.allclose(tail["delta"], whole["delta"][:, :, -10:], rtol=1e-12)
    # A problem of its own: what the other rows gave to the keys is not in it.
    assert not np.allclose(tail["dv"], whole["dv"], rtol=0.1)


def test_lse_loss_needs_its_gradient(tmp_path):
    suite = tmp_path / "t.toml"
    suite.write_text(
        'name = "t"\nabout = "a test"\n[budgets.b]\ntensor = "dq"\nmetric = "rmse"\nkind = "absolute"\nlimit = 1\n'
        'provenance = "a test"\n[[cases]]\noperation = "backward"\nkernel = "k"\ndistribution = "lse_loss"\n'
        'budgets = ["b"]\n'
    )
    with pytest.raises(SuiteError, match="expected lse_gradient = true"):
        load_suite(suite)
    suite.write_text(suite.read_text().replace('"lse_loss"', '"octave"'))
    with pytest.raises(SuiteError, match="expected operation = 'exp2'"):
        load_suite(suite)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "bwd-any-bf16-b1h4kv2q48k80d32-normal-s0"),
        ({"lse_gradient": True, "deterministic": False}, "bwd-any-bf16-b1h4kv2q48k80d32-dlse-anyorder-normal-s0"),
        ({"operation": "repeat", "runs": 7}, "rep-any-bf16-b1h4kv2q48k80d32-runs7-normal-s0"),
    ],
)
def test_ids(fields, name):
    assert case_id(msgspec.structs.replace(backward(), **fields)) == name


def test_a_capture_brings_its_gradients(tmp_path):
    path = tmp_path / "step.npz"
    plain = arrays(backward(fields={"lse_gradient": True}))
    np.savez(path, **{name: x.astype(np.float32) for name, x in plain.items()})
    found = arrays(backward("capture", path=str(path), fields={"lse_gradient": True}))
    assert all(np.array_equal(found[name], plain[name]) for name in plain)
    np.savez(path, **{name: plain[name].astype(np.float32) for name in ("q", "k", "v")})
    assert set(arrays(backward("capture", path=str(path)))) == {"q", "k", "v", "dout"}
    np.savez(path, **{name: x[..., :1].astype(np.float32) if name == "dout" else x for name, x in plain.items()})
    with pytest.raises(SuiteError, match=r"found dout of shape \(1, 48, 4, 1\)"):
        draw(backward("capture", path=str(path)))
