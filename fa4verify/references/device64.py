"""Attention in float64 on a GPU, a block of query rows by all their keys at a time.

Contract: what fp64.py and backward.py compute, by the same formulas on the same stored inputs, with torch's float64
matrix products; the names, shapes and moments are theirs. Bits depend on where it ran, but each result lies within the
error bounds of those modules' docstrings (the scale is folded into q, which costs the rounding that they spend on the
score), and is certified as theirs is, on the CPU. `serves` says whether a problem is done here: inputs that are not
finite keep to the CPU, whose rules for them are exact, and so do those whose scores may exceed LARGEST nats: here a
backward computes them twice, in sums of another order, and exp of their difference would be no weight (at scores of
1e36 it was infinity where one key had all the weight).

Working memory: BYTES for a block's scores, three times that in a backward, and the operands in float64.

Speed: on a GPU with fast float64 at least half the rate of a float64 product of 8192 x 8192 matrices, in the same run
(`benchmarks/device64.py`; docs/gpu.md has the H200's figures). One softmax call reads scores from shared memory and
writes weights: exp, sum and division as separate operations read and write the tile three times more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fa4verify.references.backward import Upstream
    from fa4verify.references.problem import Problem

    Array = NDArray[np.float64]
    T = torch.Tensor

BYTES = 1 << 28
LARGEST = 2.0**30  # a score's rounding, some 2^-53 of it a term, then moves a weight by 2^-20 at most


def serves(problem: Problem, upstream: Upstream | None = None) -> bool:
    """Return whether everything is finite, the scores are of a size that can be recomputed, and there is any."""
    given: list[Any] = [problem.q, problem.k, problem.v]
    given += [] if problem.sink is None else [problem.sink]
    if upstream is not None:
        given += [upstream.dout, *([] if upstream.dlse is None else [upstream.dlse])]
    if not all(x.size > 0 and bool(_torch(x).isfinite().all()) for x in given):
        return False
    q, k = (float(_torch(x).abs().max()) for x in (problem.q, problem.k))
    return bool(q * k * problem.q.shape[3] * abs(problem.scale) <= LARGEST)


def forward(problem: Problem, device: str, *, moments: bool = False) -> dict[str, Array]:
    """Return what `fp64.forward` returns."""
    place = _Placed(problem, device)
    return {name: place.numpy(name, values) for name, values in place.forward(moments=moments).items()}


def backward(problem: Problem, upstream: Upstream, device: str, *, moments: bool = False) -> dict[str, Array]:
    """Return what `backward.backward` returns."""
    place = _Placed(problem, device)
    return {name: place.numpy(name, values) for name, values in place.backward(upstream, moments=moments).items()}


@dataclass
class _Block:
    """Rows [start, stop) of all heads, the keys that some of them see, and a mask where not all see all."""

    rows: slice
    keys: slice
    unseen: T | None


class _Placed:
    """A problem on a device, in float64, as (batch * heads_kv, group, seqlen, width): heads of a group lie together."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem, self.device = problem, device
        batch, self.seqlen_q, heads, _ = problem.q.shape
        self.group, self.shared = problem.group, batch * problem.k.shape[2]
        self.batch, self.heads = batch, heads
        self.q = self.of_queries(problem.q) * problem.scale
        self.k, self.v = self.of_keys(problem.k), self.of_keys(problem.v)
        self.first, self.last = problem.visible(np.arange(self.seqlen_q))
        self.empty = torch.from_numpy(self.first >= self.last).to(device)

    def of_queries(self, stored: Any) -> T:
        """Return (batch, seqlen_q, heads, width) as (batch * heads_kv, group, seqlen_q, width)."""
        wide = _torch(stored).to(self.device).double()
        return wide.permute(0, 2, 1, 3).reshape(self.shared, self.group, self.seqlen_q, wide.shape[3])

    def of_keys(self, stored: Any) -> T:
        """Return (batch, seqlen_k, heads_kv, width) as (batch * heads_kv, seqlen_k, width)."""
        wide = _torch(stored).to(self.device).double()
        return wide.permute(0, 2, 1, 3).reshape(self.shared, wide.shape[1], wide.shape[3]).contiguous()

    def numpy(self, name: str, values: T) -> Array:
        """Return a result in the layout of its tensor."""
        if name.startswith("dsink"):
            return np.asarray(values.cpu().numpy())
        if values.ndim == 4:
            values = values.reshape(self.batch, self.heads, self.seqlen_q, -1).permute(0, 2, 1, 3)
        elif name[:2] in ("dk", "dv"):
            values = values.reshape(self.batch, -1, values.shape[1], values.shape[2]).permute(0, 2, 1, 3)
        else:
            values = values.reshape(self.batch, self.heads, self.seqlen_q)
        return np.ascontiguousarray(values.cpu().numpy())

    def blocks(self, tiles: int) -> Iterator[_Block]:
        """Yield the blocks of rows that fit `tiles` tiles of scores into BYTES each, without those that see nothing."""
        seqlen_k = self.k.shape[1]
        step = max(
            1, min(self.seqlen_q, BYTES // (8 * max(1, seqlen_k) * self.shared * self.group * max(1, tiles // 2)))
        )
        for start in range(0, self.seqlen_q, step):
            stop = min(start + step, self.seqlen_q)
            low, high = int(self.first[start]), int(self.last[stop - 1])  # both grow with the row
            if low >= high:
                continue
            unseen = None
            if low < self.first[stop - 1] or high > self.last[start]:
                columns = torch.arange(low, high, device=self.device)
                edges = (torch.from_numpy(x[start:stop]).to(self.device)[:, None] for x in (self.first, self.last))
                first, last = edges
                unseen = (columns < first) | (columns >= last)
            yield _Block(slice(start, stop), slice(low, high), unseen)

    def scores(self, block: _Block, *, slope: bool = False) -> tuple[T, T | None]:
        """Return the scores in nats (shared, group, rows, keys), -inf where unseen, and the softcap's slope."""
        q, k, cap = self.q[:, :, block.rows], self.k[:, block.keys], self.problem.softcap
        flat = torch.bmm(q.reshape(self.shared, -1, q.shape[3]), k.transpose(1, 2))
        s = flat.view(self.shared, self.group, -1, k.shape[1])
        steep = None
        if cap:
            s /= cap
            steep = _slope(s) if slope else None
            s.tanh_().mul_(cap)
        if block.unseen is not None:
            s.masked_fill_(block.unseen, -math.inf)
        return s, steep

    def forward(self, *, moments: bool) -> dict[str, T]:
        """Return results in this class's layout, on the device."""
        like_lse = (self.shared, self.group, self.seqlen_q)
        width = self.v.shape[2]
        o = self._zeros(*like_lse, width)
        lse, weight = self._full(like_lse, -math.inf), self._zeros(*like_lse)
        top, top_key = self._full(like_lse, -math.inf), self._full(like_lse, -1.0)
        found = {"o": o, "lse": lse, "top_key": top_key, "top_weight": weight}
        if moments:
            found |= {"spread": torch.zeros_like(o), "magnitude": torch.zeros_like(o), "row_max": top}
        for block in self.blocks(2 if moments else 1):
            s, _ = self.scores(block)
            rows, values = block.rows, self.v[:, block.keys]
            largest, key = s.max(dim=3)
            p = torch.softmax(s, dim=3)
            mine = p.gather(3, key[..., None])[..., 0]
            lse[:, :, rows] = largest - mine.log()
            weight[:, :, rows], top[:, :, rows], top_key[:, :, rows] = mine, largest, (key + block.keys.start).double()
            o[:, :, rows] = self._product(p, values)
            if moments:
                found["magnitude"][:, :, rows] = self._product(p, values.abs())
                found["spread"][:, :, rows] = self._product(p.mul_(p), values * values).sqrt_()
        self._close(found, moments)
        return found

    def _close(self, found: dict[str, T], moments: bool) -> None:
        """Take the sink into account, and set what rows without keys are declared to give."""
        sink = self.sink()
        share = torch.ones_like(found["lse"])
        if sink is not None:
            both = torch.logaddexp(found["lse"], sink)
            share = (found["lse"] - both).exp()
            found["lse"].copy_(both)
        found["top_weight"] *= share
        for name in ("o", "spread", "magnitude") if moments else ("o",):
            found[name] *= share[..., None]
            found[name][:, :, self.empty] = 0.0
        found["lse"][:, :, self.empty] = -math.inf if sink is None else sink.expand_as(share)[:, :, self.empty]
        for name, value in (("top_weight", 0.0), ("top_key", -1.0), *([("row_max", -math.inf)] if moments else [])):
            found[name][:, :, self.empty] = value

    def sink(self) -> T | None:
        """Return the sinks as (shared, group, 1), which broadcasts over rows."""
        if self.problem.sink is None:
            return None
        sink = torch.from_numpy(self.problem.sink).to(self.device)
        return sink.view(1, -1, self.group, 1).expand(self.batch, -1, -1, 1).reshape(self.shared, self.group, 1)

    def backward(self, upstream: Upstream, *, moments: bool) -> dict[str, T]:
        """Return results in this class's layout, on the device."""
        solved = self.forward(moments=False)
        dout = self.of_queries(upstream.dout)
        terms = solved["o"] * dout
        delta = terms.sum(dim=3)
        from_o = terms.pow(2).sum(dim=3).sqrt() if moments else torch.zeros_like(delta)
        delta[:, :, self.empty] = from_o[:, :, self.empty] = 0.0
        below = delta if upstream.dlse is None else delta - self._of_rows(upstream.dlse)
        lse = solved["lse"].clone()
        lse[:, :, self.empty] = 0.0
        sums = _Sums(self, dout, lse, torch.where(self.empty, 0.0, below), from_o, moments=moments)
        for block in self.blocks(6 if moments else 3):
            sums.add(block)
        found = {"delta": delta, "lse": solved["lse"], **sums.finish()}
        if moments:
            found |= {"delta_from_o": from_o, "delta_from_p": sums.from_p}
        sink = self.sink()
        if sink is not None:
            weight = torch.where(solved["lse"] == sink, 1.0, (sink - solved["lse"]).exp())
            found["dsink"] = -self._over_rows(weight * below)
            if moments:
                found["dsink_from_delta"] = self._over_rows((weight * sums.sigma) ** 2).sqrt()
        return found

    def _over_rows(self, values: T) -> T:
        """Sum (shared, group, seqlen_q) over batch and rows: one number for each head."""
        return values.view(self.batch, -1, self.group, self.seqlen_q).sum(dim=(0, 3)).reshape(-1)

    def _of_rows(self, values: Array) -> T:
        return torch.from_numpy(values).to(self.device).reshape(self.shared, self.group, self.seqlen_q)

    def _product(self, weights: T, values: T) -> T:
        """Return weights (shared, group, rows, keys) times values (shared, keys, width)."""
        flat = torch.bmm(weights.reshape(self.shared, -1, weights.shape[3]), values)
        return flat.view(self.shared, self.group, -1, values.shape[2])

    def _zeros(self, *shape: int) -> T:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _full(self, shape: tuple[int, ...], value: float) -> T:
        return torch.full(shape, value, dtype=torch.float64, device=self.device)


class _Sums:
    """What blocks of rows add to the gradients and their moments."""

    def __init__(self, placed: _Placed, dout: T, lse: T, below: T, from_o: T, *, moments: bool) -> None:
        self.placed, self.dout, self.lse, self.below, self.moments = placed, dout, lse, below, moments
        self.from_o, self.from_p, self.sigma = from_o, torch.zeros_like(from_o), from_o.clone()
        self.found = {"dq": torch.zeros_like(placed.q)}
        self.found |= {"dk": torch.zeros_like(placed.k), "dv": torch.zeros_like(placed.v)}
        if moments:
            for kind in ("spread", "magnitude", "from_delta"):
                names = ("dq", "dk") if kind == "from_delta" else ("dq", "dk", "dv")
                self.found |= {f"{name}_{kind}": torch.zeros_like(self.found[name]) for name in names}
            self.found["ds_max"] = torch.zeros_like(lse)

    def add(self, block: _Block) -> None:
        """Add one block."""
        rows, keys, placed = block.rows, block.keys, self.placed
        s, slope = placed.scores(block, slope=True)
        p = s.sub_(self.lse[:, :, rows, None]).exp_()
        q, dout = placed.q[:, :, rows], self.dout[:, :, rows]
        k, v = placed.k[:, keys], placed.v[:, keys]
        flat = torch.bmm(dout.reshape(placed.shared, -1, v.shape[2]), v.transpose(1, 2))
        ds = flat.view_as(p)
        if self.moments:
            self.from_p[:, :, rows] = (p * ds).pow_(2).sum(dim=3).sqrt()
            self.sigma[:, :, rows] = torch.hypot(self.from_o[:, :, rows], self.from_p[:, :, rows])
        ds.sub_(self.below[:, :, rows, None]).mul_(p)
        if slope is not None:
            ds *= slope
        if block.unseen is not None:
            ds.masked_fill_(block.unseen, 0.0)
        self._to_keys("dv", keys, p, dout)
        self._to_keys("dk", keys, ds, q)
        self.found["dq"][:, :, rows] = placed._product(ds, k)
        if self.moments:
            self._add_moments(block, p if slope is None else p * slope, p, ds, q, k, dout)

    def _add_moments(self, block: _Block, slopes: T, p: T, ds: T, q: T, k: T, dout: T) -> None:
        rows, keys, product = block.rows, block.keys, self.placed._product
        leaning = slopes * self.sigma[:, :, rows, None]
        self.found["dq_from_delta"][:, :, rows] = product(slopes, k)
        self._to_keys("dk_from_delta", keys, leaning.pow_(2), q * q)
        ds.abs_()
        self.found["ds_max"][:, :, rows] = ds.amax(dim=3)
        self._to_keys("dv_magnitude", keys, p, dout.abs())
        self._to_keys("dk_magnitude", keys, ds, q.abs())
        self.found["dq_magnitude"][:, :, rows] = product(ds, k.abs())
        ds.pow_(2)
        self._to_keys("dv_spread", keys, p * p, dout * dout)
        self._to_keys("dk_spread", keys, ds, q * q)
        self.found["dq_spread"][:, :, rows] = product(ds, k * k)

    def _to_keys(self, name: str, keys: slice, weights: T, values: T) -> None:
        """Add weights (shared, group, rows, keys), transposed, times values (shared, group, rows, width)."""
        flat = weights.reshape(self.placed.shared, -1, weights.shape[3]).transpose(1, 2)
        self.found[name][:, keys] += torch.bmm(flat, values.reshape(self.placed.shared, flat.shape[2], -1))

    def finish(self) -> dict[str, T]:
        """Return the sums; q carries the scale already, k does not."""
        scale, found = self.placed.problem.scale, self.found
        found["dq"] *= scale
        if self.moments:
            found["dq_magnitude"] *= abs(scale)
            found["dq_from_delta"] = (found["dq_from_delta"] * (abs(scale) * self.sigma[..., None])).abs()
            for name in ("dq_spread", "dk_spread", "dv_spread", "dk_from_delta"):
                found[name].sqrt_()
            found["dq_spread"] *= abs(scale)
        return found


def _slope(x: T) -> T:
    """Return 1 - tanh^2(x), to a few ulp of itself."""
    e = (x.abs() * -2.0).exp_()
    return 4.0 * e / (e + 1.0).pow_(2)


def _torch(stored: Any) -> T:
    """Return a tensor of a stored array; bfloat16 where it holds bit patterns."""
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(stored))
