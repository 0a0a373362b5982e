"""fa4-sm90: every bit against a scalar model, bounds against float64, and what must not change the bits.

tests/golden/test_forward_h200.py compares it with a real H200; here are the features and lengths that no recording has.
"""

import warnings

import numba
import numpy as np
import pytest
import torch

from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90, tile_size
from fa4verify.kernels.emulated.launch import Launch, attention
from fa4verify.kernels.emulated.visibility import resolve

from .attention64 import attention64, check
from .scalar_model import Model, same_bits

BF16, FP16 = torch.bfloat16, torch.float16
INF, NAN = float("inf"), float("nan")


def draw(sq, sk, d, *, heads=1, heads_kv=1, dv=None, dtype=BF16, scale=1.0, outliers=False, seed=0):
    """q, k, v of one batch, normal, rounded to the dtype."""
    generator = np.random.Generator(np.random.Philox(seed))
    tensors = []
    for size in ((1, sq, heads, d), (1, sk, heads_kv, d), (1, sk, heads_kv, dv or d)):
        x = generator.standard_normal(size) * scale
        if outliers:
            x += 10 * generator.standard_normal(size) * (generator.random(size) < 1e-2)
        tensors.append(torch.from_numpy(x.astype(np.float32)).to(dtype))
    return tensors


SCALAR_CASES = {
    "plain": ((4, 200, 64), {}, {}),
    "fp16": ((3, 130, 128), {"dtype": FP16, "scale": 2.0}, {}),
    "causal, more queries than keys": ((11, 5, 16), {}, {"causal": True}),
    "hd 96: 144 keys a tile": ((3, 300, 96), {"dtype": FP16}, {}),
    "hd 192, window: 96 keys a tile": ((4, 220, 192), {}, {"window_size": (60, 100)}),
    "hd 256: 80 keys a tile": ((2, 170, 256), {"dtype": FP16}, {}),
    "hd 24 padded to 32": ((3, 140, 24), {}, {"causal": True}),
    "dv 40": ((3, 140, 72), {"dv": 40}, {}),
    "outliers": ((6, 260, 64), {"outliers": True}, {"causal": True}),
    "large logits": ((4, 260, 64), {"scale": 60.0}, {}),
    "subnormal inputs": ((3, 40, 16), {"scale": 2.0**-131}, {}),
    "negative scale": ((3, 256, 64), {}, {"softmax_scale": -0.3}),
    "scale 0, hidden keys": ((3, 130, 64), {}, {"softmax_scale": 0.0}),
    "softcap": ((3, 140, 64), {"scale": 3.0}, {"softcap": 5.0}),
    "sink": ((3, 140, 64), {}, {"learnable_sink": torch.tensor([1.5])}),
    "sink, row without keys": ((5, 3, 64), {}, {"causal": True, "learnable_sink": torch.tensor([-2.5])}),
}


@pytest.mark.parametrize("name", SCALAR_CASES)
def test_bits_of_the_scalar_model(name):
    (sq, sk, d), inputs, options = SCALAR_CASES[name]
    q, k, v = draw(sq, sk, d, **inputs)
    mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
    tile_m, tile_n = tile_size(d, v.shape[3], mask.causal, mask.local)
    sink = options.get("learnable_sink")
    model = Model(
        tile_m,
        tile_n,
        left=mask.left,
        right=mask.right_bound,
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        sink=None if sink is None else float(sink[0]),
    )
    o, lse = model(q[0, :, 0], k[0, :, 0], v[0, :, 0])
    out = FA4_SM90.forward(q, k, v, **options)
    assert same_bits(out.o[0, :, 0], o)
    assert same_bits(out.lse[0, 0], torch.from_numpy(lse))


def test_bits_of_packed_groups():
    """Three query heads share a KV head: row = query * 3 + head, and tiles follow rows."""
    q, k, v = draw(70, 260, 64, heads=3)
    out = FA4_SM90.forward(q, k, v, causal=True)
    for row in (0, 69):
        packed = q[0].reshape(210, 64)[row * 3 : row * 3 + 3]
        alone = FA4_SM90.forward(packed.reshape(1, 1, 3, 64), k[:, : row + 191], v[:, : row + 191])
        assert same_bits(out.o[0, row], alone.o[0, 0])
        assert same_bits(out.lse[0, :, row], alone.lse[0, :, 0])


