"""The backward of fa4-sm90 and fa4-sm100: every bit against a scalar model, bounds against float64, orders and seeds.

tests/golden/test_backward_h200.py compares fa4-sm90 with a real H200.
"""

import numba
import pytest
import torch

import fa4verify
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated import backward_launch, fa4_sm90, fa4_sm100
from fa4verify.kernels.emulated.visibility import resolve

from .backward_model import BackwardModel, bounds, gradients64
from .scalar_model import same_bits
from .test_fa4_sm90 import BF16, FP16, draw

INF = float("inf")
GRADIENTS = ("dq", "dk", "dv")
FP32 = {"grad_dtype": "fp32"}  # the last rounding hides most of what an order of adds does


def problem(sq, sk, d, *, heads=1, heads_kv=1, dv=None, **inputs):
    """q, k, v and dout."""
    q, k, v = draw(sq, sk, d, heads=heads, heads_kv=heads_kv, dv=dv, **inputs)
    dout = draw(sq, 1, dv or d, heads=heads, heads_kv=1, **(inputs | {"seed": 7}))[0]
    return q, k, v, dout


def chained(kernel, q, k, v, dout, own=None, **options):
    """Run a kernel's backward on what its own forward gave."""
    own = own or {}
    forward = {name: x for name, x in options.items() if name not in ("dlse", "deterministic", "seed")}
    out = kernel.forward(q, k, v, **forward)
    return out, kernel.backward(dout, q, k, v, out.o, out.lse, **options, **own)


def statistics_gradient(heads, sq):
    return torch.from_numpy(
        draw(sq, 1, 1, heads=heads, seed=11)[0][..., 0].float().permute(0, 2, 1).contiguous().numpy()
    )


SM90, SM100 = fa4_sm90.FA4_SM90, fa4_sm100.FA4_SM100
# Kernel, sizes, inputs, options, the kernel's own options; keys that share a dQ partial, threads of a row of delta.
SCALAR_CASES = {
    "plain": (SM90, (6, 300, 64), {}, {}, {}, 128, 8),
    "fp16, outliers": (SM90, (5, 270, 128), {"dtype": FP16, "outliers": True}, {}, {}, 128, 16),
    "causal, empty rows": (SM90, (19, 7, 32), {}, {"causal": True}, {}, 128, 4),
    "hd 96, causal: three vectors a thread": (SM90, (5, 290, 96), {"dtype": FP16}, {"causal": True}, {}, 128, 4),
    "hd 192, window: 96 keys": (SM90, (7, 230, 192), {}, {"window_size": (60, 100)}, {}, 96, 8),
    "hd 256: 48 keys": (SM90, (3, 150, 256), {"dtype": FP16}, {}, {}, 48, 16),
    "dv 32": (SM90, (4, 140, 64), {"dv": 32}, {}, {}, 128, 4),
    "hd 40 as intended": (SM90, (4, 140, 40), {}, {}, {"intended_storage": True}, 128, 8),
    "softcap": (SM90, (4, 260, 64), {"scale": 3.0}, {"softcap": 5.0}, {}, 128, 8),
    "scale": (SM90, (4, 140, 64), {}, {"softmax_scale": 0.7}, {}, 128, 8),
    "group of three, dLSE": (SM90, (5, 260, 64), {"heads": 3}, {"dlse": True}, {}, 128, 8),
    "Blackwell, one CTA": (SM100, (4, 300, 64), {}, {"causal": True}, {}, 128, 8),
    "Blackwell, pair: 256 keys": (SM100, (3, 600, 128), {}, {}, {}, 256, 16),
    "Blackwell, pair refused": (SM100, (3, 600, 128), {}, {}, {"disable_2cta": True}, 128, 16),
    "Blackwell, hd 192": (SM100, (3, 300, 192), {"dv": 128}, {"causal": True}, {}, 256, 16),
    "Blackwell, hd 256: two kernels": (SM100, (4, 150, 256), {"heads": 2}, {}, {}, 128, 16),
}


