"""FA4's own device functions equal our second reading of them: exponential, softmax step, finalize, reductions."""

import numpy as np
import pytest

from fa4verify import kernels
from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.arithmetic.fma import fma_array
from fa4verify.arithmetic.mufu import ex2_array
from fa4verify.kernels.emulated.softmax_sm90 import finish_sm90
from fa4verify.kernels.emulated.softmax_sm100 import step_sm100

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_100a") is not None, reason=str(kernels.availability("fa4@sm_100a"))
)
if kernels.availability("fa4@sm_100a") is None:
    from fa4verify.kernels.shipped import micro

LN2_SCALE = np.float32(0.18033688)  # log2 e / 8: head dim 64


def bits(x):
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def differing(a, b):
    """Count elements with other bits; NaN equals NaN."""
    return int(np.count_nonzero((bits(a) != bits(b)) & ~(np.isnan(a) & np.isnan(b))))


def exponents(count, seed):
    """Return bit patterns of every class, the edges of the recipe among them."""
    generator = np.random.Generator(np.random.Philox(seed))
    anything = generator.integers(0, 2**32, count // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    working = -np.exp2(generator.uniform(-30, 7, count // 2)).astype(np.float32)
    edges = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, -127, -126, -126.5, -1, -1e-40, 1e-40, 1, 127, 128, 129], np.float32
    )
    near = np.concatenate([np.nextafter(edges, np.float32(side)) for side in (-np.inf, np.inf)])
    return np.concatenate([anything, working, edges, near]).astype(np.float32)


@pytest.mark.parametrize(("degree", "packed"), [(degree, True) for degree in range(1, 6)] + [(3, False)])
def test_the_exponential_equals_ours(degree, packed):
    x = exponents(2**15, degree)
    expected = ex2_emulation_array(x, POLY_EX2[degree], ftz=not packed)
    assert differing(micro.ex2_emulation(x, degree, packed=packed), expected) == 0


def test_another_coefficient_is_seen():
    x = exponents(2**12, 0)
    c0, c1, c2, c3 = POLY_EX2[3]
    assert differing(micro.ex2_emulation(x), ex2_emulation_array(x, (c0, c1, c2, c3 + 2.0**-27))) > 50


def test_degree_0_is_fa4s_own_fault():
    with pytest.raises(kernels.Unsupported, match="object of type 'float' has no len"):
        micro.ex2_emulation(np.zeros(1, np.float32), 0)


