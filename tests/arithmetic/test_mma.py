"""The tensor-core step against Python integers (mma_oracle.py), published hardware probes and itself.

Everything is compared as bits, NaN included (there is one NaN). Wrong rules that the vectors must notice are listed in
MUTANTS: the implementation may not agree with any of them on the adversarial vectors, and agrees with the true rule.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4verify.arithmetic.formats import FORMATS, decode, round_to
from fa4verify.arithmetic.mma import (
    ARCHITECTURES,
    Step,
    accumulate,
    matmul,
    prepare_a,
    prepare_b,
    step_element,
)

from .mma_oracle import EMIN, Rule, chain

# Terms, F, exponent floor, fraction bits kept: written out here so that a changed row in the package is noticed.
ROWS = {
    ("sm80", "bf16"): (8, 24, -132, 23),
    ("sm80", "fp16"): (8, 24, -132, 23),
    ("sm89", "bf16"): (8, 24, -132, 23),
    ("sm89", "fp16"): (8, 24, -132, 23),
    ("sm89", "e4m3"): (16, 13, -132, 13),
    ("sm89", "e5m2"): (16, 13, -132, 13),
    ("sm90", "bf16"): (16, 25, -133, 23),
    ("sm90", "fp16"): (16, 25, -133, 23),
    ("sm90", "e4m3"): (32, 13, -133, 13),
    ("sm90", "e5m2"): (32, 13, -133, 13),
    ("sm100", "bf16"): (16, 25, -133, 23),
    ("sm100", "fp16"): (16, 25, -133, 23),
    ("sm100", "e4m3"): (32, 25, -133, 23),
    ("sm100", "e5m2"): (32, 25, -133, 23),
}
every_row = pytest.mark.parametrize(("architecture", "dtype"), list(ROWS), ids=str)


def rule_of(architecture: str, dtype: str) -> Rule:
    return Rule(*ROWS[architecture, dtype], emin=EMIN[dtype])


def bits(x) -> np.ndarray:
    return np.asarray(x, np.float32).view(np.uint32)


def oracle(a, b, c, rule) -> np.ndarray:
    out = [
        [
            chain([float(x) for x in row], [float(x) for x in column], float(c[m, n]), rule)
            for n, column in enumerate(b.T)
        ]
        for m, row in enumerate(a)
    ]
    out = np.array(out).astype(np.float32).reshape(c.shape)
    out[np.isnan(out)] = np.uint32(0x7FFFFFFF).view(np.float32)
    return out


def report(got, want, a, b, c) -> str:
    m, n = np.argwhere(bits(got) != bits(want))[0]
    hexes = [[float(x).hex() for x in v] for v in (a[m], b[:, n])]
    return (
        f"[{m}, {n}]: got {float(got[m, n]).hex()}, want {float(want[m, n]).hex()} "
        f"({np.count_nonzero(bits(got) != bits(want))} differ)\na {hexes[0]}\nb {hexes[1]}\nc {float(c[m, n]).hex()}"
    )


def assert_equals_oracle(a, b, c, architecture, dtype):
    got = matmul(a, b, c, architecture=architecture, dtype=dtype)
    want = oracle(a, b, c, rule_of(architecture, dtype))
    assert np.array_equal(bits(got), bits(want)), report(got, want, a, b, c)


def draw(rng, shape, dtype, spread=0):
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
    return round_to(x, FORMATS[dtype], saturate=True).astype(np.float32)


def arrays(a, b, c, rule, dtype):
    """Pad to whole steps; None if a value is no value of the dtype."""
    length = -(-len(a) // rule.k_step) * rule.k_step
    row, column = np.zeros((1, length), np.float32), np.zeros((length, 1), np.float32)
    row[0, : len(a)], column[: len(b), 0] = a, b
    fits = all(np.array_equal(round_to(x, FORMATS[dtype]), x) for x in (row, column))
    return (row, column, np.array([[c]], np.float32)) if fits else None


# --- published probes -------------------------------------------------------------------------------------------------


def probes(rule: Rule, dtype: str):
    """Yield (name, a, b, c, result): what MMA-Sim's behaviour tests assert of A100, Ada and H100 hardware.

    From microsoft/MMA-Sim, tests/nv (paper arXiv:2511.10909), values re-derived for each F.
    """
    large, small = 2.0**7, 2.0**-9
    K = rule.k_step
    for i in (0, 1, K - 1):
        x = [small] * K
        x[i] = large
        yield f"c cancels product {i}, the small products are cut", x, x, -large * large, 0.0
    x = [small] * K
    x[1], x[2] = large, -large
    y = [abs(v) for v in x]
    yield "two products cancel, the rest and c are cut", x, y, small * small, 0.0

    def sized(p):  # y * z = 2^p
        return 2.0 ** (p // 2), 2.0 ** (p - p // 2)

    c, ulp = (2.0 - 2.0**-10) * 2.0**-14, 2.0**-24
    fits = -24 + rule.fraction_bits
    for p, want in ((fits, c), (fits + 1, c - ulp), (fits + 2, c - 3 * ulp)):
        if fits + 2 > 2 * FORMATS[dtype].emax:
            continue
        y, z = sized(p)
        kept = want if rule.output_bits == 23 else math.trunc(want * 2.0**28) * 2.0**-28  # 2^-15 - 13 bits
        for sign in (1.0, -1.0):
            yield f"c under products of 2^{p}", [y, -y], [z, z], sign * c, sign * kept
    y, z = sized(fits + 1)
    if rule.output_bits == 23:
        yield "2.25 y * z: exponent one more", [2.25 * y, -2.25 * y], [z, z], c, c - 3 * ulp
        yield "1.5 y * 1.5 z: exponent as y * z", [1.5 * y, -1.5 * y], [1.5 * z, 1.5 * z], c, c - ulp
    tiny = 2.0 ** EMIN[dtype]
    y = 2.0**-126 / tiny if tiny * tiny < 2.0**-126 else tiny
    z = y * 2.0 ** (rule.fraction_bits + 1)
    if z / 2 <= FORMATS[dtype].max_finite and z <= FORMATS[dtype].max_finite:
        yield "emin operands under 2^(F+1)", [tiny] * 4, [z, -z, y, y], 0.0, 0.0
        yield "emin operands under 2^F", [tiny] * 4, [z / 2, -z / 2, y, y], 0.0, 2 * tiny * y
        yield "subnormal operand: exponent emin", [tiny / 2, tiny / 2, tiny, tiny], [z, -z, y, y], 0.0, 0.0
    one_ulp = 2.0**-rule.output_bits
    for sign in (1.0, -1.0):
        yield "result toward zero", [sign * 0.25] * 4, [1.0] * 4, sign * 0.75 * one_ulp, sign
    if dtype == "bf16":
        top = (2.0 - 2.0**-23) * 2.0**127
        for sign in (1.0, -1.0):
            yield "largest finite number stays", [sign * 0.75] * 2, [2.0**127] * 2, sign * 0.25 * top, sign * top
            yield "2^128 overflows", [sign] * 2, [2.0**127] * 2, 0.0, sign * math.inf
            below = (1.0 - 2.0**-23) * 2.0**-126
            part = [sign * 0.75 * 2.0**-23]
            yield "subnormal result toward zero", part, [2.0**-126], sign * below, sign * below
            yield "less than the smallest subnormal", part, [2.0**-126], 0.0, 0.0
    yield "negative zeros give +0", [-0.0] * K, [1.0] * K, -0.0, 0.0


@every_row
def test_published_hardware_probes(architecture, dtype):
    rule = rule_of(architecture, dtype)
    asked = [(name, arrays(a, b, c, rule, dtype), want) for name, a, b, c, want in probes(rule, dtype)]
    asked = [(name, vector, want) for name, vector, want in asked if vector is not None]
    assert len(asked) > 9
    for name, vector, want in asked:
        got = matmul(*vector, architecture=architecture, dtype=dtype)
        assert bits(got) == bits([[want]]), f"{name}: got {float(got[0, 0]).hex()}, want {want.hex()}"
        assert bits(oracle(*vector, rule)) == bits([[want]]), f"{name}: the oracle differs"


# --- adversarial vectors and mutants ----------------------------------------------------------------------------------


def adversarial(rule: Rule, dtype: str):
    """Yield (a, b, c) of one or two steps, each made for one way of going wrong."""
    F, K = rule.fraction_bits, rule.k_step
    high = min(FORMATS[dtype].emax, 12)

    def product(p):  # operands of 2^p
        return 2.0 ** (p // 2), 2.0 ** (p - p // 2)

    # A small addend around the cut of 2^p, as product and as c, both signs, exact, halved and one and a half times.
    for p in (0, high):
        for below in range(F - 2, F + 3):
            x, y = product(p)
            for u, v in ((product(p - below)),):
                for factor in (1.0, 1.5, -1.0, -1.5):
                    yield [x, u * factor, -x], [y, v, y], 0.0
                    yield [x, -x], [y, y], factor * 2.0 ** (p - below)
                    yield [u * factor], [v], -(2.0**p)
    # Products in [2, 4): the exponent is that of the operands, not of the product.
    for p in (0, high):
        for below in range(F - 2, F + 3):
            x, y = product(p)
            u, v = product(p - below)
            yield [1.5 * x, u, -1.5 * x], [1.5 * y, v, 1.5 * y], 0.0
            yield [1.5 * x, u, -1.5 * x], [1.5 * y, 1.5 * v, 1.5 * y], 2.0**-below
    # The first half of a step cancels c, the second is below the cut all the same.
    x, y = product(high)
    u, v = product(high - F - 1)
    yield [x] + [0.0] * (K - 2) + [u], [y] + [0.0] * (K - 2) + [v], -(2.0**high)
    # Many terms just below the cut: together they would count. c among them.
    u, v = product(-F)
    yield [1.0] + [0.75 * u] * (K - 2) + [-1.0], [1.0] + [v] * (K - 2) + [1.0], 0.75 * 2.0**-F
    # Results that need truncation, near ties and near the next binade, and cancellation to a few bits.
    for c in (1.0, 1.0 - 2.0**-24, 1.0 + 2.0**-23, 2.0 - 2.0**-23):
        for sign in (1.0, -1.0):
            for q in (-24, -25, -13, -14):
                u, v = product(q)
                yield [sign * u, sign * u * 0.5, sign * u * 0.25], [v] * 3, sign * c
                yield [sign], [1.0], -sign * c
    # Carry: all terms as large as they come.
    biggest = float(round_to(np.float64(2.0 - 2.0**-12), FORMATS[dtype]))
    biggest = biggest if biggest < 2 else 2.0 - 2.0 ** (1 - FORMATS[dtype].precision)
    yield [biggest] * K, [biggest] * K, 2.0 - 2.0**-23
    yield [-biggest] * K, [biggest] * K, -(2.0 - 2.0**-23)
    # Subnormal operands against normal ones, and their own products.
    fmt = FORMATS[dtype]
    for low in (fmt.min_subnormal, fmt.min_normal - fmt.min_subnormal, fmt.min_normal):
        for other in (1.0, fmt.min_normal, 2.0**high):
            yield [low, low, -low], [other, -other / 2, other], 0.0
            yield [low] * 4, [other] * 4, -low * other
            yield [low, fmt.min_normal], [other, 2.0 ** (F - 1)] if fmt.emax >= F - 1 else [other, 2.0**high], 0.0
    # A subnormal operand has the exponent emin: a c that its own leading bit would let count is cut.
    z = 2.0 ** min(fmt.emax, 60)
    for c in (0.25, 0.5, 1.0):
        yield [fmt.min_normal / 2, -fmt.min_normal / 2], [z, z], c * fmt.min_normal * z * 2.0**-F
    if fmt.min_subnormal < 2.0**-24:
        # The floor: (2^n - 1) * 2^-(149 + n) + 2^-(149 + n) is the smallest fp32, unless the second is below the cut.
        for n, x, y in ((5, 31, 1), (6, 7, 9), (7, 127, 1), (8, 15, 17), (9, 7, 73), (10, 33, 31), (11, 23, 89)):
            yield [x * 2.0**-80, 2.0**-80], [y * 2.0 ** -(69 + n), 2.0 ** -(69 + n)], 0.0
        for q in range(-168, -146, 3):
            u, v = product(q)
            yield [1.984375 * u] * K, [1.984375 * v] * K, 0.0
            yield [1.984375 * u] * K, [-1.984375 * v] * K, 2.0**-149
        for c in (2.0**-149, 2.0**-126, 2.0**-126 - 2.0**-149):
            yield [2.0**-80, 2.0**-75], [2.0**-69, 1.5 * 2.0**-74], -c
        # Overflow, and products far beyond fp32 that cancel.
        yield [2.0**127, -(2.0**127)], [2.0**127, 2.0**127], 3.0
        yield [2.0**127, -(2.0**127), 1.0], [2.0**127, 2.0**127, 2.0**127], 3.0
        yield [2.0**127, 2.0**127, -(2.0**127)], [1.0, 1.0, 1.0], 1.5 * 2.0**127
    # Signed zeros.
    yield [-0.0] * K, [1.0] * K, -0.0
    yield [-0.0, 1.0, -1.0], [0.0, 1.0, 1.0], -0.0
    yield [0.0], [-1.0], 0.0
    # Two steps: c of the second is the truncated result of the first; here the order of the steps matters.
    yield [1.0] + [0.0] * (K - 1) + [u] * K, [1.0] + [0.0] * (K - 1) + [v] * K, 0.0
    yield [u] * K + [1.0] + [0.0] * (K - 1), [v] * K + [1.0] + [0.0] * (K - 1), 0.0


def vectors(rule, dtype):
    found = [arrays(*vector, rule, dtype) for vector in adversarial(rule, dtype)]
    return [vector for vector in found if vector is not None]


MUTANTS = {
    "terms rounded to nearest": {"nearest_terms": True},
    "terms cut toward minus infinity": {"floor_down_terms": True},
    "result rounded to nearest": {"nearest_result": True},
    "products normalised before alignment": {"normalised_products": True},
    "c added afterwards": {"c_apart": True},
    "negative zero": {"signed_zero": True},
}


@every_row
def test_adversarial_vectors_equal_the_oracle_and_no_mutant(architecture, dtype):
    rule = rule_of(architecture, dtype)
    found = vectors(rule, dtype)
    assert len(found) > 60
    got = [matmul(*vector, architecture=architecture, dtype=dtype) for vector in found]
    for result, vector in zip(got, found, strict=True):
        want = oracle(*vector, rule)
        assert np.array_equal(bits(result), bits(want)), report(result, want, *vector)
    mutants = {name: replace(rule, **change) for name, change in MUTANTS.items()}
    mutants |= {f"F = {F}": replace(rule, fraction_bits=F) for F in (rule.fraction_bits - 1, rule.fraction_bits + 1)}
    mutants |= {"steps half as long": replace(rule, k_step=rule.k_step // 2)}
    mutants |= {"one output bit more": replace(rule, output_bits=rule.output_bits + 1)} if rule.output_bits < 23 else {}
    mutants |= {"one output bit less": replace(rule, output_bits=rule.output_bits - 1)}
    if dtype == "bf16":
        mutants |= {f"floor {f}": replace(rule, floor=f) for f in (rule.floor - 1, rule.floor + 1, -300)}
    mutants |= {"subnormal operands normalised": replace(rule, normalised_subnormals=True)}
    for name, mutant in mutants.items():
        differ = sum(bits(x) != bits(oracle(*v, mutant)) for x, v in zip(got, found, strict=True))
        assert differ, f"no vector tells {architecture} {dtype} from: {name}"


def test_the_order_of_the_steps_matters():
    rng = np.random.default_rng(11)
    a, b = draw(rng, (8, 128), "bf16"), draw(rng, (128, 16), "bf16")
    backwards = np.arange(128).reshape(-1, 16)[::-1].ravel()
    forward, reversed_ = matmul(a, b), matmul(a[:, backwards], b[backwards])
    assert 0.1 < np.mean(bits(forward) != bits(reversed_)) < 1
    within = np.arange(128).reshape(-1, 16)[:, ::-1].ravel()  # the order inside a step does not
    assert np.array_equal(bits(forward), bits(matmul(a[:, within], b[within])))


# --- exhaustive -------------------------------------------------------------------------------------------------------


def one_product(x, y, output_bits):
    """Return x * y alone in a step, toward zero: exact in float64, and never cut, as 22 bits are fewer than F."""
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) * y.astype(np.float64)
        rounded = exact.astype(np.float32)
        beyond = np.abs(rounded.astype(np.float64)) > np.abs(exact)
        rounded = np.where(beyond & (np.abs(exact) < 2.0**128), np.nextafter(rounded, np.float32(0)), rounded)
    kept = (rounded.view(np.uint32) & ~np.uint32((1 << (23 - output_bits)) - 1)).view(np.float32)
    kept = np.where(np.isnan(exact), np.uint32(0x7FFFFFFF).view(np.float32), kept)
    return np.where(kept == 0, np.float32(0), kept)


@pytest.mark.parametrize("architecture", ["sm80", "sm90"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_operand_times_a_few(architecture, dtype):
    """All 65536 codes, in one lane of the step after the other, times 17 others: zeros, subnormals, extremes, NaN."""
    fmt = FORMATS[dtype]
    x = decode(np.arange(1 << 16), fmt).astype(np.float32)
    y = [0.0, -0.0, 1.0, -1.5, fmt.max_finite, -fmt.max_finite, fmt.min_normal, -fmt.min_subnormal, math.inf, -math.inf]
    y += [math.nan, fmt.min_normal - fmt.min_subnormal, 1.0 + 2.0 ** (1 - fmt.precision), 2.0**-7, -(2.0**9), 2.0**-24]
    y = np.array([*y, 0.3330078125 if dtype == "fp16" else 0.333984375], np.float32)
    K = ROWS[architecture, dtype][0]
    a, b = np.zeros((len(x), K), np.float32), np.zeros((K, len(y)), np.float32)
    a[np.arange(len(x)), np.arange(len(x)) % K] = x
    b[:] = y
    got = matmul(a, b, architecture=architecture, dtype=dtype)
    # The other lanes hold 0 * y, which is NaN for an infinite y.
    want = np.where(
        np.isfinite(y)[None, :], one_product(x[:, None], y[None, :], 23), np.uint32(0x7FFFFFFF).view(np.float32)
    )
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize(("architecture", "dtype"), [row for row in ROWS if row[1] in ("e4m3", "e5m2")], ids=str)
def test_every_product_of_two_fp8_numbers(architecture, dtype):
    x = decode(np.arange(256), FORMATS[dtype]).astype(np.float32)
    K = ROWS[architecture, dtype][0]
    a, b = np.zeros((256, K), np.float32), np.zeros((K, 256), np.float32)
    a[:, 3], b[3] = x, x
    got = matmul(a, b, architecture=architecture, dtype=dtype)
    assert np.array_equal(bits(got), bits(one_product(x[:, None], x[None, :], ROWS[architecture, dtype][3])))


# --- random, wide and through the window ------------------------------------------------------------------------------


@every_row
@pytest.mark.parametrize("spread", [0, 12, 60, 130])
def test_random_matrices_equal_the_oracle(architecture, dtype, spread):
    """Two and a half rows of vectors and a ragged panel: 5 x 19 elements, two steps; spread in binades."""
    rng = np.random.default_rng(spread)
    K = 2 * ROWS[architecture, dtype][0]
    a, b = draw(rng, (5, K), dtype, spread), draw(rng, (K, 19), dtype, spread)
    b[:, 3] = 0.0
    c = (rng.standard_normal((5, 19)) * np.exp2(rng.integers(-spread, spread + 1, (5, 19)))).astype(np.float32)
    assert_equals_oracle(a, b, c, architecture, dtype)


def test_every_scale_passes_through_the_window_unseen():
    """The same bf16 problem at every scale of a, with b far below, at and far above 1: vectors and single elements."""
    rng = np.random.default_rng(5)
    base, other = draw(rng, (1, 16), "bf16", 2), draw(rng, (16, 1), "bf16", 2)
    step = ARCHITECTURES["sm90"].step("bf16")
    rule = rule_of("sm90", "bf16")
    a = round_to(base * np.exp2(np.arange(-136.0, 129.0))[:, None], FORMATS["bf16"], saturate=True).astype(np.float32)
    b = round_to(other * np.exp2(np.array([-125.0, -60, -24, 0, 24, 60, 121]))[None, :], FORMATS["bf16"]).astype(
        np.float32
    )
    c = np.ldexp(np.float32(1.4142135), rng.integers(-140, 127, (len(a), 7))).astype(np.float32)
    got = c.copy()
    accumulate(prepare_a(a, step), prepare_b(b, step), got, True, step)
    want = oracle(a, b, c, rule)
    assert np.array_equal(bits(got), bits(want)), report(got, want, a, b, c)


def test_operands_spread_against_each_other():
    """Large a meets small b and small a large b: prescaled operands and products underflow fp32 by every amount."""
    far = np.arange(0, 250, 3)
    a, b = np.zeros((len(far), 16), np.float32), np.zeros((16, 3), np.float32)
    a[:, 0], a[:, 1] = 1.5 * 2.0**126, np.ldexp(1.9921875, 126 - far)
    b[0], b[1] = np.ldexp(1.0, [-126, -100, -3]), np.ldexp(1.9921875, [126, 20, 100])
    a, b = (round_to(x, FORMATS["bf16"]).astype(np.float32) for x in (a, b))
    c = np.full((len(far), 3), np.float32(2.0**-30 + 2.0**-53))
    assert_equals_oracle(a, b, c, "sm90", "bf16")
    assert_equals_oracle(b.T.copy(), a.T.copy(), c.T.copy(), "sm90", "bf16")


def test_large_rows_times_ever_smaller_columns():
    """Products of ordinary size whose scaled form comes down to the smallest fp32, with and without a second term."""
    far = np.arange(90, 127)
    a, b = np.zeros((2, 16), np.float32), np.zeros((16, len(far)), np.float32)
    a[:, 0], a[1, 1] = 1.5 * 2.0**126, 1.9921875 * 2.0**115
    b[0], b[1] = np.ldexp(1.0078125, -far), np.ldexp(1.9921875, -far)
    assert_equals_oracle(a, b, np.full((2, len(far)), np.float32(1 + 2.0**-23)), "sm90", "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_vectors_equal_single_elements(dtype):
    """64 x 80 elements, 8 steps, distributions as attention has them: P beside V, many zeros, outliers."""
    rng = np.random.default_rng(7)
    step = ARCHITECTURES["sm90"].step(dtype)
    fmt = FORMATS[dtype]
    p = round_to(np.exp2(-rng.exponential(20, (64, 128))), fmt).astype(np.float32)
    v = draw(rng, (128, 80), dtype, 3) * (rng.random((128, 80)) < 0.5)
    v = v.astype(np.float32)
    c = (rng.standard_normal((64, 80)) * np.exp2(-rng.exponential(30, (64, 80)))).astype(np.float32)
    got, want = c.copy(), c.copy()
    accumulate(prepare_a(p, step), prepare_b(v, step), got, True, step)
    for m in range(64):
        for n in range(80):
            for k in range(0, 128, 16):
                want[m, n] = step_element(p[m, k : k + 16], v[k : k + 16, n], want[m, n], step)
    assert np.array_equal(bits(got), bits(want))


CODES = st.integers(0, 0xFFFF)
SINGLE = st.floats(width=32)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(["bf16", "fp16"]), st.lists(st.tuples(CODES, CODES), min_size=1, max_size=32), SINGLE)
def test_any_codes_in_any_place(dtype, codes, c):
    pairs = decode(np.array(codes), FORMATS[dtype]).astype(np.float32)
    a, b = np.zeros((1, 32), np.float32), np.zeros((32, 1), np.float32)
    a[0, : len(codes)], b[: len(codes), 0] = pairs[:, 0], pairs[:, 1]
    assert_equals_oracle(a, b, np.array([[c]], np.float32), "sm90", dtype)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(-255, 255), st.integers(-255, 255), st.integers(-30, 5)), min_size=2, max_size=8),
    st.integers(-(2**24) + 1, 2**24 - 1),
    st.integers(-50, -10),
    st.sampled_from(["sm80", "sm90", "sm100"]),
)
def test_terms_around_each_others_cut(terms, c, q, architecture):
    """Significands of 8 bits within 35 binades: most examples have a term that is cut in the middle."""
    a, b = np.zeros((1, 16), np.float32), np.zeros((16, 1), np.float32)
    for k, (x, y, exponent) in enumerate(terms):
        a[0, k], b[k, 0] = x * 2.0 ** (exponent - exponent // 2), y * 2.0 ** (exponent // 2)
    assert_equals_oracle(a, b, np.array([[c * 2.0**q]], np.float32), architecture, "bf16")


# --- infinities and NaN -----------------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("a", "b", "c", "want"),
    [
        ([INF], [0.0], 0.0, NAN),
        ([0.0, 1.0], [-INF, 1.0], 1.0, NAN),
        ([INF, INF], [1.0, -1.0], 0.0, NAN),
        ([INF], [1.0], -INF, NAN),
        ([NAN], [0.0], 1.0, NAN),
        ([1.0], [1.0], NAN, NAN),
        ([INF, NAN], [1.0, 1.0], INF, NAN),
        ([INF], [-2.0], 1.0, -INF),
        ([INF, INF], [2.0, 3.0], INF, INF),
        ([1.0], [1.0], -INF, -INF),
        ([-INF], [-INF], 1.0, INF),
        ([2.0**127], [2.0**127], -INF, -INF),  # a finite product, however large, yields to an infinity
    ],
)
def test_infinities_and_nan(a, b, c, want):
    """Beside finite neighbours: the other rows and columns of the tile keep their values."""
    rng = np.random.default_rng(3)
    A, B = draw(rng, (9, 16), "bf16"), draw(rng, (16, 33), "bf16")
    A[:, : len(a)], B[: len(a)] = 0.0, 0.0
    C = rng.standard_normal((9, 33)).astype(np.float32)
    plain = matmul(A, B, C)
    A[6, :], B[:, 20] = 0.0, 0.0
    A[6, : len(a)], B[: len(a), 20], C[6, 20] = a, b, c
    got = matmul(A, B, C)
    wanted = np.uint32(0x7FFFFFFF).view(np.float32) if math.isnan(want) else np.float32(want)
    assert bits(got[6, 20]) == bits(wanted)
    others = np.ones((9, 33), bool)
    others[6], others[:, 20] = False, False
    assert np.array_equal(bits(got[others]), bits(plain[others]))


# --- the tile interface -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "N"), [(1, 1), (3, 16), (4, 17), (5, 144), (128, 64), (65, 40)])
def test_tiles_of_any_shape(M, N):
    """Ragged rows and columns equal the same elements of a larger product; a strided C and views of a are fine."""
    rng = np.random.default_rng(M)
    step = ARCHITECTURES["sm90"].step("bf16")
    a, b = draw(rng, (132, 48), "bf16"), draw(rng, (48, 160), "bf16")
    whole = matmul(a, b)
    C = np.full((2 * M, N), np.float32(7))
    accumulate(prepare_a(a[1 : M + 1], step), prepare_b(b[:, 2 : N + 2], step), C[::2], False, step)
    assert np.array_equal(bits(C[::2]), bits(whole[1 : M + 1, 2 : N + 2]))
    assert np.all(C[1::2] == 7)


def test_without_c_its_content_is_ignored():
    rng = np.random.default_rng(1)
    step = ARCHITECTURES["sm100"].step("fp16")
    a, b = draw(rng, (6, 32), "fp16"), draw(rng, (32, 20), "fp16")
    C = np.full((6, 20), np.nan, np.float32)
    accumulate(prepare_a(a, step), prepare_b(b, step), C, False, step)
    assert np.array_equal(bits(C), bits(matmul(a, b, architecture="sm100", dtype="fp16")))
    accumulate(prepare_a(a, step), prepare_b(b, step), C, True, step)
    twice = matmul(np.hstack([a, a]), np.vstack([b, b]), architecture="sm100", dtype="fp16")
    assert np.array_equal(bits(C), bits(twice))


def test_padding_with_zeros_is_exact():
    rng = np.random.default_rng(2)
    a, b = draw(rng, (4, 16), "bf16"), draw(rng, (16, 8), "bf16")
    padded = matmul(np.pad(a, ((0, 0), (0, 32))), np.pad(b, ((0, 32), (0, 0))))
    assert np.array_equal(bits(matmul(a, b)), bits(padded))


def test_rows_are_those_published():
    for (architecture, dtype), row in ROWS.items():
        assert ARCHITECTURES[architecture].step(dtype) == Step(*row, emin=FORMATS[dtype].emin)
    assert set(ARCHITECTURES) == {architecture for architecture, _ in ROWS}


def test_empty_matrices():
    assert matmul(np.zeros((0, 16)), np.zeros((16, 3))).shape == (0, 3)
    assert np.array_equal(matmul(np.zeros((2, 0)), np.zeros((0, 3)), np.ones((2, 3))), np.ones((2, 3)))


A, B = np.ones((2, 16)), np.ones((16, 3))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((A, B), {"architecture": "sm70"}, "architecture 'sm70': expected one of sm80, sm89, sm90, sm100"),
        ((A, B), {"dtype": "fp32"}, "dtype 'fp32': expected bf16, fp16, e4m3 or e5m2"),
        ((A, B), {"dtype": "e4m3", "architecture": "sm80"}, "tensor cores of sm80 do not take it"),
        ((A[0], B), {}, r"a has the shape \(16,\): expected a matrix"),
        ((A, B.astype(int)), {}, "b is int64: expected float32 holding values of bf16"),
        ((A, B[:15]), {}, "K differs"),
        ((A[:, :8], B[:8]), {}, "K = 8 is no multiple of 16, the step of sm90 on bf16: pad with zeros"),
        ((A, B, np.ones((3, 2))), {}, r"c \(3, 2\) does not fit a.b \(2, 3\)"),
        ((A, B, np.full((2, 3), 0.1)), {}, r"c\[0, 0\] = 0.1 .* is no fp32 value"),
        ((A, np.where(B == 1, 1 + 2.0**-8, 0)), {}, r"b\[0, 0\] = 1.00390625 .* is no bf16 value \(48 such\)"),
        ((A * 70000, B), {"dtype": "fp16"}, "is no fp16 value"),
    ],
)
def test_bad_arguments_say_what_is_wrong(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        matmul(*arguments, **options)