@pytest.mark.parametrize("name", SCALAR_CASES)
def test_bits_of_the_scalar_model(name):
    kernel, sizes, inputs, options, own, keys_per_add, threads = SCALAR_CASES[name]
    q, k, v, dout = problem(*sizes, **inputs)
    mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
    dlse = statistics_gradient(q.shape[2], q.shape[1]) if options.get("dlse") else None
    if dlse is not None:
        options = options | {"dlse": dlse}
    forward, out = chained(kernel, q, k, v, dout, own, **options)
    model = BackwardModel(
        "sm100" if kernel is SM100 else "sm90",
        keys_per_add,
        threads,
        left=mask.left,
        right=mask.right_bound,
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        one_chain="two kernels" in name,
    )
    dq, dk, dv, delta = model(
        q[0], k[0, :, 0], v[0, :, 0], dout[0], forward.o[0], forward.lse[0], None if dlse is None else dlse[0]
    )
    assert same_bits(out.delta[0], delta)
    assert same_bits(out.dq[0], dq)
    assert same_bits(out.dk[0, :, 0], dk)
    assert same_bits(out.dv[0, :, 0], dv)


FEATURES = [
    {},
    {"causal": True},
    {"window_size": (40, 20)},
    {"window_size": (None, -3)},
    {"window_size": (-1, 0)},
    {"softmax_scale": 0.7},
    {"softcap": 3.0},
    {"dlse": True, "causal": True},
    {"learnable_sink": torch.tensor([0.5, -1.0, 2.0, 4.0])},
    {"learnable_sink": torch.tensor([0.5, -1.0, 2.0, 4.0]), "causal": True, "dlse": True},
]


