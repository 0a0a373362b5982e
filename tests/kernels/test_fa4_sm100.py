"""fa4-sm100: every bit against a scalar model, FA4's own configuration, lanes, threshold, and what NaN does."""

import warnings

import numpy as np
import pytest
import torch

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.kernels import Unsupported
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90
from fa4verify.kernels.emulated.fa4_sm100 import FA4_SM100
from fa4verify.kernels.emulated.tuning_sm100 import configure, emulated_columns
from fa4verify.kernels.emulated.visibility import resolve

from .attention64 import attention64, check
from .scalar_model import Model, same_bits
from .test_fa4_sm90 import BF16, FEATURES, FP16, INF, NAN, draw

EMULATED_16_1 = tuple(column for start in (44, 60, 76, 92) for column in range(start, start + 4))
POLYNOMIAL_ERROR = 8.8e-5


def spread(*runs):
    """Columns of runs of four: '38-41 48-51' of docs/fa4.md is spread(38, 48)."""
    return tuple(column for start in runs for column in range(start, start + 4))


NEAREST = tuple(float(np.float32(c)) for c in (1.0, 0.693, 0.24, 0.056))
SCALAR_CASES = {
    "plain": ((4, 390, 64), {}, {}),
    "fp16, hd 128": ((3, 260, 128), {"dtype": FP16, "scale": 3.0}, {}),
    "causal, more queries than keys": ((140, 5, 16), {}, {"causal": True}),
    "outliers": ((5, 520, 64), {"outliers": True}, {}),
    "no lazy maximum": ((5, 520, 64), {"outliers": True}, {"rescale_threshold": 0.0}),
    "threshold 1, degree 1": ((5, 390, 64), {"scale": 2.0}, {"rescale_threshold": 1.0, "degree": 1}),
    "all columns": ((4, 260, 64), {}, {"emulated_columns": "all"}),
    "no columns": ((4, 260, 64), {}, {"emulated_columns": "none"}),
    "odd columns": ((4, 260, 64), {}, {"emulated_columns": [1, 2, 100, 127]}),
    "own coefficients": ((4, 260, 64), {}, {"coefficients": (1.0, 0.75, 0.25)}),
    "reduced to nearest": ((4, 260, 64), {}, {"coefficients": NEAREST, "range_reduction": "nearest"}),
    "reduced to nearest, outliers": (
        (5, 520, 64),
        {"outliers": True},
        {"coefficients": NEAREST, "range_reduction": "nearest", "emulated_columns": "all", "causal": True},
    ),
    "window": ((4, 390, 64), {}, {"window_size": (150, 100)}),
    "negative scale": ((3, 390, 64), {}, {"softmax_scale": -0.3}),
    "scale 0, hidden keys": ((3, 130, 64), {}, {"softmax_scale": 0.0}),
    "softcap": ((3, 140, 64), {"scale": 3.0}, {"softcap": 5.0}),
    "sink": ((3, 260, 64), {}, {"learnable_sink": torch.tensor([1.5])}),
    "sink, row without keys": ((5, 3, 64), {}, {"causal": True, "learnable_sink": torch.tensor([-2.5])}),
    "P in e4m3": ((3, 260, 64), {}, {"p_dtype": "e4m3"}),
    "P in e5m2": ((3, 260, 64), {"dtype": FP16}, {"p_dtype": "e5m2"}),
}


@pytest.mark.parametrize("name", SCALAR_CASES)
def test_bits_of_the_scalar_model(name):
    (sq, sk, d), inputs, options = SCALAR_CASES[name]
    q, k, v = draw(sq, sk, d, **inputs)
    mask = resolve(options.get("causal", False), options.get("window_size", (None, None)))
    columns = options.get("emulated_columns", EMULATED_16_1)
    sink = options.get("learnable_sink")
    model = Model(
        256 if sq > 128 else 128,
        128,
        left=mask.left,
        right=mask.right_bound,
        blackwell=True,
        threshold=options.get("rescale_threshold", 8.0),
        columns=frozenset(
            {"all": range(128), "none": ()}.get(columns, columns) if isinstance(columns, str) else columns
        ),
        coefficients=np.array(options.get("coefficients", POLY_EX2[options.get("degree", 3)]), np.float32),
        nearest=options.get("range_reduction") == "nearest",
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        sink=None if sink is None else float(sink[0]),
        p_dtype=options.get("p_dtype"),
    )
    o, lse = model(q[0, :, 0], k[0, :, 0], v[0, :, 0])
    out = FA4_SM100.forward(q, k, v, **options)
    assert same_bits(out.o[0, :, 0], o)
    assert same_bits(out.lse[0, 0], torch.from_numpy(lse))


