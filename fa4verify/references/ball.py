"""Ball arithmetic (python-flint): how far float64 attention is from the exact value, certified on sampled rows.

Contract: the returned radius is an upper bound of |fp64 - exact| over every element of the sampled rows: distance to
the ball's midpoint plus the ball's radius. It says nothing about rows that were not sampled.

Exact without balls: products of two stored numbers fit 53 bits (8 + 8 for bf16, 11 + 11 for fp16, 24 + 24 for fp32,
and for an 8-bit code times a descale of 20 bits),
and `exact_sums` adds them without rounding; neither BLAS nor NumPy's exp is involved. In balls of 128 bits: scale,
softcap, exponentials, their sum, logarithm, division. The product with V is exact again: each exponential is cut into
parts short enough for part * v to fit 53 bits, and what is left of it (below 2^-80) becomes radius.
Fails first on products below 2^-1022, which float64 cannot hold exactly: TINY of radius for each of them.
Rejected: arb_mat for both products (0.7 us to make each entry of K and V, where all of a row takes 0.1 us an entry);
math.fsum (the sums with V take 3.7 times as long).

Rows with a visible non-finite number are skipped and counted in the provenance. BUDGET bounds the work of a case.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flint import arb, ctx

from fa4verify.references.problem import Problem, widen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PRECISION = 128
BUDGET = 6144  # visible keys of all sampled rows; FEWEST rows whatever they cost
FEWEST, MOST = 3, 12
ROUNDS = 2  # of extraction in exact_sums: what is left is below 2^-64 of the largest term up to 8192 keys
TINY = 2.0**-1022
EDGES = (64, 128, 192)  # query tiles of FA4 begin here
SIGNIFICAND = {np.dtype(np.uint16): 8, np.dtype(np.float16): 11, np.dtype(np.float32): 24, np.dtype(np.float64): 24}


@dataclass(frozen=True)
class Certificate:
    """Radius by tensor, the rows (batch, head, row) that certify it, and a sentence about both."""

    radius: dict[str, float]
    rows: NDArray[np.int64]
    provenance: str


def certify(problem: Problem, tensors: Mapping[str, Array], *, seed: str) -> Certificate:
    """Bound the error of o and lse on sampled rows; `seed` (the case's id) chooses those that no rule names."""
    radius = {"o": 0.0, "lse": 0.0}
    rows: list[tuple[int, int, int]] = []
    skipped = spent = 0
    for b, h, i in _candidates(problem, seed):
        first, last = span(problem, i)
        cost = max(0, last - first)
        if len(rows) + skipped >= FEWEST and spent + cost > BUDGET:
            continue
        spent += cost
        exact = row(problem, b, h, i)
        if exact is None:
            skipped += 1
            continue
        o, lse = exact
        found = tensors["o"][b, i, h].tolist()
        radius["o"] = max(radius["o"], *(distance(x, ball) for x, ball in zip(found, o, strict=True)))
        radius["lse"] = max(radius["lse"], distance(float(tensors["lse"][b, h, i]), lse))
        rows.append((b, h, i))
    words = f"python-flint balls of {PRECISION} bits on {len(rows)} rows"
    if skipped:
        words += f"; {skipped} rows with a visible non-finite number skipped"
    return Certificate(radius if rows else {}, np.array(rows, np.int64).reshape(-1, 3), words)


def row(problem: Problem, b: int, h: int, i: int) -> tuple[Sequence[arb | float], arb | float] | None:
    """Return balls of O and LSE of one query row, what is declared of an empty one, None if something is not finite."""
    first, last = span(problem, i)
    sink = -math.inf if problem.sink is None else float(problem.sink[h])
    if first >= last:
        return [0.0] * problem.v.shape[3], sink
    kv_head = h // problem.group
    q = widen(problem.q[b, i, h])
    k, v = (widen(x[b, first:last, kv_head]) for x in (problem.k, problem.v))
    if not (np.isfinite(q).all() and np.isfinite(k).all() and np.isfinite(v).all() and sink < math.inf):
        return None
    with ctx.workprec(PRECISION):
        scores = [score_ball(problem, dot) for dot in exact_sums(k * q)]
        top = arb(max(float(score.mid()) for score in scores))
        weights = [(score - top).exp() for score in scores]
        total = arb(0) if sink == -math.inf else (arb(sink) - top).exp()
        for weight in weights:
            total += weight
        o = times(weights, v, bits=53 - SIGNIFICAND[problem.v.dtype])
        return [numerator / total for numerator in o], top + total.log()


def distance(value: float, exact: arb | float) -> float:
    """Return an upper bound of |value - exact|; infinite where value is not finite and exact is, or the reverse."""
    if not isinstance(exact, arb):
        same = value == exact or (math.isnan(value) and math.isnan(exact))
        return 0.0 if same else math.inf if math.isnan(value - exact) else abs(value - exact)
    if not math.isfinite(value):
        return math.inf
    with ctx.workprec(PRECISION):
        return _upper(arb(value) - exact)


def span(problem: Problem, i: int) -> tuple[int, int]:
    """Return the first key that row i sees and one past its last."""
    first, last = problem.visible(np.array([i]))
    return int(first[0]), int(last[0])


def _candidates(problem: Problem, seed: str) -> Iterator[tuple[int, int, int]]:
    """Yield rows worth certifying: last, first, middle, both sides of tile edges, then seeded ones; heads vary."""
    batch, seqlen_q, heads, _ = problem.q.shape
    if not batch * seqlen_q * heads:
        return
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(seed.encode())))
    named = [seqlen_q - 1, 0, seqlen_q // 2, *(edge + side for edge in EDGES for side in (-1, 0) if edge < seqlen_q)]
    heads_first = [(batch - 1, heads - 1), (0, 0)]
    drawn = set()
    for n in range(MOST):
        i = named[n] if n < len(named) else int(generator.integers(seqlen_q))
        b, h = heads_first[n] if n < 2 else (int(generator.integers(batch)), int(generator.integers(heads)))
        if (b, h, i) not in drawn:
            drawn.add((b, h, i))
            yield b, h, i


def exact_sums(terms: Array) -> list[arb]:
    """Return balls of the sums over the last axis, by extraction: no addition of a term rounds.

    With sigma a power of two above (count + 2) max|x|, q = (sigma + x) - sigma is x rounded to a multiple of
    2^-53 sigma, x - q is exact and at most 2^-53 sigma, and the q add up without rounding in any order, their sum being
    below sigma (Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31-1, 2008, section 3). What ROUNDS of that leave is radius.
    """
    count = terms.shape[-1]
    bits = math.ceil(math.log2(count + 2))
    largest = np.abs(terms).max(axis=-1, keepdims=True)
    sigma = np.ldexp(1.0, np.where(largest == 0.0, -960, np.frexp(largest)[1]) + bits)
    parts = []
    for _ in range(ROUNDS):
        high = sigma + terms
        high -= sigma
        parts.append(high.sum(axis=-1).tolist())
        terms = terms - high
        left = count * 2.0**-53 * sigma[..., 0] + count * TINY
        sigma = np.ldexp(sigma, bits - 53)
    return [sum(map(arb, each), arb(0, radius)) for *each, radius in zip(*parts, left.tolist(), strict=True)]


def score_ball(problem: Problem, dot: arb) -> arb:
    """Return the ball of one score in nats."""
    score = dot * arb(problem.scale)
    if problem.softcap:
        cap = arb(problem.softcap)
        score = cap * (score / cap).tanh()
    return score


def times(weights: list[arb], v: Array, bits: int) -> list[arb]:
    """Return balls of sum_j weights[j] v[j]: a part of `bits` bits times v is exact."""
    parts, rest = [], weights
    for _ in range(math.ceil(80 / bits)):
        part = np.array([float(weight.mid()) for weight in rest])
        part = (part.view(np.int64) & -(1 << (53 - bits))).view(np.float64)  # toward zero, to `bits` bits
        rest = [weight - arb(x) for weight, x in zip(rest, part.tolist(), strict=True)]
        parts.append(part)
    # 1.01 covers the rounding of this sum of positive numbers for up to 2^46 keys.
    radius = 1.01 * (np.array([_upper(weight) for weight in rest]) @ np.abs(v)) + len(v) * len(parts) * TINY
    sums = exact_sums(np.concatenate([part * v.T for part in parts], axis=1))
    return [x + arb(0, r) for x, r in zip(sums, radius.tolist(), strict=True)]


def _upper(ball: arb) -> float:
    return math.nextafter(float(ball.abs_upper()), math.inf)
