"""Gradients of attention in float64, a tile of query rows by keys at a time: the truth of a backward.

Contract: the gradient of sum(O * dout) + sum(LSE * dlse) with respect to q, k, v and the sink, O and LSE being what
fp64.py solves. With z the scores in nats (scaled, then capped), t the softcap and g = 1 - tanh^2(scaled score / t),

    P_ij   = exp(z_ij - LSE_i)              delta_i = sum_c O_ic dout_ic        D_i = delta_i - dlse_i
    dS_ij  = P_ij g_ij (sum_c dout_ic v_jc - D_i)
    dQ_i   = scale sum_j dS_ij k_j          dK_j = scale sum_i dS_ij q_i        dV_j = sum_i P_ij dout_i
    dsink  = -sum_i exp(sink - LSE_i) D_i

A sink is one more logit whose value is zero, hence its dP is 0 and its gradient - P D. dK and dV add the query heads
that share a key head, dsink adds batch and rows. `delta` is returned without dlse. Working memory is a few tiles a
thread and, until delta is known, O; there is no S x S array. Tiles are fixed and go round as in a Latin square: those
of one step share neither rows nor keys, so that threads never add to the same place, and every sum has one order, hence
the same bits, however many threads there are. Rejected: dQ and dK, dV in two passes, which costs seven products for
five.

Declared, not computed: rows that see no key have dQ = 0 and delta = 0 and give nothing to dK, dV, whatever dout and
dlse hold; with a sink their LSE is the sink, so they add dlse to dsink. Keys that no row sees have dK = dV = 0. Where
LSE = sink, infinite or not, the sink's weight is 1.

Non-finite inputs: IEEE arithmetic of the formulas above over the visible pairs, with fp64.py's O and LSE; a masked pair
takes no part. So a NaN or infinity in dout_i or in a value that row i sees makes delta_i, dQ_i and dK of every key that
row i sees non-finite, while in dV it stays in its column; a NaN score makes dQ_i and dK, dV of the row's keys NaN; a
score of -inf has weight 0, and 0 times the infinity in k or q that made it is NaN in that component alone. A weight
that underflows counts as positive beside an infinity.

Error, u = 2^-53, to first order. Let A be the row's largest |scale| sum_c |q_c k_jc|, M_i the largest
sum_c |dout_ic v_jc| over its keys, f the factor fp64.error_bound. The exponent z - LSE is off by
(d + 2) u A + 12 u |t| + 2 u |LSE| + error of LSE, so that P is relatively off by
eta = u ((d + 2) A + 12 |t| + 2 |LSE| + 8) + f + u (8 log(Sk + 1) + |LSE|); g by gamma = u (4 (d + 2) A / |t| + 24);
delta by (f + d_v u) M_i; and dS, since |dP - D| <= 2 M_i + |dlse_i|, by beta P_ij g_ij (M_i + |dlse_i|) with
beta = f + 2 eta + 2 gamma + (2 d_v + 8) u. Sums of tiles of R = ROWS, B = KEYS, T of them:

    |error of dQ|    <= (beta + 2 (B + T + 3) u) |scale| (M_i + |dlse_i|) sum_j P g |k_j|
    |error of dK|    <= (beta + 2 (R + T + 3) u) |scale| sum_i (M_i + |dlse_i|) P g |q_i|
    |error of dV|    <= (eta + (R + T + 1) u) sum_i P_ij |dout_i|
    |error of dsink| <= (f + 2 eta + (d_v + 4 + rows) u) sum_i p_i (M_i + |dlse_i|)

`error_bound` is those factors; ball_backward.py certifies what is reached. g is formed as 4 e / (1 + e)^2 with
e = exp(-2 |x|): 1 - tanh^2 loses all digits near the cap.

Speed: `benchmarks/test_references_backward.py` holds it to 2.5 times the five float64 products alone.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fa4verify.references import fp64
from fa4verify.references.nonfinite import weighted_sum
from fa4verify.references.problem import Problem, stored, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from fa4verify.vocabulary import Inputs

    Array = NDArray[np.float64]
    Place = tuple[int, int, int, int]  # batch, query head, first row, first key

ROWS, KEYS = 256, 256  # two tiles of 0.5 MiB and their operands stay in a 2 MiB L2 cache
UNIT = 2.0**-53
TINY = 2.0**-1074


@dataclass(frozen=True)
class Upstream:
    """What comes back from the loss: `dout` as stored, shaped like o, and `dlse` float64 (batch, heads, seqlen_q)."""

    dout: NDArray[Any]
    dlse: Array | None = None

    @classmethod
    def of(cls, inputs: Inputs) -> Upstream:
        """Read dout and, where there is one, dlse."""
        dlse = inputs.tensors.get("dlse")
        return cls(stored(inputs.tensors["dout"]), None if dlse is None else stored(dlse).astype(np.float64))


def backward(
    problem: Problem, upstream: Upstream, *, moments: bool = False, threads: int | None = None
) -> dict[str, Array]:
    """Return dq, dk, dv (shaped like q, k, v), delta and lse (batch, heads, seqlen_q) and, with a sink, dsink (heads,).

    Parameters
    ----------
    problem, upstream
        What to solve.
    moments
        Return as well what roundings inside a kernel would do, for a model of a right kernel's error. Independent
        relative errors of rms r

        - in each dS (from P before dS, from dP - delta, or from dS itself) make dq and dk err by r times `dq_spread` =
          |scale| sqrt(sum_j dS_ij^2 k_j^2) and `dk_spread` = |scale| sqrt(sum_i dS_ij^2 q_i^2);
        - in each P of the product for dV, by r times `dv_spread` = sqrt(sum_i P_ij^2 dout_i^2);
        - in O's elements and in the forward's P, make delta err by r times `delta_from_o` = sqrt(sum_c (O_ic
          dout_ic)^2) and `delta_from_p` = sqrt(sum_j P_ij^2 dP_ij^2), both shaped like delta. That error is the same
          for a whole row, so that it does not average out over keys: with sigma^2 the sum of both squares,
          `dq_from_delta` = |scale| sigma_i |sum_j P_ij g_ij k_j|, `dk_from_delta` = |scale| sqrt(sum_i (sigma_i P_ij
          g_ij q_i)^2), `dsink_from_delta` = sqrt(sum_i (sigma_i p_i)^2).

        `dq_magnitude`, `dk_magnitude`, `dv_magnitude` are the gradients' sums with every term's absolute value, what
        truncation and the order of accumulation scale with. `ds_max`, shaped like delta, is the row's largest |dS|,
        which overflows first in fp16. All sums over rows run over the query heads of a group as well.

        With r = 0.212 * 2^(1-p), the rms of rounding to p bits where significands are spread evenly in the logarithm,
        and the result's own rounding added, they foretell the rms error of dq, dk, dv recorded on an H200
        (flash-attn-4 4.0.0b36, some 45 problems of tests/golden) within a factor of 0.6 to 1.15. Peaked rows err by
        less (0.35 with scores of 8 N(0, 1)): a P of 1 and an O that is nearly one value need no rounding. Costs 1.4
        times as much again.
    threads
        Default: as many as BLAS is set to. BLAS itself is held to one thread meanwhile, in the whole process.
    """
    batch, seqlen_q, heads, head_dim = problem.q.shape
    head_dim_v = problem.v.shape[3]
    if upstream.dout.shape != (batch, seqlen_q, heads, head_dim_v):
        raise ValueError(f"dout is {upstream.dout.shape}, o is {(batch, seqlen_q, heads, head_dim_v)}")
    if upstream.dlse is not None and upstream.dlse.shape != (batch, heads, seqlen_q):
        raise ValueError(f"dlse is {upstream.dlse.shape}, lse is {(batch, heads, seqlen_q)}")
    blas = ThreadpoolController().select(user_api="blas")
    if threads is None:
        threads = max((pool["num_threads"] for pool in blas.info()), default=1)
    if batch * heads * seqlen_q * problem.k.shape[1] * (head_dim + head_dim_v) < fp64.SINGLE_THREAD:
        threads = 1
    with blas.limit(limits=1):
        return _Solver(problem, upstream, moments=moments, threads=threads).solve()


def error_bound(problem: Problem, score_size: float, lse_size: float) -> dict[str, float]:
    """Return each gradient's factor of the module's docstring, for a row's A and |LSE| (or the largest of each).

    `weight` is eta, the relative error of P.
    """
    head_dim, head_dim_v = problem.q.shape[3], problem.v.shape[3]
    batch, seqlen_q, seqlen_k, cap = problem.q.shape[0], problem.q.shape[1], problem.k.shape[1], abs(problem.softcap)
    rows_of_tiles, key_tiles = math.ceil(seqlen_q / ROWS) * problem.group, math.ceil(seqlen_k / KEYS)
    forward = fp64.error_bound(problem, score_size)
    weight = forward + UNIT * ((head_dim + 2) * score_size + 12 * cap + 3 * lse_size + 8 + 8 * math.log(seqlen_k + 1))
    slope = UNIT * (4 * (head_dim + 2) * score_size / cap + 24) if cap else 0.0
    ds = forward + 2 * weight + 2 * slope + (2 * head_dim_v + 8) * UNIT
    factors = {
        "weight": weight,
        "delta": forward + head_dim_v * UNIT,
        "dq": ds + 2 * (KEYS + key_tiles + 3) * UNIT,
        "dk": ds + 2 * (ROWS + rows_of_tiles + 3) * UNIT,
        "dv": weight + (ROWS + rows_of_tiles + 1) * UNIT,
        "dsink": forward + 2 * weight + (head_dim_v + 4 + batch * seqlen_q) * UNIT,
    }
    return {name: 1.01 * factor for name, factor in factors.items()}


class _Solver:
    """The sums of one problem, and the steps in which tiles add to them."""

    def __init__(self, problem: Problem, upstream: Upstream, *, moments: bool, threads: int):
        self.problem, self.upstream, self.moments = problem, upstream, moments
        self.first, self.last = problem.visible(np.arange(problem.q.shape[1]))
        self.spaces = [_Space(problem) for _ in range(max(1, threads))]
        self.sums: dict[str, Array] = {}

    def solve(self) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            result = self._rows()
            kinds = ("", "_spread", "_magnitude", "_from_delta") if self.moments else ("",)
            for kind in kinds:
                self.sums |= {f"dq{kind}": np.zeros(self.problem.q.shape), f"dk{kind}": np.zeros(self.problem.k.shape)}
                if kind != "_from_delta":
                    self.sums[f"dv{kind}"] = np.zeros(self.problem.v.shape)
            if self.moments:
                self.sums["ds_max"] = np.zeros(result["lse"].shape)
        self._run(_Tile.add)
        with np.errstate(all="ignore"):
            return result | self._finish()

    def _rows(self) -> dict[str, Array]:
        """Solve the forward, and what one number a row is enough for: delta, dsink and their moments."""
        problem, upstream = self.problem, self.upstream
        solved = fp64.forward(problem, threads=len(self.spaces))
        lse, empty = solved["lse"], self.first >= self.last
        delta, from_o = np.zeros(lse.shape), np.zeros(lse.shape)
        for start in range(0, problem.q.shape[1], ROWS):
            rows = slice(start, start + ROWS)
            terms = solved["o"][:, rows] * widen(upstream.dout[:, rows])
            delta[:, :, rows] = terms.sum(axis=3).swapaxes(1, 2)
            from_o[:, :, rows] = np.sqrt((terms * terms).sum(axis=3)).swapaxes(1, 2)
        del solved
        delta[..., empty] = from_o[..., empty] = 0.0
        below = delta if upstream.dlse is None else delta - upstream.dlse
        result = {"delta": delta, "lse": lse}
        # Rows without a key are left to their mask: any finite LSE and D will do.
        self.lse, self.below = lse.copy(), below.copy()
        self.lse[..., empty] = self.below[..., empty] = 0.0
        if self.moments:
            self.sums["delta_from_p"] = np.zeros(lse.shape)
            self._run(_Tile.add_delta_from_p)
            from_p = np.sqrt(self.sums.pop("delta_from_p"))
            result |= {"delta_from_o": from_o, "delta_from_p": from_p}
            self.sigma = np.hypot(from_o, from_p)
        if problem.sink is not None:
            sink = problem.sink[:, None]
            weight = np.where(lse == sink, 1.0, np.exp(sink - lse))
            result["dsink"] = -(weight * below).sum(axis=(0, 2))
            if self.moments:
                result["dsink_from_delta"] = np.sqrt(((weight * self.sigma) ** 2).sum(axis=(0, 2)))
        return result

    def _finish(self) -> dict[str, Array]:
        scale, sums = self.problem.scale, self.sums
        sums["dq"] *= scale
        if self.moments:
            sums["dq_magnitude"] *= abs(scale)
            sums["dq_from_delta"] *= abs(scale) * self.sigma.swapaxes(1, 2)[..., None]
            np.abs(sums["dq_from_delta"], out=sums["dq_from_delta"])
            for name in ("dq_spread", "dk_spread", "dv_spread", "dk_from_delta"):
                np.sqrt(sums[name], out=sums[name])
            sums["dq_spread"] *= abs(scale)
        return sums

    def _run(self, add: Callable[[_Tile], None]) -> None:
        """Go through all tiles; threads share those of a step, and all end it before the next begins."""
        if len(self.spaces) == 1:
            for step in self._steps():
                self._share(add, self.spaces[0], step)
            return
        with ThreadPoolExecutor(len(self.spaces)) as pool:
            for step in self._steps():
                parts = [step[t :: len(self.spaces)] for t in range(len(self.spaces))]
                list(pool.map(self._share, [add] * len(parts), self.spaces, parts))

    def _share(self, add: Callable[[_Tile], None], space: _Space, places: Sequence[Place]) -> None:
        with np.errstate(all="ignore"):
            for place in places:
                add(_Tile(self, space, place))

    def _steps(self) -> Iterator[list[Place]]:
        """Yield lists of tiles of which no two have rows, or keys of a key head, in common."""
        problem = self.problem
        batch, seqlen_q, heads, _ = problem.q.shape
        keys = range(0, problem.k.shape[1], KEYS)
        rows = [(member, i) for member in range(problem.group) for i in range(0, seqlen_q, ROWS)]
        count = max(len(rows), len(keys))
        for turn in range(count):
            step = []
            for r, (member, i) in enumerate(rows):
                c = (turn - r) % count
                if c >= len(keys):
                    continue
                end = min(i + ROWS, seqlen_q) - 1
                if keys[c] < self.last[end] and keys[c] + KEYS > self.first[i]:  # both grow with the row
                    step += [(b, h, i, keys[c]) for b in range(batch) for h in range(member, heads, problem.group)]
            if step:
                yield step


class _Space:
    """Buffers for one thread's tile: allocating them anew costs more than exp does."""

    def __init__(self, problem: Problem):
        width, width_v = problem.q.shape[3], problem.v.shape[3]
        self.q, self.dout = np.empty((ROWS, width)), np.empty((ROWS, width_v))
        self.k, self.v = np.empty((KEYS, width)), np.empty((KEYS, width_v))
        self._tiles = [np.empty(ROWS * KEYS) for _ in range(2)]
        self._product = np.empty(max(ROWS, KEYS) * max(width, width_v))

    def tile(self, which: int, rows: int, keys: int) -> Array:
        return self._tiles[which][: rows * keys].reshape(rows, keys)

    def product(self, rows: int, columns: int) -> Array:
        return self._product[: rows * columns].reshape(rows, columns)


