"""Attention in float64 on a GPU: tiles64.py's kernels, and torch's products where scores go through memory.

Contract: what fp64.py and backward.py compute, by the same formulas on the same stored inputs; the names, shapes and
moments are theirs. Bits depend on where it ran, and are the same from run to run; tiles64.py derives the errors, and a
result is certified as theirs is, on the CPU. `serves` says whether a problem is done here: inputs that are not finite
keep to the CPU, whose rules for them are exact, and so do those whose scores may exceed LARGEST nats: a backward
computes them twice, in sums of another order, and exp of their difference would be no weight (at scores of 1e36 it was
infinity where one key had all the weight). So do softcaps above CAP (at 1e18 every score was 0) and more than GRID
heads in all. A forward whose heads are no wider than FUSED and that needs no moments never stores scores. All else
takes blocks of rows by all keys that some of them see: wider heads' accumulators do not fit the registers, and moments
are up to eleven products with the same weights, which are cheaper read than made anew.

Working memory: BYTES for a block's scores or weights, twice that with moments or in a backward, three times with both
and a softcap, beside the operands and results in float64.

Speed: on a GPU with fast float64 at least half the rate of a float64 product of 8192 x 8192 matrices, in the same run,
where the GPU is full and all keys are seen; docs/gpu.md has the H200's figures, causal ones and small problems too
(`benchmarks/device64.py`). Every call costs the host some 50 us there, and one that allocates more, so that a block
reuses its places and nothing waits for the device.
"""

from __future__ import annotations

import importlib
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from fa4verify.references.backward import Upstream
    from fa4verify.references.problem import Problem

    Array = NDArray[np.float64]
    T = torch.Tensor

BYTES = 1 << 29
CAP = 2.0**10  # tanh of tiles64.py is good to 3 u of 1, not of itself: above, small scores would lose their last places
GRID = 65535  # heads of a batch: what CUDA allows in a grid's second and third dimension
LARGEST = 2.0**30  # a score's rounding, some 2^-53 of it a term, then moves a weight by 2^-20 at most
PARTS = 4  # blocks of rows where rows see unlike keys: more waste fewer products and wait longer for the host
FUSED = 128
ALIGNED = 64  # a block starts at a multiple of it: products from an odd row on are a quarter slower
# Rows, keys, warps and stages of a tile, by the padded head dim (64 or less, 128) and whether rows see unlike keys: the
# fastest of nine (four at 128) on an H200; no register spills.
TILES = {
    (64, False): (64, 64, 4, 2),
    (64, True): (128, 64, 8, 2),
    (128, False): (128, 32, 8, 2),
    (128, True): (128, 32, 8, 2),
}
WEIGHTS = (64, 32, 16, 4, 3)  # rows, keys, step along the head dim, warps, stages: of eight the fastest without spills
SOFTMAX = (1, 2048, 8)  # rows, keys, warps: the fastest of five


def serves(problem: Problem, upstream: Upstream | None = None) -> bool:
    """Return whether everything is finite, the scores are of a size that can be recomputed, and there is any."""
    if problem.softcap > CAP or problem.q.shape[0] * problem.q.shape[2] > GRID:
        return False
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
    with _current(device):
        place = _Placed(problem, device)
        return {name: place.numpy(name, values) for name, values in place.forward(moments=moments).items()}


def backward(problem: Problem, upstream: Upstream, device: str, *, moments: bool = False) -> dict[str, Array]:
    """Return what `backward.backward` returns."""
    with _current(device):
        place = _Placed(problem, device)
        return {name: place.numpy(name, values) for name, values in place.backward(upstream, moments=moments).items()}


def _current(device: str) -> AbstractContextManager[Any]:
    """Make it the device that Triton launches on; under its interpreter there is none."""
    return nullcontext() if device == "cpu" else torch.cuda.device(device)


@dataclass
class _Block:
    """Rows [start, stop) of all heads, the keys that some of them see."""

    rows: slice
    keys: slice