def scores(rows, columns, seed):
    generator = np.random.Generator(np.random.Philox(seed))
    s = generator.standard_normal((rows, columns)) * generator.choice([1, 10, 100], (rows, 1))
    s[: rows // 8, columns // 2 :] = -np.inf  # a mask
    s[1] = -np.inf
    s[2, 5] = np.nan
    s[3, 40] = np.nan
    s[4, 7] = np.inf
    return s.astype(np.float32)


def emulated(columns, freq, start):
    """Return the columns that take the polynomial, from the rule of `apply_exp2_convert` read a second time."""
    fragments = columns // 32
    j, k = np.divmod(np.arange(columns), 32)
    pair = k - k % 2
    return (freq > 0) & (pair % max(freq, 1) >= freq - 4) & (j < fragments - 1) & (j >= start)


@pytest.mark.parametrize(("freq", "start", "threshold"), [(0, 0, 8.0), (10, 1, 8.0), (16, 0, 0.0)])
def test_one_softmax_step_equals_ours(freq, start, threshold):
    columns, rows = 128, 96
    pattern = emulated(columns, freq, start)
    coefficients = np.array(POLY_EX2[3], np.float32)
    state = None
    ours_max, ours_sums = np.full(rows, -np.inf, np.float32), np.zeros((rows, 4), np.float32)
    for tile in range(3):
        s = scores(rows, columns, 100 + tile)
        options = {"threshold": threshold, "ex2_emu_freq": freq, "ex2_emu_start_frg": start}
        before = (None, None) if state is None else (state.row_max, state.row_sum)
        state = micro.softmax_step(s, *before, float(LN2_SCALE), p_dtype="fp16", **options)
        p, rescale = s.copy(), np.zeros(rows, np.float32)
        for row in range(rows):
            old, seen = ours_max[row], p[row][~np.isnan(p[row])]
            largest = np.float32(max(old, seen.max())) if tile else np.float32(seen.max())
            ours_max[row], rescale[row] = step_sm100(
                p[row], LN2_SCALE, old, largest, ours_sums[row], tile == 0, np.float32(threshold), np.float32(0),
                pattern, coefficients, False,
            )  # fmt: skip
        assert differing(state.row_max, ours_max) == 0
        assert differing(state.rescale, rescale) == 0
        assert differing(state.exponentials, p) == 0
        assert differing(state.row_sum, ours_sums[:, 0]) == 0
        with np.errstate(over="ignore"):
            assert differing(state.probabilities, p.astype(np.float16).astype(np.float32)) == 0


def test_an_offset_is_added_in_one_rounding():
    """max_offset - row_max * scale is one FFMA after ptxas: FA4's FP8 kernels alone have an offset that is not 0."""
    s = np.random.Generator(np.random.Philox(9)).standard_normal((64, 32)).astype(np.float32)
    found = micro.softmax_step(s, None, None, float(LN2_SCALE), offset=4)
    largest = s.max(axis=1, keepdims=True)
    scale = np.broadcast_to(LN2_SCALE, s.shape)
    bias = fma_array(-largest, LN2_SCALE, np.float32(4))
    assert differing(found.exponentials, ex2_array(fma_array(s, scale, np.broadcast_to(bias, s.shape)))) == 0
    for row in range(len(s)):
        ours = s[row].copy()
        none = np.zeros(32, np.bool_), np.array(POLY_EX2[3], np.float32), False
        tau, four = np.float32(0), np.float32(4)
        step_sm100(ours, LN2_SCALE, tau, largest[row, 0], np.zeros(4, np.float32), True, tau, four, *none)
        assert differing(found.exponentials[row], ours) == 0
    twice = np.float32(4) - largest * LN2_SCALE
    assert np.any(twice != bias), "two roundings can be told apart"


@pytest.mark.parametrize("has_sink", [False, True])
def test_finalize_equals_ours(has_sink):
    generator = np.random.Generator(np.random.Philox(7))
    rows = 200
    largest = (generator.standard_normal(rows) * 50).astype(np.float32)
    sums = np.exp2(generator.uniform(-20, 20, (rows, 4))).astype(np.float32)
    largest[0], sums[0] = -np.inf, 0
    sums[1, 2], sums[2] = np.nan, 0
    sinks = (generator.standard_normal(rows) * 10).astype(np.float32)
    factor, lse = micro.finalize(largest, sums, float(LN2_SCALE), sinks if has_sink else None)
    expected = [finish_sm90(largest[i], sums[i], LN2_SCALE, has_sink, sinks[i], np.float32(0)) for i in range(rows)]
    assert differing(factor, np.array([f for f, _ in expected], np.float32)) == 0
    assert differing(lse, np.array([one for _, one in expected], np.float32)) == 0


def eight_partials(x, initial):
    """Add in FA4's order for SM100, written out: pairs go to four packed sums, which meet as a tree."""
    partial = [np.float32(value) for value in x[:8]]
    if initial is not None:
        partial[0], partial[1] = np.float32(initial) + partial[0], np.float32(0) + partial[1]
    for j in range(8, len(x), 8):
        partial = [a + b for a, b in zip(partial, x[j : j + 8], strict=True)]
    p = [partial[0] + partial[2], partial[1] + partial[3], partial[4] + partial[6], partial[5] + partial[7]]
    return (p[0] + p[2]) + (p[1] + p[3])


@pytest.mark.parametrize("has_initial", [False, True])
def test_reductions_add_in_the_order_that_is_claimed(has_initial):
    generator = np.random.Generator(np.random.Philox(8))
    x = (generator.standard_normal((130, 64)) * np.exp2(generator.uniform(-12, 12, (130, 64)))).astype(np.float32)
    initial = x[:, 0].copy() if has_initial else None
    eight = np.array([eight_partials(row, row[0] if has_initial else None) for row in x], np.float32)
    one_by_one = np.zeros(130, np.float32) if initial is None else initial.copy()
    for j in range(64):
        one_by_one = one_by_one + x[:, j]
    found = {target: micro.reduction(x, initial, adds=True, target=target) for target in ("sm_90a", "sm_100a")}
    assert differing(found["sm_100a"], eight) == 0
    assert differing(found["sm_90a"], one_by_one) == 0
    assert differing(eight, one_by_one) > 60, "the orders can be told apart"
    assert differing(micro.reduction(x, initial, adds=False), x.max(axis=1)) == 0


def test_the_exponential_equals_ours_in_every_stratum():
    """One drawn number of every 64 neighbours among the 2^32 float32 numbers: 2^26, FA4's degree."""
    generator = np.random.Generator(np.random.Philox(0))
    for block in range(16):
        stratum = np.arange(block << 22, (block + 1) << 22, dtype=np.uint32) << np.uint32(6)
        x = (stratum | generator.integers(0, 64, 1 << 22, dtype=np.uint32)).view(np.float32)
        assert differing(micro.ex2_emulation(x), ex2_emulation_array(x)) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(16))
def test_the_exponential_equals_ours_on_all_floats(part):
    """2^28 of the 2^32 float32 numbers a part, FA4's degree."""
    for block in range(64):
        first = (part << 28) + (block << 22)
        x = np.arange(first, first + (1 << 22), dtype=np.uint64).astype(np.uint32).view(np.float32)
        assert differing(micro.ex2_emulation(x), ex2_emulation_array(x)) == 0
