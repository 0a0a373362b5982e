"""Attention in float64, a tile of query rows by keys at a time: the truth that kernels are measured against.

Contract: O and LSE of softmax(softcap(scale * Q K^T)) V over the visible keys (problem.py), with a learnable sink as
one more logit that is not scaled and has no value. Working memory is a few tiles a thread, whatever the sequence; there
is no S x S array. The tiles are fixed and each is multiplied by one BLAS thread, so the bits do not depend on how many
threads share them.

Declared, not computed: a row that sees no key has O = 0 and LSE = -inf, with a sink O = 0 and LSE = sink.

Non-finite inputs: IEEE arithmetic of the formula O = sum_j e^s_j v_j / sum_j e^s_j, LSE = log sum_j e^s_j over the
visible keys; what a masked key holds has no influence. So a NaN score gives O = LSE = NaN; a score of +inf gives
O = NaN, LSE = +inf; visible keys whose scores are all -inf give O = NaN (0/0), LSE = -inf; a value of +-inf or NaN that
is seen with a finite score goes through to its column, however small the weight (the exact weight is not zero), and one
seen with score -inf gives NaN.

Error, u = 2^-53, A = the row's largest |scale| sum_c |q_c k_jc| (with a softcap t, the row's exponents are off by
another 12 u |t|), T tiles of B = KEYS keys, exp, log and tanh assumed good to 4 ulp (8u): a score is off by
(d + 1) u A, the exponent s - max by another 2 u A, its exponential by 8u; each rescale adds u |old max - new max| (at
most 2 u A over all of them) + 9u. A weight is therefore relatively off by eps = u ((d + 5) A + 9 T + 8), a sum of
weights by eps + (B + T) u, and to first order

    |error of O|   <= (2 eps + (2 B + 2 T + 2) u) sum_j w_j |v_j|
    |error of LSE| <= eps + (B + T) u + u (8 log(Sk + 1) + |LSE|)

A sink counts as one more tile. `error_bound` is that factor; ball.py certifies what is reached, usually below a
hundredth of it. Underflow adds less than Sk 2^-1022 |v|, flush-to-zero included. 16-bit inputs cannot overflow while
|scale| < 2^700.

Speed: `benchmarks/test_references.py` holds it to 2.5 times the two float64 products alone.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import ThreadpoolController

from fa4verify.references.problem import Problem, widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ROWS, KEYS = 256, 512  # one tile of scores is 1 MiB: it stays in a 2 MiB L2 cache through five passes
UNIT = 2.0**-53
SINGLE_THREAD = 2**24  # multiplications below which (2 ms) a second thread brings nothing
MOMENTS = ("spread", "magnitude", "row_max")


def forward(problem: Problem, *, moments: bool = False, threads: int | None = None) -> dict[str, Array]:
    """Return o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q), and which key weighs most.

    That is top_key, the first key with the row's largest score (-1 for a row that sees none), and top_weight = w_j of
    it (0 for such a row), both shaped like lse.

    Parameters
    ----------
    problem
        What to solve.
    moments
        Return as well, w_j being the exact weights: spread = sqrt(sum_j w_j^2 v_j^2) and magnitude = sum_j w_j |v_j|,
        shaped like o; row_max, the largest score in nats (-inf for empty rows), shaped like lse.
    threads
        Default: as many as BLAS is set to. BLAS itself is held to one thread meanwhile, in the whole process.
    """
    batch, seqlen_q, heads, head_dim = problem.q.shape
    head_dim_v = problem.v.shape[3]
    like_o, like_lse = (batch, seqlen_q, heads, head_dim_v), (batch, heads, seqlen_q)
    names = ("o", "lse", "top_key", "top_weight", *(MOMENTS if moments else ()))
    of_o = ("o", "spread", "magnitude")
    result: dict[str, Array] = {name: np.zeros(like_o if name in of_o else like_lse) for name in names}
    tasks = [(b, h, i) for b in range(batch) for h in range(heads) for i in range(0, seqlen_q, ROWS)]
    blas = ThreadpoolController().select(user_api="blas")
    if threads is None:
        threads = max((pool["num_threads"] for pool in blas.info()), default=1)
    if batch * heads * seqlen_q * problem.k.shape[1] * (head_dim + head_dim_v) < SINGLE_THREAD:
        threads = 1
    threads = max(1, min(threads, len(tasks)))
    with blas.limit(limits=1):
        if threads == 1:
            _solve(problem, tasks, result)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda part: _solve(problem, part, result), [tasks[t::threads] for t in range(threads)]))
    return result


def error_bound(problem: Problem, score_size: float) -> float:
    """Return a bound on |error of O| / sum_j w_j |v_j|, from the row's A as the module's docstring derives it.

    The error of LSE is at most that plus 2^-53 (8 log(Sk + 1) + |LSE|).
    """
    head_dim, tiles = problem.q.shape[3], math.ceil(problem.k.shape[1] / KEYS) + 1
    weight = (head_dim + 5) * score_size + 9 * tiles + 8 + 12 * abs(problem.softcap)
    return float(1.01 * UNIT * (2 * weight + 2 * KEYS + 2 * tiles + 2))


def _solve(problem: Problem, tasks: Sequence[tuple[int, int, int]], result: dict[str, Array]) -> None:
    """Solve blocks of rows (batch, head, first row) into `result`, in this thread's own buffers."""
    space = _Space(problem.q.shape[3], problem.v.shape[3])
    with np.errstate(all="ignore"):
        for batch, head, start in tasks:
            rows = np.arange(start, min(start + ROWS, problem.q.shape[1]))
            block = _Block(problem, space, batch, head, rows, moments="spread" in result)
            for name, values in block.solve().items():
                where = (batch, rows, head) if values.ndim == 2 else (batch, head, rows)
                result[name][where] = values