class _Placed:
    """A problem on a device, in float64, as (batch * heads_kv, group, seqlen, width): heads of a group lie together."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem, self.device = problem, device
        batch, self.seqlen_q, heads, _ = problem.q.shape
        self.group, self.shared = problem.group, batch * problem.k.shape[2]
        self.batch, self.heads = batch, heads
        self.q = (self.of_queries(problem.q) * problem.scale).contiguous()
        self.k, self.v = self.of_keys(problem.k), self.of_keys(problem.v)
        self.first, self.last = problem.visible(np.arange(self.seqlen_q))
        empty = self.first >= self.last
        self.empty = torch.from_numpy(empty).to(device) if empty.any() else None
        self.masked = problem.left is not None or problem.right is not None
        self.edges = [torch.from_numpy(x.astype(np.int32)).to(device) for x in (self.first, self.last)]
        self.cap = torch.full((1,), problem.softcap, dtype=torch.float64, device=device)
        self.memory: list[T] = []
        self.tiles = importlib.import_module("fa4verify.references.tiles64")

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

    def step(self) -> int:
        """Return a block's rows."""
        step = BYTES // (8 * max(1, self.k.shape[1]) * self.shared * self.group)
        if self.masked:  # what a block's last row sees is paid for by all its rows
            step = min(step, max(step // 16, self.seqlen_q // PARTS))
        if step > ALIGNED:
            step -= step % ALIGNED
        return int(max(1, min(self.seqlen_q, step)))

    def blocks(self) -> Iterator[_Block]:
        """Yield blocks of rows whose scores fit BYTES, without those that see nothing."""
        step = self.step()
        for start in range(0, self.seqlen_q, step):
            stop = min(start + step, self.seqlen_q)
            low, high = int(self.first[start]), int(self.last[stop - 1])  # both grow with the row
            if low < high:
                yield _Block(slice(start, stop), slice(low, high))

    def buffers(self, block: _Block, count: int) -> list[T]:
        """Return places for (shared, group, rows, keys), the same for every block: new ones cost more than a kernel."""
        rows, keys = block.rows.stop - block.rows.start, block.keys.stop - block.keys.start
        shape = (self.shared, self.group, rows, keys)
        while len(self.memory) < count:  # the widest block may come last
            self.memory.append(self._empty(self.shared * self.group * self.step() * self.k.shape[1]))
        return [x[: math.prod(shape)].view(shape) for x in self.memory[:count]]

    def forward(self, *, moments: bool) -> dict[str, T]:
        """Return results in this class's layout, on the device."""
        like_lse = (self.shared, self.group, self.seqlen_q)
        o = self._zeros(*like_lse, self.v.shape[2])
        lse, weight, top_key, top = (self._zeros(*like_lse) for _ in range(4))
        found = {"o": o, "lse": lse, "top_key": top_key, "top_weight": weight}
        if not moments and max(self.k.shape[2], self.v.shape[2]) <= FUSED:
            self._fused(found)
        else:
            if moments:
                found |= {"spread": torch.zeros_like(o), "magnitude": torch.zeros_like(o), "row_max": top}
            self._through_memory(found, top, moments=moments)
        self._close(found, moments)
        return found

    def _fused(self, found: dict[str, T]) -> None:
        """Solve without scores in memory."""
        width, width_v, seqlen_k = self.k.shape[2], self.v.shape[2], self.k.shape[1]
        padded, padded_v = (max(16, 1 << (x - 1).bit_length()) for x in (width, width_v))
        m, n, warps, stages = TILES[max(64, padded, padded_v), self.masked]
        self.tiles.forward[(self.shared * self.group, -(-self.seqlen_q // m))](
            self.q, self.k, self.v, *self.edges, self.cap,
            found["o"], found["lse"], found["top_key"], found["top_weight"],
            self.group, self.seqlen_q, seqlen_k,
            D=width, DV=width_v, BD=padded, BDV=padded_v, M=m, N=n,
            CAPPED=self.problem.softcap != 0, MASKED=self.masked or seqlen_k % n != 0,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def _through_memory(self, found: dict[str, T], top: T, *, moments: bool) -> None:
        for block in self.blocks():
            rows, keys, values = block.rows, block.keys, self.v[:, block.keys]
            q, k = self.q[:, :, rows], self.k[:, keys]
            p, *squares = self.buffers(block, 2 if moments else 1)
            flat = p.view(self.shared, -1, p.shape[3])
            torch.bmm(q.reshape(self.shared, -1, q.shape[3]), k.transpose(1, 2), out=flat)
            self.tiles.softmax[(-(-p.shape[2] // SOFTMAX[0]), self.shared * self.group)](
                p, *(squares or [p]), *self.edges, self.cap, found["lse"], found["top_key"], found["top_weight"], top,
                rows.start, keys.start, p.shape[2], p.shape[3], self.seqlen_q,
                M=SOFTMAX[0], N=SOFTMAX[1], CAPPED=self.problem.softcap != 0, SQUARES=moments, num_warps=SOFTMAX[2],
            )  # fmt: skip
            one = found["top_weight"][:, :, rows, None]
            if not moments:
                found["o"][:, :, rows] = self._product(p, values) * one
                continue
            both = self._product(p, torch.cat((values, values.abs()), dim=2)) * one
            width = values.shape[2]
            found["o"][:, :, rows], found["magnitude"][:, :, rows] = both[..., :width], both[..., width:]
            found["spread"][:, :, rows] = self._product(squares[0], values * values).sqrt_() * one

    def _close(self, found: dict[str, T], moments: bool) -> None:
        """Take the sink into account, and set what rows without keys are declared to give."""
        sink = self.sink()
        self.set_empty(found["lse"], -math.inf)
        if sink is not None:
            both = torch.logaddexp(found["lse"], sink)
            share = (found["lse"] - both).exp()
            found["lse"].copy_(both)
            found["top_weight"] *= share
            for name in ("o", "spread", "magnitude") if moments else ("o",):
                found[name] *= share[..., None]
        for name in found.keys() - {"lse"}:
            self.set_empty(found[name], {"top_key": -1.0, "row_max": -math.inf}.get(name, 0.0))

    def set_empty(self, values: T, value: float) -> T:
        """Set what belongs to rows without keys."""
        if self.empty is not None:
            values.masked_fill_(self.empty if values.ndim == 3 else self.empty[:, None], value)
        return values

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
        self.set_empty(delta, 0.0)
        self.set_empty(from_o, 0.0)
        below = delta if upstream.dlse is None else delta - self._of_rows(upstream.dlse)
        lse = self.set_empty(solved["lse"].clone(), 0.0)
        sums = _Sums(self, dout.contiguous(), lse, self.set_empty(below.clone(), 0.0), from_o, moments=moments)
        for block in self.blocks():
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

    def _empty(self, *shape: int) -> T:
        return torch.empty(shape, dtype=torch.float64, device=self.device)

    def _zeros(self, *shape: int) -> T:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)


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
        rows, keys, placed, moments = block.rows, block.keys, self.placed, self.moments
        q, dout, k = placed.q[:, :, rows], self.dout[:, :, rows], placed.k[:, keys]
        m, n, depth, warps, stages = WEIGHTS
        shape = (placed.shared, placed.group, q.shape[2], k.shape[1])
        tiles = (-(-shape[3] // n), -(-shape[2] // m), shape[0] * shape[1])
        cap = placed.problem.softcap != 0
        p, ds, *rest = placed.buffers(block, 3 if cap and moments else 2)
        slopes = rest[0] if rest else p
        parts = [placed._empty(*shape[:3], tiles[0]) if moments else p for _ in range(2)]
        placed.tiles.weights[tiles](
            placed.q, placed.k, self.dout, placed.v, *placed.edges, self.lse, self.below, placed.cap,
            p, ds, slopes, *parts, rows.start, keys.start, shape[2], shape[3],
            placed.group, placed.seqlen_q, placed.k.shape[1],
            D=q.shape[3], DV=dout.shape[3], BK=depth, M=m, N=n, CAPPED=cap, MASKED=placed.masked, MOMENTS=moments,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        self._to_keys("dk", keys, ds, q)
        self.found["dq"][:, :, rows] = placed._product(ds, k)
        if not moments:
            self._to_keys("dv", keys, p, dout)
            return
        self._to_keys("dv dv_magnitude", keys, p, torch.cat((dout, dout.abs()), dim=3))
        self.from_p[:, :, rows] = parts[0].sum(dim=3).sqrt()
        self.found["ds_max"][:, :, rows] = parts[1].amax(dim=3)
        self.sigma[:, :, rows] = torch.hypot(self.from_o[:, :, rows], self.from_p[:, :, rows])
        self._add_moments(rows, keys, slopes, p, ds, q, k, dout)

    def _add_moments(self, rows: slice, keys: slice, slopes: T, p: T, ds: T, q: T, k: T, dout: T) -> None:
        product = self.placed._product
        self.found["dq_from_delta"][:, :, rows] = product(slopes, k)
        ds.abs_()
        self._to_keys("dk_magnitude", keys, ds, q.abs())
        self.found["dq_magnitude"][:, :, rows] = product(ds, k.abs())
        ds.pow_(2)
        self._to_keys("dk_spread", keys, ds, q * q)
        self.found["dq_spread"][:, :, rows] = product(ds, k * k)
        leaning = (q * self.sigma[:, :, rows, None]).pow_(2)
        p.pow_(2)
        if slopes is p:
            self._to_keys("dv_spread dk_from_delta", keys, p, torch.cat((dout * dout, leaning), dim=3))
        else:
            self._to_keys("dv_spread", keys, p, dout * dout)
            self._to_keys("dk_from_delta", keys, slopes.pow_(2), leaning)

    def _to_keys(self, names: str, keys: slice, weights: T, values: T) -> None:
        """Add weights (shared, group, rows, keys), transposed, times values (shared, group, rows, their widths)."""
        flat = weights.view(self.placed.shared, -1, weights.shape[3]).transpose(1, 2)
        values = values.reshape(self.placed.shared, flat.shape[2], -1)
        if " " not in names:
            self.found[names][:, keys].baddbmm_(flat, values)
            return
        products = torch.bmm(flat, values)
        for name in names.split():
            width = self.found[name].shape[2]
            self.found[name][:, keys] += products[:, :, :width]
            products = products[:, :, width:]

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


def _torch(stored: Any) -> T:
    """Return a tensor of a stored array; bfloat16 where it holds bit patterns."""
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(stored))