@pytest.mark.parametrize(
    "twin",
    [
        {"degree": 2},
        {"range_reduction": "nearest"},
        {"coefficients": (*POLY_EX2[3][:3], POLY_EX2[3][3] * 2)},
        {"rescale_threshold": 0.0},
        {"emulated_columns": "none"},
        {"ex2_emu_res": 6},
        {"ex2_emu_start_frg": 0},
        {"ex2_emu_freq": 10},
    ],
    ids=str,
)
def test_every_number_reaches_the_bits(twin):
    q, k, v = draw(64, 520, 64, outliers=True)
    other, right = FA4_SM100.forward(q, k, v, **twin), FA4_SM100.forward(q, k, v)
    assert not same_bits(other.lse, right.lse)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("options", FEATURES, ids=str)
@pytest.mark.parametrize("lengths", [(1, 1), (65, 64), (130, 257)])
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
        exp2_error=POLYNOMIAL_ERROR,
    )
    check(FA4_SM100.forward(q, k, v, **options), truth)


def single_tile_scores(scores, dtype=BF16):
    """q, k with one-dimensional scores: S = scores, exactly, for one query."""
    q = torch.zeros(1, 1, 1, 64, dtype=dtype)
    q[..., 0] = 1
    k = torch.zeros(1, len(scores), 1, 64, dtype=dtype)
    k[0, :, 0, 0] = torch.tensor(scores, dtype=dtype)
    assert torch.equal(k[0, :, 0, 0].double(), torch.tensor(scores, dtype=torch.float64))
    return q, k, torch.ones(1, len(scores), 1, 64, dtype=dtype)


def test_the_lane_map_shows_in_lse():
    """A dominant key just below an integer exponent, moved over the columns; LSE is 8.5e-5 off on lanes."""
    off = []
    for column in range(128):
        scores = [-300.0] * 128
        scores[column] = 3.0  # log2 e scaled by FA4's own constants: the FMA residual of the maximum
        q, k, v = single_tile_scores(scores)
        # A scale whose product with the maximum rounds up, so that the winner's exponent is slightly negative.
        lse = FA4_SM100.forward(q, k, v, softmax_scale=SCALE_WITH_NEGATIVE_RESIDUAL).lse
        off.append(abs(float(lse) - 3.0 * SCALE_WITH_NEGATIVE_RESIDUAL) > 5e-5)
    assert tuple(np.flatnonzero(off)) == EMULATED_16_1


def _negative_residual_scale():
    for numerator in range(1024, 2048):
        scale = np.float32(numerator / 1024)
        c = scale * np.float32(np.log2(np.e))
        product = np.float64(3.0) * np.float64(c)
        if product < np.float64(np.float32(product)):
            return float(scale)
    raise AssertionError("no scale found")


SCALE_WITH_NEGATIVE_RESIDUAL = _negative_residual_scale()


@pytest.mark.parametrize(("tail", "skipped"), [(0.0, True), (2.0**-20, False)])
def test_a_rise_of_exactly_the_threshold_is_skipped_the_next_float_is_not(tail, skipped):
    """Hazard 19 of docs/fa4.md, one fp32 ulp apart: the second column of q and k lifts a score of 8 to the next float.

    The scale makes c = 1 exactly, so scores are log2 units; the right half of the keys comes first.
    """
    q, k, v = single_tile_scores([8.0] + [0.0] * 255)
    q[..., 1] = 1
    k[0, 0, 0, 1] = tail
    out = FA4_SM100.forward(q, k, v, softmax_scale=SCALE_OF_ONE)
    assert (out.activity["rescales_skipped"], out.activity["rescales_done"]) == ((1, 0) if skipped else (0, 1))
    assert out.activity["max_p"] == (256.0 if skipped else 1.0)


def _scale_of_one():
    log2_e = np.float32(np.log2(np.e))
    near = np.float32(1) / log2_e
    candidates = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(1))]
    return next(float(scale) for scale in candidates if scale * log2_e == 1)


SCALE_OF_ONE = _scale_of_one()