@pytest.mark.parametrize("kernel", [SM90, SM100], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("options", FEATURES, ids=str)
def test_within_what_a_correct_kernel_may_err(kernel, dtype, options):
    for sq, sk in ((1, 1), (130, 257), (140, 60)):
        q, k, v, dout = problem(sq, sk, 64, heads=4, heads_kv=2, dtype=dtype)
        mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
        dlse = statistics_gradient(4, sq) if options.get("dlse") else None
        _, out = chained(kernel, q, k, v, dout, **(options | {"dlse": dlse}))
        features = {
            "left": mask.left,
            "right": mask.right_bound,
            "scale": options.get("softmax_scale"),
            "softcap": options.get("softcap", 0.0),
            "sink": options.get("learnable_sink"),
            "dlse": dlse,
        }
        truth = gradients64(q, k, v, dout, **features)
        *allowed, dsink_bound = bounds(q, k, v, dout, exp2_error=1e-4 if kernel is SM100 else 2.0**-22, **features)
        for name, exact, bound in zip(GRADIENTS, truth[:3], allowed, strict=True):
            error = abs(getattr(out, name).double() - exact).numpy()
            assert (error <= bound).all(), f"{name}: {(error / bound).max():.3g} of what a correct kernel may"
        if len(truth) == 4:
            assert (abs(out.dsink.double() - truth[3]).numpy() <= dsink_bound).all()


def test_the_bounds_refuse_wrong_gradients():
    """No delta, no scale, a lost KV tile, a mask that is one off: each leaves the bound."""
    q, k, v, dout = problem(130, 257, 64, dtype=FP16)
    allowed = dict(zip(GRADIENTS, bounds(q, k, v, dout, right=0), strict=False))
    forward, right = chained(SM90, q, k, v, dout, causal=True)
    zero = torch.zeros_like(forward.o)
    statistics = (forward.o, forward.lse)
    wrong = [
        ("dk", SM90.backward(dout, q, k, v, zero, forward.lse, causal=True)),
        ("dq", SM90.backward(dout, q, k, v, *statistics, causal=True, softmax_scale=0.135)),
        ("dv", SM90.backward(dout, q, k, v, *statistics, window_size=(None, 1))),
        ("dq", SM90.backward(dout, q, k, v, *statistics, window_size=(200, 0))),
    ]
    truth = dict(zip(GRADIENTS, gradients64(q, k, v, dout, right=0), strict=True))
    for name, out in wrong:
        assert (abs(getattr(out, name).double() - truth[name]).numpy() > allowed[name]).any(), name
        assert (abs(getattr(right, name).double() - truth[name]).numpy() <= allowed[name]).all(), name


def test_rows_without_keys_have_no_gradient():
    q, k, v, dout = problem(300, 130, 64, heads=2, heads_kv=1)
    forward, out = chained(SM90, q, k, v, dout, causal=True)
    empty = torch.isneginf(forward.lse[0, 0])
    assert empty.sum() == 170
    assert not out.dq[0, empty].any()
    _, rest = chained(SM90, q[:, 170:], k, v, dout[:, 170:], causal=True)
    assert same_bits(out.dk, rest.dk)
    assert same_bits(out.dv, rest.dv)
    _, nothing = chained(SM90, q, k, v, dout, window_size=(-1, 0))
    assert not any(getattr(nothing, name).any() for name in GRADIENTS)


def test_no_keys_or_no_queries():
    sink = torch.tensor([0.5, 1.5])
    q, k, v, dout = problem(3, 0, 64, heads=2, heads_kv=2)
    dlse = statistics_gradient(2, 3)
    _, out = chained(SM90, q, k, v, dout, learnable_sink=sink, dlse=dlse)
    assert not out.dq.any()
    assert torch.equal(out.dsink, dlse.sum((0, 2)))
    q, k, v, dout = problem(0, 5, 64)
    _, out = chained(SM90, q, k, v, dout)
    assert out.dk.shape == k.shape
    assert not out.dk.any()


@pytest.mark.parametrize("kernel", [SM90, SM100], ids=lambda kernel: kernel.name)
def test_only_dq_of_three_kv_tiles_or_more_depends_on_the_order(kernel):
    q, k, v, dout = problem(40, 640, 64)
    _, fixed = chained(kernel, q, k, v, dout, FP32)
    outs = [chained(kernel, q, k, v, dout, FP32, deterministic=False, seed=seed)[1] for seed in range(4)]
    assert all(same_bits(out.dk, fixed.dk) and same_bits(out.dv, fixed.dv) for out in outs)
    assert not any(same_bits(out.dq, fixed.dq) for out in outs)
    assert not same_bits(outs[0].dq, outs[1].dq)
    again = chained(kernel, q, k, v, dout, FP32, deterministic=False)[1]
    assert same_bits(again.dq, outs[0].dq), "no seed is seed 0"
    assert outs[0].activity["dq_tiles_shuffled"] == 1
    assert fixed.activity["dq_tiles_shuffled"] == 0
    short = k[:, :256], v[:, :256]
    _, fixed = chained(kernel, q, *short, dout, FP32)
    for seed in range(4):
        assert same_bits(chained(kernel, q, *short, dout, FP32, deterministic=False, seed=seed)[1].dq, fixed.dq)


def test_a_pair_of_ctas_halves_the_adds():
    q, k, v, dout = problem(40, 1024, 128)
    pair, single = (chained(SM100, q, k, v, dout, FP32 | {"disable_2cta": off})[1] for off in (False, True))
    assert (pair.activity["dq_adds_max"], single.activity["dq_adds_max"]) == (4, 8)
    assert not same_bits(pair.dq, single.dq)
    assert same_bits(pair.dk, single.dk)


def test_grouped_heads_add_in_order_or_at_random():
    q, k, v, dout = problem(40, 140, 64, heads=5)
    _, fixed = chained(SM90, q, k, v, dout, FP32)
    _, shuffled = chained(SM90, q, k, v, dout, FP32, deterministic=False, seed=3)
    assert not same_bits(fixed.dk, shuffled.dk)
    assert not same_bits(fixed.dv, shuffled.dv)
    alone = [chained(SM90, q[:, :, h : h + 1], k, v, dout[:, :, h : h + 1], FP32)[1] for h in range(5)]
    assert same_bits(fixed.dq, torch.cat([out.dq for out in alone], 2))


def test_hd_256_on_blackwell_knows_no_order():
    q, k, v, dout = problem(20, 400, 256, heads=2)
    _, fixed = chained(SM100, q, k, v, dout)
    _, shuffled = chained(SM100, q, k, v, dout, deterministic=False, seed=3)
    assert all(same_bits(getattr(fixed, name), getattr(shuffled, name)) for name in GRADIENTS)


def test_the_wrong_direction_is_noticed(monkeypatch):
    """Ascending and descending dQ differ in bits, so equality with the device says which one it is."""
    q, k, v, dout = problem(300, 300, 64, outliers=True)
    right = {causal: chained(SM90, q, k, v, dout, FP32, causal=causal)[1] for causal in (False, True)}
    turns = backward_launch.dq_turns
    monkeypatch.setattr(
        backward_launch, "dq_turns", lambda met, *, descending, **rest: turns(met, descending=not descending, **rest)
    )
    for causal, expected in right.items():
        _, twin = chained(SM90, q, k, v, dout, FP32, causal=causal)
        assert not same_bits(twin.dq, expected.dq)
        assert same_bits(twin.dk, expected.dk)


def test_batches_and_heads_are_independent():
    pair = [problem(70, 200, 64, heads=4, heads_kv=2, seed=seed) for seed in (0, 1)]
    q, k, v, dout = (torch.cat(tensors) for tensors in zip(*pair, strict=True))
    _, both = chained(SM90, q, k, v, dout, causal=True)
    for b in range(2):
        for h in range(2):
            own, pair = slice(h, h + 1), slice(2 * h, 2 * h + 2)
            _, alone = chained(
                SM90, q[b : b + 1, :, pair], k[b : b + 1, :, own], v[b : b + 1, :, own], dout[b : b + 1, :, pair],
                causal=True,
            )  # fmt: skip
            assert same_bits(both.dq[b, :, pair], alone.dq[0])
            assert same_bits(both.dk[b, :, own], alone.dk[0])
            assert same_bits(both.dv[b, :, own], alone.dv[0])


def test_threads_do_not_change_bits():
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba was started with one thread")
    q, k, v, dout = problem(300, 400, 64, heads=2, outliers=True)
    threads = numba.get_num_threads()
    outs = []
    try:
        for count in (1, 2):
            numba.set_num_threads(count)
            outs.append(chained(SM90, q, k, v, dout, causal=True)[1])
    finally:
        numba.set_num_threads(threads)
    assert all(same_bits(getattr(outs[0], name), getattr(outs[1], name)) for name in GRADIENTS)


def test_a_nonfinite_gradient_stays_in_its_row_and_group():
    q, k, v, dout = problem(140, 140, 64, heads=2, heads_kv=2)
    dout[0, 130, 0, 5] = INF
    _, out = chained(SM90, q, k, v, dout, causal=True)
    assert torch.isfinite(out.dq[0, :, 1].float()).all()
    assert torch.isfinite(out.dq[0, :128, 0].float()).all()
    assert not torch.isfinite(out.dv[0, :128, 0, 5].float()).any()


@pytest.mark.parametrize(
    ("kernel", "sizes", "inputs", "options", "message"),
    [
        (SM90, (3, 3, 64), {"heads": 2, "dv": 32}, {}, "head_dim == head_dim_v"),
        (SM90, (3, 3, 104), {}, {}, "does not compile"),
        (SM100, (3, 3, 256), {}, {"softcap": 3.0}, "does not support softcap"),
        (SM100, (3, 3, 256), {}, {"window_size": (1, 1)}, "does not support local"),
        (SM100, (3, 3, 256), {}, {"learnable_sink": torch.zeros(1)}, "does not support learnable_sink"),
    ],
)
def test_what_fa4_refuses(kernel, sizes, inputs, options, message):
    q, k, v, dout = problem(*sizes, **inputs)
    forward = kernel.forward(q, k, v, **options)
    with pytest.raises(Unsupported, match=message):
        kernel.backward(dout, q, k, v, forward.o, forward.lse, **options)


def test_unrounded_gradients_round_to_the_gradients():
    q, k, v, dout = problem(40, 300, 64, dtype=FP16, heads=2)
    for kernel in (SM90, SM100):
        _, rounded = chained(kernel, q, k, v, dout)
        _, exact = chained(kernel, q, k, v, dout, FP32)
        for name in GRADIENTS:
            assert getattr(exact, name).dtype == torch.float32
            assert same_bits(getattr(exact, name).half(), getattr(rounded, name))
    with pytest.raises(ValueError, match="expected 'fp32'"):
        chained(SM90, q, k, v, dout, {"grad_dtype": "fp64"})


def test_wrong_shapes_are_named():
    q, k, v, dout = problem(3, 5, 64)
    forward = SM90.forward(q, k, v)
    with pytest.raises(Unsupported, match="dout"):
        SM90.backward(dout[:, :2], q, k, v, forward.o, forward.lse)
    with pytest.raises(Unsupported, match="lse"):
        SM90.backward(dout, q, k, v, forward.o, forward.lse.double())
    with pytest.raises(Unsupported, match="2CTA"):
        fa4_sm100.backward_setup(192, disable_2cta=True)


def test_the_registry_gives_kernels_with_a_backward():
    assert all(hasattr(fa4verify.kernel(name), "backward") for name in ("fa4-sm90", "fa4-sm100"))