@pytest.mark.parametrize(
    "twin", [Launch("sm90", 192, 64), Launch("sm90", 192, 128, descending=False), Launch("sm80", 192, 128)]
)
def test_a_wrong_twin_has_other_bits(twin):
    """Tile width, order and tensor core are visible: equality above is no accident."""
    q, k, v = draw(64, 300, 64, outliers=True)
    nothing = {"softcap": 0.0, "learnable_sink": None, "softmax_scale": None, "provenance": {}}
    other = attention(q, k, v, launch=twin, mask=resolve(False, (None, None)), **nothing)
    right = FA4_SM90.forward(q, k, v)
    assert not same_bits(other.o, right.o)
    assert not same_bits(other.lse, right.lse)


FEATURES = [
    {},
    {"causal": True},
    {"window_size": (40, 20)},
    {"window_size": (None, -3)},
    {"window_size": (30, None)},
    {"window_size": (-1, 0)},
    {"softmax_scale": 0.7},
    {"softcap": 3.0},
    {"learnable_sink": torch.tensor([0.5, -1.0, 2.0, -INF])},
    {"causal": True, "learnable_sink": torch.tensor([0.5, -1.0, 2.0, 4.0])},
]


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("options", FEATURES, ids=str)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 129), (65, 64), (130, 257)])
def test_within_what_a_correct_kernel_may_err(dtype, options, lengths):
    q, k, v = draw(*lengths, 64, heads=4, heads_kv=2, dtype=dtype)
    mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
    truth = attention64(
        q,
        k,
        v,
        left=mask.left,
        right=mask.right_bound,
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        sink=options.get("learnable_sink"),
    )
    check(FA4_SM90.forward(q, k, v, **options), truth)


def test_the_bound_refuses_a_lost_key_a_shifted_mask_and_a_wrong_scale():
    q, k, v = draw(130, 257, 64)
    truth = attention64(q, k, v, right=0)
    check(FA4_SM90.forward(q, k, v, causal=True), truth)
    wrong = [
        FA4_SM90.forward(q, k[:, 1:], v[:, 1:], causal=True),
        FA4_SM90.forward(q, k, v, window_size=(None, 1)),
        FA4_SM90.forward(q, k, v, causal=True, softmax_scale=64**-0.5 * (1 + 2**-5)),
    ]
    for output in wrong:
        with pytest.raises(AssertionError, match="off by"):
            check(output, truth)


def test_rows_do_not_see_each_other():
    """Permuting queries permutes the bits; so does cutting them out."""
    q, k, v = draw(200, 300, 64, heads=2, outliers=True)
    order = torch.from_numpy(np.random.Generator(np.random.Philox(1)).permutation(200))
    out, permuted = FA4_SM90.forward(q, k, v), FA4_SM90.forward(q[:, order], k, v)
    assert same_bits(out.o[:, order], permuted.o)
    assert same_bits(out.lse[..., order], permuted.lse)
    assert same_bits(out.o[:, 77:78], FA4_SM90.forward(q[:, 77:78], k, v).o)


def test_threads_do_not_change_bits():
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba was started with one thread")
    q, k, v = draw(300, 300, 64, heads=2, outliers=True)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = FA4_SM90.forward(q, k, v, causal=True)
        numba.set_num_threads(2)
        two = FA4_SM90.forward(q, k, v, causal=True)
    finally:
        numba.set_num_threads(threads)
    assert same_bits(one.o, two.o)
    assert same_bits(one.lse, two.lse)
    assert one.activity == two.activity


@pytest.mark.parametrize("column", [0, 1, 2, 63, 127, 128, 255])
def test_one_hot_keys_return_their_value(column):
    q = torch.zeros(1, 3, 1, 64, dtype=BF16)
    q[..., 0] = 16
    k = torch.zeros(1, 256, 1, 64, dtype=BF16)
    k[0, column, 0, 0] = 256  # 512 nats above the others: their weights are exactly 0
    _, _, v = draw(3, 256, 64)
    out = FA4_SM90.forward(q, k, v)
    assert same_bits(out.o[0, 1, 0], v[0, column, 0])
    assert abs(out.lse[0, 0, 0] - 512) < 1e-4


def test_constant_values_come_back():
    """V = 1: O - 1 is what P's rounding does to numerator against denominator, at most u of bf16."""
    q, k, v = draw(65, 500, 64)
    out = FA4_SM90.forward(q, k, torch.ones_like(v))
    assert abs(out.o.double() - 1).max() <= 2**-8


@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_attend_to(sq, sk):
    q, k, v = draw(sq, sk, 64, heads=2, heads_kv=1)
    out = FA4_SM90.forward(q, k, v)
    assert out.o.shape == (1, sq, 2, 64)
    assert not out.o.any()
    assert torch.isneginf(out.lse).all()
    sink = torch.tensor([0.5, -3.0])
    assert torch.equal(FA4_SM90.forward(q, k, v, learnable_sink=sink).lse, sink[None, :, None].expand(1, 2, sq))
    assert out.activity["tiles_visited"] == 0