def test_staleness_is_cumulative():
    """Three rises of 5: the second is measured against the adopted maximum, so it is done; the third skipped."""
    scores = [15.0] * 128 + [10.0] * 128 + [5.0] * 128 + [0.0] * 128
    q, k, v = single_tile_scores(scores)
    out = FA4_SM100.forward(q, k, v, softmax_scale=float(np.log(2)))
    assert (out.activity["rescales_skipped"], out.activity["rescales_done"]) == (2, 1)
    assert out.activity["rows_dominant_not_one"] == 1


def test_hazard_1_a_nan_key_is_swallowed_on_emulated_columns():
    for column in (43, 44, 47, 48, 95, 96):
        q, k, v = draw(3, 128, 64)
        k[0, column] = NAN
        out = FA4_SM100.forward(q, k, v)
        if column in EMULATED_16_1:
            others = [j for j in range(128) if j != column]
            check(out, attention64(q, k[:, others], v[:, others], exp2_error=POLYNOMIAL_ERROR))
        else:
            assert out.o.isnan().all()
            assert torch.isneginf(out.lse).all()


def test_hazard_2_an_infinite_score():
    """Emulated lane: in the tile visited last every weight is 0 and the row looks empty; earlier it turns to NaN."""
    for key, o_is_nan in ((44, False), (43, True), (128 + 44, True)):
        q, k, v = draw(1, 256, 64)
        q[..., 0] = 1
        k[0, key, 0, 0] = INF
        out = FA4_SM100.forward(q, k, v)
        assert torch.isneginf(out.lse).all()
        if key == 128 + 44:  # the factor NaN alone does not make the warp rescale, so O stays 0
            assert not out.o.any()
        else:
            assert bool(out.o.isnan().all()) is o_is_nan
            assert o_is_nan or not out.o.any()


def test_hazard_3_a_nan_query_reports_minus_infinity():
    q, k, v = draw(40, 300, 64)
    q[0, 7, 0, 3] = NAN
    out, clean = FA4_SM100.forward(q, k, v), FA4_SM100.forward(*draw(40, 300, 64))
    assert out.o[0, 7].isnan().all()
    assert torch.isneginf(out.lse[0, 0, 7])
    others = [r for r in range(40) if r != 7]
    assert same_bits(out.o[:, others], clean.o[:, others])


@pytest.mark.parametrize(("p_dtype", "share"), [("e4m3", 0.117), ("e5m2", 0.938), (None, 1.0)])
def test_a_saturated_p_loses_the_dominant_key(p_dtype, share):
    """A rise of 3.9 under threshold 4 and offset 8: P is clamped in the numerator only, and LSE stays right."""
    q, k, v = single_tile_scores([3.90625] + [-100.0] * 127 + [0.0] * 128)
    v.zero_()
    v[0, 0] = 1
    out = FA4_SM100.forward(
        q, k, v, softmax_scale=float(np.log(2)), p_dtype=p_dtype, rescale_threshold=4.0, max_offset=8.0
    )
    weight = 2**3.90625 / (2**3.90625 + 128)
    assert abs(float(out.o[0, 0, 0, 0]) / weight - share) < 0.01
    assert abs(float(out.lse) - np.log(2**3.90625 + 128)) < 1e-4
    assert (out.activity["p_saturated"] > 0) == (p_dtype is not None and share < 0.9)


def test_what_the_threshold_costs():
    """1.06x, 2.4x and 4.2x for tau 8 over 0 in bf16 (docs/studies.md): O before its rounding, which hides most."""
    expected = {"normal": (1.02, 1.12), "outlier": (1.8, 3.4), "large": (3.0, 5.0)}
    for name, (low, high) in expected.items():
        q, k, v = draw(128, 4096, 128, scale=4.0 if name == "large" else 1.0)
        if name == "outlier":
            generator = np.random.Generator(np.random.Philox(5))
            for x in (q, k, v):
                noise = 10 * generator.standard_normal(x.shape) * (generator.random(x.shape) < 1e-3)
                x += torch.from_numpy(noise).to(x.dtype)
        truth = attention64(q, k, v)[0]
        rmse = {
            tau: (FA4_SM100.forward(q, k, v, rescale_threshold=tau, o_dtype="fp32").o.double().numpy() - truth).std()
            for tau in (0.0, 8.0)
        }
        assert low < rmse[8.0] / rmse[0.0] < high, name