class _Tile:
    """P and dP of one block of rows by one block of keys, and what they add to the sums."""

    def __init__(self, solver: _Solver, space: _Space, place: Place):
        b, h, i, j = place
        problem, upstream = solver.problem, solver.upstream
        rows, keys = slice(i, min(i + ROWS, problem.q.shape[1])), slice(j, min(j + KEYS, problem.k.shape[1]))
        self.solver, self.space = solver, space
        self.by_row, self.by_key, self.of_row = (b, rows, h), (b, keys, h // problem.group), (b, h, rows)
        n, m = rows.stop - rows.start, keys.stop - keys.start
        self.q = widen(problem.q[self.by_row], space.q[:n])
        self.q *= problem.scale  # gives dK its scale as well
        self.dout = widen(upstream.dout[self.by_row], space.dout[:n])
        self.k, self.v = widen(problem.k[self.by_key], space.k[:m]), widen(problem.v[self.by_key], space.v[:m])
        self.below = solver.below[self.of_row][:, None]
        first, last = solver.first[rows, None], solver.last[rows, None]
        self.seen: NDArray[np.bool_] | None = None
        if keys.start < first[-1] or keys.stop > last[0]:
            columns = np.arange(keys.start, keys.stop)
            self.seen = (columns >= first) & (columns < last)
        lse = solver.lse[self.of_row][:, None]
        operands = (self.q, self.dout, self.k, self.v, self.below, lse)
        self.special = not all(np.isfinite(x).all() for x in operands)
        self.p = space.tile(0, n, m)
        self.slope: Array | None = None
        self._weights(lse)
        self.dp = np.matmul(self.dout, self.v.T, out=space.tile(1, n, m))

    def _weights(self, lse: Array) -> None:
        p, cap = np.matmul(self.q, self.k.T, out=self.p), self.solver.problem.softcap
        if cap:
            p /= cap
            self.slope = _slope(p)
            if self.special:
                self.slope[(self.slope == 0) & np.isfinite(p)] = TINY
            np.tanh(p, out=p)
            p *= cap
        p -= lse
        alive = p > -np.inf if self.special else None
        np.exp(p, out=p)
        if alive is not None:
            p[alive & (p == 0)] = TINY
        if self.seen is not None:
            np.copyto(p, 0.0, where=~self.seen)

    def add(self) -> None:
        """Add to dq, dk, dv and, where asked for, their moments."""
        p, ds = self.p, self.dp
        self._to_keys("dv", p, self.dout)
        ds -= self.below
        ds *= p
        if self.slope is not None:
            ds *= self.slope
        if self.seen is not None:
            np.copyto(ds, 0.0, where=~self.seen)
        self._to_keys("dk", ds, self.q)
        self._to_rows("dq", ds, self.k)
        if self.solver.moments:
            self._add_moments()

    def _add_moments(self) -> None:
        p, ds, q, k, dout = self.p, self.dp, self.q, self.k, self.dout
        slopes = p if self.slope is None else p * self.slope
        leaning = slopes * self.solver.sigma[self.of_row][:, None]
        self._to_rows("dq_from_delta", slopes, k)
        for x in (ds, q, k, dout):
            np.abs(x, out=x)
        largest = self.solver.sums["ds_max"][self.of_row]
        np.maximum(largest, ds.max(axis=1), out=largest)
        self._to_keys("dv_magnitude", p, dout)
        self._to_keys("dk_magnitude", ds, q)
        self._to_rows("dq_magnitude", ds, k)
        for x in (p, ds, q, k, dout, leaning):
            x *= x
        self._to_keys("dv_spread", p, dout)
        self._to_keys("dk_spread", ds, q)
        self._to_rows("dq_spread", ds, k)
        self._to_keys("dk_from_delta", leaning, q)

    def add_delta_from_p(self) -> None:
        """Add the squares of P dP, row by row."""
        self.dp *= self.p
        if self.seen is not None:
            np.copyto(self.dp, 0.0, where=~self.seen)
        self.dp *= self.dp
        self.solver.sums["delta_from_p"][self.of_row] += self.dp.sum(axis=1)

    def _to_keys(self, name: str, weights: Array, values: Array) -> None:
        self._add(self.solver.sums[name][self.by_key], weights.T, values, None if self.seen is None else self.seen.T)

    def _to_rows(self, name: str, weights: Array, values: Array) -> None:
        self._add(self.solver.sums[name][self.by_row], weights, values, self.seen)

    def _add(self, into: Array, weights: Array, values: Array, seen: NDArray[np.bool_] | None) -> None:
        if self.special:
            into += weighted_sum(weights, values, seen)
        else:
            into += np.matmul(weights, values, out=self.space.product(*into.shape))


def _slope(x: Array) -> Array:
    """Return 1 - tanh^2(x), to a few ulp of itself."""
    e = np.abs(x)
    e *= -2.0
    np.exp(e, out=e)
    below = e + 1.0
    below *= below
    e *= 4.0
    e /= below
    return e