def test_a_window_of_minus_one_zero_empties_every_row():
    q, k, v = draw(100, 100, 64)
    out = FA4_SM90.forward(q, k, v, window_size=(-1, 0))
    assert not out.o.any()
    assert torch.isneginf(out.lse).all()
    assert out.activity["tiles_masked"] == out.activity["tiles_visited"] > 0


def test_a_nan_row_reports_minus_infinity():
    """Hazard 3: LSE says empty, O says NaN; the other rows are clean."""
    q, k, v = draw(40, 300, 64)
    q[0, 7, 0, 3] = NAN
    out, clean = FA4_SM90.forward(q, k, v), FA4_SM90.forward(*draw(40, 300, 64))
    assert out.o[0, 7].isnan().all()
    assert torch.isneginf(out.lse[0, 0, 7])
    others = [r for r in range(40) if r != 7]
    assert same_bits(out.o[:, others], clean.o[:, others])


def test_a_hidden_nan_leaks_in_visited_tiles_only():
    """Hazard 6: 0 * NaN. 192 rows share tiles; only the second row tile visits the third one, with key 383."""
    q, k, v = draw(384, 384, 64)
    v[0, 383, 0, 0] = NAN
    out = FA4_SM90.forward(q, k, v, causal=True)
    leaked = out.o[0, :, 0, 0].isnan()
    assert not leaked[:192].any()
    assert leaked[192:].all()
    assert not out.o[0, :, 0, 1:].isnan().any()
    assert out.lse.isfinite().all()


def test_activity():
    q, k, v = draw(70, 300, 64, outliers=True)
    out = FA4_SM90.forward(q, k, v, causal=True)
    activity, rows = out.activity, out.activity_per_row
    assert activity["hardware_exp2"] == sum(231 + r for r in range(70))
    assert activity["emulated_exp2"] == activity["rescales_skipped"] == activity["p_saturated"] == 0
    assert activity["tiles_visited"] == 70 * 3
    assert activity["tiles_masked"] == (rows["tiles_masked"] == 1).sum() == 26  # rows up to 25 end below key 256
    assert activity["rescales_done"] == rows["rescales_done"].sum() > 0
    assert rows["rescales_done"].shape == (1, 1, 70)
    assert abs(activity["max_p"] - 1) < 2**-16  # half an ulp of max c, in log2 units


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((1, 4, 2, 264), "divisible by 8"), ((1, 4, 2, 4), "divisible by 8"), ((1, 4, 2, 60), "divisible by 8")],
)
def test_refuses_head_dims_in_fa4s_words(shape, reason):
    x = torch.zeros(shape, dtype=BF16)
    with pytest.raises(Unsupported, match=reason):
        FA4_SM90.forward(x, x, x)


def test_refuses_other_dtypes_heads_and_sinks():
    x = torch.zeros(1, 4, 6, 64, dtype=BF16)
    with pytest.raises(Unsupported, match="float16 or bfloat16"):
        FA4_SM90.forward(x.float(), x.float(), x.float())
    with pytest.raises(Unsupported, match="one dtype"):
        FA4_SM90.forward(x, x.half(), x)
    with pytest.raises(Unsupported, match="divisible by num_head_kv"):
        FA4_SM90.forward(x, x[:, :, :4], x[:, :, :4])
    with pytest.raises(Unsupported, match="learnable_sink"):
        FA4_SM90.forward(x, x, x, learnable_sink=torch.zeros(5))


def test_tiles_equal_fa4s():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interface = pytest.importorskip("flash_attn.cute.interface")
    for head_dim in range(8, 257, 8):
        for head_dim_v in {8, 64, 128, 136, 256, head_dim}:
            for causal, local in ((False, False), (True, False), (False, True)):
                config = interface._tile_size_fwd_sm90(head_dim, head_dim_v, causal, local)
                assert tile_size(head_dim, head_dim_v, causal, local) == (config.m_block_size, config.n_block_size)


def test_exp2_is_mufu():
    x = torch.tensor([0.0, -1.0, -0.5, -200.0, NAN, -INF])
    y = FA4_SM90.exp2(x).y
    assert y.dtype == torch.float32
    assert torch.equal(y.nan_to_num(7.0), torch.tensor([1.0, 0.5, y[2], 0.0, 7.0, 0.0]))
    assert abs(y[2] - 0.5**0.5) < 2**-22
