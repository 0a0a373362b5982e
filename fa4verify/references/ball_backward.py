"""Ball arithmetic for gradients: how far backward.py is from the exact value, on sampled rows, columns and one sink.

Contract: the returned radius bounds |backward - exact| over every element of what was sampled: dq and delta of query
rows, dk and dv of keys, dsink of a head. Products are exact and the rest in balls of 128 bits, as in ball.py. delta is
not formed from O but as sum_j P_ij dP_ij, and 1 - tanh^2 as 1 / cosh^2, so that little is shared with what is bounded.

A row needs its own keys alone. A key needs LSE and delta of every row that sees it: these are solved in balls as far
as EXACT pairs of row and key go (all of a small problem; the last keys of a causal one), beyond that they are
backward.py's values with the bound that its docstring derives as radius; the provenance says for how many keys. That
bound is some 1e-12 of the gradient's terms where 16-bit kernels are measured at 1e-4.

Fails first where that a-priori bound grows: scores of thousands (1e-10). What a non-finite number that it sees touches
is skipped and counted in the provenance.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flint import arb, ctx

from fa4verify.references import ball, fp64
from fa4verify.references.backward import UNIT, Upstream
from fa4verify.references.ball import PRECISION, SIGNIFICAND, Certificate, distance, exact_sums, score_ball, times
from fa4verify.references.problem import Problem, widen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ROW_BUDGET = 4096  # visible keys of all sampled rows, FEWEST rows whatever they cost
KEY_BUDGET = 6144  # rows that see a sampled key, FEWEST keys whatever they cost
EXACT = 8192  # pairs of row and key spent on LSE and delta of the rows that see sampled keys
FEWEST, MOST = 2, 8
EDGES = (64, 80, 96, 128)  # key tiles of FA4 begin here

Number = arb | float
Known = Callable[[int, int, int], tuple[Number, Number]]


@dataclass(frozen=True)
class Row:
    """Balls of one query row: LSE, delta and dQ (what is declared, as floats, if it sees no key)."""

    lse: Number
    delta: Number
    dq: Sequence[Number]


def certify(problem: Problem, upstream: Upstream, result: Mapping[str, Array], *, seed: str) -> Certificate:
    """Bound the error of dq, dk, dv, delta and dsink where sampled; `seed` chooses what no rule names.

    `result` is backward's, lse included.
    """
    return _Certifier(problem, upstream, result, seed).certificate()


def row(problem: Problem, upstream: Upstream, b: int, h: int, i: int, *, gradient: bool = True) -> Row | None:
    """Return the balls of one query row (dQ only if `gradient`), None if something that it sees is not finite."""
    first, last = ball.span(problem, i)
    if first >= last:
        sink = -math.inf if problem.sink is None else float(problem.sink[h])
        return Row(sink, 0.0, [0.0] * problem.q.shape[3])
    kv_head = h // problem.group
    q, dout = widen(problem.q[b, i, h]), widen(upstream.dout[b, i, h])
    k, v = (widen(x[b, first:last, kv_head]) for x in (problem.k, problem.v))
    sink = -math.inf if problem.sink is None else float(problem.sink[h])
    dlse = 0.0 if upstream.dlse is None else float(upstream.dlse[b, h, i])
    if not (all(np.isfinite(x).all() for x in (q, dout, k, v, dlse)) and sink < math.inf):
        return None
    with ctx.workprec(PRECISION):
        dots = exact_sums(k * q)
        scores = [score_ball(problem, dot) for dot in dots]
        top = arb(max(float(score.mid()) for score in scores))
        weights = [(score - top).exp() for score in scores]
        total = sum(weights, arb(0) if sink == -math.inf else (arb(sink) - top).exp())
        weights = [weight / total for weight in weights]
        dp = exact_sums(v * dout)
        delta = sum((weight * x for weight, x in zip(weights, dp, strict=True)), arb(0))
        dq: Sequence[Number] = []
        if gradient:
            below = delta - arb(dlse)
            terms = zip(weights, dp, dots, strict=True)
            ds = [weight * (x - below) * _slope(problem, dot) for weight, x, dot in terms]
            dq = times(ds, k, bits=53 - SIGNIFICAND[problem.k.dtype])
        return Row(top + total.log(), delta, dq)


def key(
    problem: Problem, upstream: Upstream, b: int, kv_head: int, j: int, known: Known
) -> tuple[list[arb], list[arb]] | None:
    """Return balls of dK and dV of one key; `known` gives LSE and D = delta - dlse of a row (batch, head, row).

    None if something that takes part is not finite.
    """
    rows = rows_that_see(problem, j)
    heads = range(kv_head * problem.group, (kv_head + 1) * problem.group)
    if not len(rows):
        return [arb(0)] * problem.k.shape[3], [arb(0)] * problem.v.shape[3]
    q, dout = (np.concatenate([widen(x[b, rows, h]) for h in heads]) for x in (problem.q, upstream.dout))
    k, v = widen(problem.k[b, j, kv_head]), widen(problem.v[b, j, kv_head])
    numbers = [known(b, h, int(i)) for h in heads for i in rows]
    if not (all(np.isfinite(x).all() for x in (q, dout, k, v)) and all(_finite(x) for pair in numbers for x in pair)):
        return None
    with ctx.workprec(PRECISION):
        weights, ds = [], []
        for dot, dp, (lse, below) in zip(exact_sums(q * k), exact_sums(dout * v), numbers, strict=True):
            weight = (score_ball(problem, dot) - lse).exp()
            weights.append(weight)
            ds.append(weight * (dp - below) * _slope(problem, dot))
        return (
            times(ds, q, bits=53 - SIGNIFICAND[problem.q.dtype]),
            times(weights, dout, bits=53 - SIGNIFICAND[upstream.dout.dtype]),
        )


def sink_gradient(problem: Problem, h: int, known: Known) -> arb | None:
    """Return the ball of dsink of one head, None if something that takes part is not finite."""
    assert problem.sink is not None
    sink, total = float(problem.sink[h]), arb(0)
    with ctx.workprec(PRECISION):
        for b in range(problem.q.shape[0]):
            for i in range(problem.q.shape[1]):
                lse, below = known(b, h, i)
                first, last = ball.span(problem, i)
                if not _finite(below) or (first < last and not (_finite(lse) and sink < math.inf)):
                    return None
                weight = arb(1) if first >= last else arb(0) if sink == -math.inf else (arb(sink) - lse).exp()
                total -= weight * below
        return total


def rows_that_see(problem: Problem, j: int) -> NDArray[np.int64]:
    """Return the query rows that see key j."""
    first, last = problem.visible(np.arange(problem.q.shape[1]))
    return np.flatnonzero((first <= j) & (j < last))


def _slope(problem: Problem, dot: arb) -> arb:
    """Return the derivative of a score in nats with respect to the product of q and k."""
    scale = arb(problem.scale)
    return scale * (dot * scale / arb(problem.softcap)).cosh() ** -2 if problem.softcap else scale


def _finite(number: Number) -> bool:
    return bool(number.is_finite()) if isinstance(number, arb) else math.isfinite(number)


class _Certifier:
    """What was found so far, and the rows that are known in balls."""

    def __init__(self, problem: Problem, upstream: Upstream, result: Mapping[str, Array], seed: str):
        self.problem, self.upstream, self.result, self.seed = problem, upstream, result, seed
        self.exact: dict[tuple[int, int, int], tuple[Number, Number] | None] = {}
        self.left = EXACT
        self.radius: dict[str, float] = {}
        first, last = problem.visible(np.arange(problem.q.shape[1]))
        self.cost = np.maximum(last - first, 0)
        self.bounds: dict[tuple[int, int, int], tuple[Number, Number] | None] = {}
        self.sizes: dict[tuple[int, int], tuple[Array, Array]] = {}
        self.bounded = self.skipped = 0

    def certificate(self) -> Certificate:
        rows, keys = self._rows(), self._keys()
        words = f"python-flint balls of {PRECISION} bits on {len(rows)} rows and {len(keys)} keys"
        words += f" (batch, head, key: {' '.join(','.join(map(str, place)) for place in keys)})" if keys else ""
        if self.problem.sink is not None and self.problem.q.shape[2]:
            words += self._sink()
        if self.bounded:
            words += f"; for {self.bounded} of them LSE and delta of the rows within their a-priori bound"
        if self.skipped:
            words += f"; {self.skipped} with a visible non-finite number skipped"
        return Certificate(self.radius, np.array(rows, np.int64).reshape(-1, 3), words)

    def _rows(self) -> list[tuple[int, int, int]]:
        batch, seqlen_q, heads, _ = self.problem.q.shape
        rows, spent = [], 0
        for n, (b, h, i) in enumerate(_candidates(batch, heads, seqlen_q, f"{self.seed} rows")):
            if n >= FEWEST and spent + self.cost[i] > ROW_BUDGET:
                continue
            spent += int(self.cost[i])
            exact = row(self.problem, self.upstream, b, h, i)
            if exact is None:
                self.skipped += 1
                continue
            self.exact[b, h, i] = self._with_dlse(exact, b, h, i)
            self._widen("dq", self.result["dq"][b, i, h], exact.dq)
            self._widen("delta", self.result["delta"][b, h, i : i + 1], [exact.delta])
            rows.append((b, h, i))
        return rows

    def _keys(self) -> list[tuple[int, int, int]]:
        batch, seqlen_k, heads, _ = self.problem.k.shape
        keys, spent = [], 0
        for n, (b, kv_head, j) in enumerate(_candidates(batch, heads, seqlen_k, f"{self.seed} keys")):
            rows = rows_that_see(self.problem, j)
            heads_of = range(kv_head * self.problem.group, (kv_head + 1) * self.problem.group)
            if n >= FEWEST and spent + len(rows) * len(heads_of) > KEY_BUDGET:
                continue
            spent += len(rows) * len(heads_of)
            known = self._known([(b, h, int(i)) for h in heads_of for i in rows])
            exact = key(self.problem, self.upstream, b, kv_head, j, known)
            if exact is None:
                self.skipped += 1
                continue
            self._widen("dk", self.result["dk"][b, j, kv_head], exact[0])
            self._widen("dv", self.result["dv"][b, j, kv_head], exact[1])
            keys.append((b, kv_head, j))
        return keys

    def _sink(self) -> str:
        batch, seqlen_q, heads, _ = self.problem.q.shape
        h = zlib.crc32(f"{self.seed} sink".encode()) % heads
        exact = sink_gradient(self.problem, h, self._known([(b, h, i) for b in range(batch) for i in range(seqlen_q)]))
        if exact is None:
            self.skipped += 1
            return ""
        self._widen("dsink", self.result["dsink"][h : h + 1], [exact])
        return f" and the sink of head {h}"

    def _widen(self, tensor: str, found: Array, exact: Sequence[Number]) -> None:
        distances = (distance(x, value) for x, value in zip(found.tolist(), exact, strict=True))
        self.radius[tensor] = max(self.radius.get(tensor, 0.0), *distances)

    def _known(self, places: Sequence[tuple[int, int, int]]) -> Known:
        """Solve these rows in balls if that can be afforded for all of them; else take their bounds."""
        missing = [place for place in places if place not in self.exact]
        cost = sum(int(self.cost[i]) for _, _, i in missing)
        if cost > self.left:
            self.bounded += 1
            return self._within_bounds
        self.left -= cost
        for place in missing:
            solved = row(self.problem, self.upstream, *place, gradient=False)
            self.exact[place] = None if solved is None else self._with_dlse(solved, *place)
        return lambda *place: self.exact[place] or (math.nan, math.nan)

    def _with_dlse(self, solved: Row, b: int, h: int, i: int) -> tuple[Number, Number]:
        with ctx.workprec(PRECISION):
            return solved.lse, solved.delta - self._dlse(b, h, i)

    def _dlse(self, b: int, h: int, i: int) -> Number:
        value = 0.0 if self.upstream.dlse is None else float(self.upstream.dlse[b, h, i])
        return arb(value) if math.isfinite(value) else math.nan

    def _within_bounds(self, b: int, h: int, i: int) -> tuple[Number, Number]:
        """Return LSE and D of a row as backward.py found them, with the bound of its docstring as radius."""
        place = (b, h, i)
        if place not in self.bounds:
            self.bounds[place] = self.exact[place] if place in self.exact else self._bounded(*place)
        return self.bounds[place] or (math.nan, math.nan)

    def _bounded(self, b: int, h: int, i: int) -> tuple[Number, Number] | None:
        lse, delta = (float(self.result[name][b, h, i]) for name in ("lse", "delta"))
        if not self.cost[i]:
            return lse, 0.0 - self._dlse(b, h, i)
        if not (math.isfinite(lse) and math.isfinite(delta)):
            return None
        if (b, h) not in self.sizes:
            self.sizes[b, h] = self._row_sizes(b, h)
        score_size, dp_size = (float(size[i]) for size in self.sizes[b, h])
        of_o = fp64.error_bound(self.problem, score_size)
        of_lse = of_o + UNIT * (8 * math.log(self.problem.k.shape[1] + 1) + abs(lse))
        of_delta = (of_o + self.problem.v.shape[3] * UNIT) * dp_size
        with ctx.workprec(PRECISION):
            return arb(lse, 1.01 * of_lse), arb(delta, 1.01 * of_delta) - self._dlse(b, h, i)

    def _row_sizes(self, b: int, h: int) -> tuple[Array, Array]:
        """Bound each row's |scale| sum_c |q_c k_jc| and sum_c |dout_c v_jc| by the largest finite |k| and |v|."""
        sizes = []
        for x, y in ((self.problem.q, self.problem.k), (self.upstream.dout, self.problem.v)):
            of_row, of_keys = np.abs(widen(x[b, :, h])), np.abs(widen(y[b, :, h // self.problem.group]))
            largest = np.where(np.isfinite(of_keys), of_keys, 0.0).max(axis=0, initial=0.0)
            with np.errstate(invalid="ignore", over="ignore"):
                sizes.append(1.001 * of_row @ largest)
        return abs(self.problem.scale) * sizes[0], sizes[1]


def _candidates(batch: int, heads: int, seqlen: int, seed: str) -> Iterator[tuple[int, int, int]]:
    """Yield positions worth certifying: last, first, both sides of tile edges, middle, then seeded ones; heads vary."""
    if not batch * heads * seqlen:
        return
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(seed.encode())))
    named = [seqlen - 1, 0, *(edge + side for edge in EDGES for side in (-1, 0) if edge < seqlen)]
    generator.shuffle(edges := named[2:])
    named = [*named[:2], *edges[:3], seqlen // 2]
    drawn = set()
    for n in range(MOST):
        i = named[n] if n < len(named) else int(generator.integers(seqlen))
        fixed = [(batch - 1, heads - 1), (0, 0)]
        b, h = fixed[n] if n < 2 else (int(generator.integers(batch)), int(generator.integers(heads)))
        if (b, h, i) not in drawn:
            drawn.add((b, h, i))
            yield b, h, i