def test_without_its_two_tricks_it_is_hopper_but_for_the_sum():
    """No polynomial, no lazy maximum: same P, so O differs through the last bits of the row sum only."""
    q, k, v = draw(100, 500, 128, outliers=True)
    blackwell = FA4_SM100.forward(q, k, v, emulated_columns="none", rescale_threshold=0.0)
    hopper = FA4_SM90.forward(q, k, v)
    assert (blackwell.o == hopper.o).double().mean() > 0.999
    assert abs(blackwell.lse - hopper.lse).max() < 1e-5


def test_activity():
    q, k, v = draw(100, 300, 64, outliers=True)
    out = FA4_SM100.forward(q, k, v)
    # Tiles 0 and 1 are whole, keys 256 to 299 are the columns 0 to 43 of tile 2, below the first emulated one.
    assert out.activity["emulated_exp2"] == 100 * 2 * 16
    assert out.activity["hardware_exp2"] == 100 * 300 - 100 * 2 * 16
    assert out.activity["rescales_skipped"] == out.activity_per_row["rescales_skipped"].sum() > 0
    assert out.activity["rows_dominant_not_one"] > 0
    assert 1 < out.activity["max_p"] <= 256


TABLE = [  # docs/fa4.md, emulated columns: shape, mask, emulated columns
    ({"head_dim": 128, "seqlen_q": 1024}, (False, False), spread(38, 48, 58, 70, 80, 90)),
    ({"head_dim": 128, "seqlen_q": 1024, "disable_2cta": True}, (False, False), EMULATED_16_1),
    ({"head_dim": 128, "seqlen_q": 256}, (False, False), EMULATED_16_1),
    ({"head_dim": 128, "seqlen_q": 64, "heads": 4}, (False, False), spread(38, 48, 58, 70, 80, 90)),
    ({"head_dim": 96, "seqlen_q": 1024}, (False, False), EMULATED_16_1),
    ({"head_dim": 96, "seqlen_q": 1024, "heads": 4}, (False, False), spread(38, 48, 58, 70, 80, 90)),
    ({"head_dim": 64, "seqlen_q": 1024, "heads": 4}, (False, False), EMULATED_16_1),
    ({"head_dim": 128, "seqlen_q": 1024}, (True, False), EMULATED_16_1),
    ({"head_dim": 128, "seqlen_q": 1024}, (False, True), EMULATED_16_1),
    ({"head_dim": 192, "head_dim_v": 128, "seqlen_q": 1024}, (False, False), spread(12, 28, 44, 60, 76, 92)),
    ({"head_dim": 192, "head_dim_v": 128, "seqlen_q": 1024}, (True, False), spread(60, 92)),
    ({"head_dim": 192, "head_dim_v": 128, "seqlen_q": 100}, (False, False), ()),
    ({"head_dim": 192, "head_dim_v": 128, "seqlen_q": 1024}, (False, True), ()),
    ({"head_dim": 256, "seqlen_q": 1024}, (True, False), spread(10, 24, 42, 56, 74, 88)),
    ({"head_dim": 256, "seqlen_q": 1024}, (False, True), spread(10, 24, 42, 56, 74, 88)),
    ({"head_dim": 256, "seqlen_q": 100, "batch": 80}, (False, False), ()),
    ({"head_dim": 256, "seqlen_q": 100, "batch": 74}, (False, False), spread(10, 24, 42, 56, 74, 88)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "mask", "columns"), TABLE, ids=str)
def test_emulated_columns_of_a_shape(shape, mask, columns):
    shape = {"head_dim_v": shape["head_dim"], "batch": 1, "heads": 1, "heads_kv": 1} | shape
    chosen = configure(**shape, causal=mask[0], local=mask[1])
    assert emulated_columns(chosen.freq, 4, chosen.start) == columns


def test_columns_never_lie_in_the_last_fragment_and_come_in_pairs():
    for freq in range(2, 40, 2):
        for res in (2, 4, 6):
            columns = emulated_columns(freq, res, 0)
            assert all(column < 96 for column in columns)
            assert {column ^ 1 for column in columns} == set(columns)
    assert emulated_columns(0, 4, 0) == emulated_columns(16, 4, 1, tile_n=64) == ()