class _Space:
    """Buffers for one tile: allocating scores and products anew costs 15 % of the run at 4096 keys, d = 128."""

    def __init__(self, head_dim: int, head_dim_v: int):
        self.keys, self.values = np.empty((KEYS, head_dim)), np.empty((KEYS, head_dim_v))
        self._scores, self._product = np.empty(ROWS * KEYS), np.empty(ROWS * head_dim_v)

    def scores(self, rows: int, keys: int) -> Array:
        return self._scores[: rows * keys].reshape(rows, keys)

    def product(self, rows: int, columns: int) -> Array:
        return self._product[: rows * columns].reshape(rows, columns)


class _Block:
    """Online softmax of one block of query rows: sums relative to the largest score so far."""

    def __init__(
        self, problem: Problem, space: _Space, batch: int, head: int, rows: NDArray[np.int64], *, moments: bool
    ):
        self.problem, self.space = problem, space
        self.batch, self.head, self.moments = batch, head, moments
        self.q = widen(problem.q[batch, rows[0] : rows[-1] + 1, head])
        self.first, self.last = problem.visible(rows)
        count, columns = len(rows), problem.v.shape[3]
        self.top, self.total = np.full(count, -np.inf), np.zeros(count)
        self.top_key = np.full(count, -1.0)
        self.o = np.zeros((count, columns))
        self.squares, self.magnitude = (np.zeros((count, columns)) if moments else self.o for _ in range(2))
        self.special: Array | None = None  # what non-finite values add to O: +-inf or NaN, else 0

    def solve(self) -> dict[str, Array]:
        first, end = int(self.first[0]), int(self.last[-1])  # both grow with the row
        for j in range(first, end, KEYS):
            self._tile(j, min(j + KEYS, end))
        return self._finish()

    def _tile(self, start: int, stop: int) -> None:
        kv_head = self.head // self.problem.group
        keys = widen(self.problem.k[self.batch, start:stop, kv_head], self.space.keys[: stop - start])
        values = widen(self.problem.v[self.batch, start:stop, kv_head], self.space.values[: stop - start])
        s = np.matmul(self.q, keys.T, out=self.space.scores(len(self.q), stop - start))
        s *= self.problem.scale
        if self.problem.softcap:
            s /= self.problem.softcap
            np.tanh(s, out=s)
            s *= self.problem.softcap
        seen: NDArray[np.bool_] | None = None
        if start < self.first[-1] or stop > self.last[0]:
            columns = np.arange(start, stop)
            seen = (columns >= self.first[:, None]) & (columns < self.last[:, None])
            np.copyto(s, -np.inf, where=~seen)
        if not np.isfinite(values).all():
            self._nonfinite(s, values, seen)
        best = s.argmax(axis=1)
        here = s[np.arange(len(s)), best]
        self.top_key = np.where(here > self.top, start + best, self.top_key)
        top = np.maximum(self.top, here)
        reference = _finite(top)
        factor = np.exp(self.top - reference)
        self.top = top
        s -= reference[:, None]
        np.exp(s, out=s)
        self.total = self.total * factor + s.sum(axis=1)
        self._add(self.o, factor, s, values)
        if self.moments:
            self._add(self.magnitude, factor, s, np.abs(values, out=values))
            s *= s
            values *= values
            self._add(self.squares, factor * factor, s, values)

    def _add(self, into: Array, factor: Array, weights: Array, values: Array) -> None:
        product = np.matmul(weights, values, out=self.space.product(*into.shape))
        into *= factor[:, None]
        into += product

    def _nonfinite(self, s: Array, values: Array, seen: NDArray[np.bool_] | None) -> None:
        """Note what non-finite values do to O, and replace them by 0: in a matrix product 0 * inf would leak."""
        weighted = (s > -np.inf).astype(np.float64)
        weightless = (s == -np.inf if seen is None else seen & (s == -np.inf)).astype(np.float64)
        up, down, wrong = (
            (weighted @ where.astype(np.float64) > 0)
            for where in (np.isposinf(values), np.isneginf(values), np.isnan(values))
        )
        wrong |= (weightless @ (~np.isfinite(values)).astype(np.float64) > 0) | (up & down)
        special = np.where(up, np.inf, 0.0) - np.where(down, np.inf, 0.0)
        special[wrong] = np.nan
        self.special = special if self.special is None else self.special + special
        values[~np.isfinite(values)] = 0.0

    def _finish(self) -> dict[str, Array]:
        sink = -np.inf if self.problem.sink is None else float(self.problem.sink[self.head])
        reference = _finite(np.maximum(self.top, sink))
        factor = np.exp(self.top - reference)
        if sink == np.inf:
            factor[np.isfinite(self.top)] = 0.0
        total = self.total * factor + np.exp(sink - reference)
        share = (factor / total)[:, None]
        o, lse = self.o * share, reference + np.log(total)
        if self.special is not None:
            o += np.where((sink == np.inf) & (self.special != 0), np.nan, self.special)
        empty = self.first >= self.last
        o[empty], lse[empty] = 0.0, sink
        top_weight = np.exp(self.top - lse)
        top_weight[empty] = 0.0
        found = {"o": o, "lse": lse, "top_key": self.top_key, "top_weight": top_weight}
        if not self.moments:
            return found
        spread, magnitude = np.sqrt(self.squares) * share, self.magnitude * share
        if self.special is not None:
            spread, magnitude = spread + np.abs(self.special), magnitude + np.abs(self.special)
        for values in (spread, magnitude):
            values[empty] = 0.0
        return {**found, "spread": spread, "magnitude": magnitude, "row_max": self.top}


def _finite(top: Array) -> Array:
    """Return the exponents' reference: the maximum, 0 where it is not finite."""
    return np.where(np.isfinite(top), top, 0.0)