def test_refusals():
    for d, dv in ((136, 136), (192, 192), (256, 128), (4, 4)):
        q, k, v = draw(4, 4, d, dv=dv)
        with pytest.raises(Unsupported, match="not supported on SM100"):
            FA4_SM100.forward(q, k, v)
    q, k, v = draw(4, 4, 64)
    for options in (
        {"degree": 9},
        {"range_reduction": "up"},
        {"coefficients": (1.0, 0.7)},
        {"coefficients": ("1", "0.7")},
        {"coefficients": ("0x1p+0", "0x1.0000001p-1")},
        {"coefficients": ()},
        {"p_dtype": "fp8"},
        {"o_dtype": "e4m3"},
        {"emulated_columns": "some"},
        {"emulated_columns": [128]},
    ):
        with pytest.raises(ValueError, match="expected"):
            FA4_SM100.forward(q, k, v, **options)


def test_coefficients_in_hex_are_those_of_the_degree():
    """And the exp2 alone takes them too, with either range reduction."""
    q, k, v = draw(3, 260, 64)
    words = [c.hex() for c in POLY_EX2[3]]
    written, named = FA4_SM100.forward(q, k, v, coefficients=words), FA4_SM100.forward(q, k, v)
    assert same_bits(written.o, named.o)
    assert same_bits(written.lse, named.lse)
    assert written.provenance == named.provenance
    x = torch.tensor([-0.25, -0.75, -1.5, -2.5])
    y = FA4_SM100.exp2(x, coefficients=["0x1p+0", "0x1p-1"], range_reduction="nearest")
    # n = 0, -1, -2, -2 (ties to even) and f = -1/4, 1/4, 1/2, -1/2
    assert torch.equal(y.y, torch.tensor([0.875, 0.5625, 0.3125, 0.1875]))
    assert "nearest" in y.provenance["model"]
    assert torch.equal(FA4_SM100.exp2(x, coefficients=["0x1p+0", "0x1p-1"]).y[:2], torch.tensor([0.6875, 0.5625]))


def test_exp2_is_the_polynomial():
    x = torch.tensor([0.0, -1.0, -0.5, -200.0, NAN, -INF, -(2.0**-26)])
    y = FA4_SM100.exp2(x).y
    assert torch.equal(y[[0, 1, 3, 4, 5]], torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0]))
    assert float(y[6]) == float.fromhex("0x1.fff4d6p-1")  # 0x3F7FFA6B: the fraction rounds to 1
    assert abs(FA4_SM100.exp2(x, degree=5).y[2] - 0.5**0.5) < 2e-7


@pytest.fixture(scope="module")
def fa4():
    """FA4's own classes, told to compile for sm_100a."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("flash_attn.cute.flash_fwd_sm100")
        from cutlass.base_dsl.arch import Arch
    return module, Arch


def test_schedule_equals_fa4s(fa4, monkeypatch):
    """Every configuration through FlashAttentionForwardSm100's constructor and the selection of its __call__."""
    module, arch = fa4
    monkeypatch.setattr(module.BaseDSL._get_dsl(), "get_arch_enum", lambda: arch.sm_100a)
    for head_dim, head_dim_v in ((64, 64), (72, 72), (96, 96), (128, 128), (192, 128), (256, 256)):
        for causal, local in ((False, False), (True, False), (False, True)):
            for heads in (1, 4):
                for seqlen_q in (40, 128, 200, 1024):
                    ours = configure(
                        head_dim=head_dim,
                        head_dim_v=head_dim_v,
                        seqlen_q=seqlen_q,
                        batch=1,
                        heads=heads,
                        heads_kv=1,
                        causal=causal,
                        local=local,
                    )
                    theirs = module.FlashAttentionForwardSm100(
                        head_dim,
                        head_dim_v,
                        qhead_per_kvhead=heads,
                        is_causal=causal,
                        is_local=local,
                        pack_gqa=ours.pack_gqa,
                        q_stage=ours.stages,
                        use_2cta_instrs=ours.two_cta,
                    )
                    freq = 0
                    if theirs.enable_ex2_emu:  # as in __call__
                        freq = theirs._tune.get("ex2_emu_freq", 16)
                        if ours.pack_gqa and theirs.head_dim_padded > 64 and not causal and not local:
                            freq = theirs._tune.get("ex2_emu_freq", 10)
                    assert ours.freq == freq
                    assert freq == 0 or ours.start == theirs._tune.get("ex2_emu_start_frg", 1)
                    assert ours.tile_m == theirs.cta_tiler[0] * theirs.cta_group_size
