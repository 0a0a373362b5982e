"""FA4's forward once more, element by element: the second opinion on the emulated kernels' bits.

Plain Python over NumPy scalars, written from docs/arithmetic.md and FA4's source, sharing nothing with the kernels
but the floor (one FMA, MUFU, the polynomial, whole-tile matrix products). Visibility and visited tiles come from sets
of keys, not from FA4's index arithmetic. Slow: some microseconds for each element and operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from fa4verify.arithmetic import exp2, mufu
from fa4verify.arithmetic import fma as fused
from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.arithmetic.mma import matmul
from fa4verify.arithmetic.mufu_tanh import tanh

F = np.float32
LOG2_E, LN_2 = F(math.log2(math.e)), F(math.log(2))
INF, ONE = F(np.inf), F(1)


def fma(a, b, c):
    """One fp32 FMA; numba hands Python floats back, which must not go on as doubles."""
    return F(fused.fma(F(a), F(b), F(c)))


def ex2(x):
    """MUFU.EX2."""
    return F(mufu.ex2(F(x)))


def nearest_exp2(x, coefficients):
    """Reduce to nearest and evaluate: Python's round goes to even, as the magic number does."""
    y = max(F(-127.0), x) if x == x else F(-127.0)
    whole = round(float(y))
    p = coefficients[-1]
    for c in coefficients[-2::-1]:
        p = fma(p, F(y - F(whole)), c)
    return (np.int32(whole << 23) + p.view(np.int32)).view(F)


NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}


@dataclass
class Model:
    """Parameters as FA4 names them; `left`, `right` bound the window (None: unbounded).

    8-bit inputs: `qk_descale` and `v_descale` of the head, or `blocks`: scales of each row, each KV tile of K and V.
    """

    tile_m: int
    tile_n: int
    left: int | None = None
    right: int | None = None
    group: int = 1
    blackwell: bool = False
    ascending: bool = False
    threshold: float = 8.0
    columns: frozenset[int] = frozenset()
    coefficients: np.ndarray = field(default_factory=lambda: np.array(exp2.POLY_EX2[3], np.float32))
    nearest: bool = False
    scale: float | None = None
    softcap: float = 0.0
    sink: float | None = None
    p_dtype: str | None = None
    offset: float = 0.0
    qk_descale: np.float32 = ONE
    v_descale: np.float32 = ONE
    blocks: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def sees(self, i: int, j: int, sq: int, sk: int) -> bool:
        """Whether query i sees key j."""
        d = j - (i + sk - sq)
        return 0 <= j < sk and (self.left is None or d >= -self.left) and (self.right is None or d <= self.right)

    def tiles(self, row: int, sq: int, sk: int) -> list[int]:
        """KV tiles in visiting order: the hull of the keys that any row of the row tile would see."""
        start = row // self.tile_m * self.tile_m
        queries = {r // self.group for r in range(start, start + self.tile_m)}
        seen = [j // self.tile_n for i in queries for j in range(sk) if self.sees(i, j, sq, sk)]
        tiles = range(min(seen), max(seen) + 1) if seen else range(0)
        return list(tiles) if self.ascending else list(reversed(tiles))

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
        """One head: q (rows, d) packed, k (sk, d), v (sk, dv); returns o in the dtype of q and lse."""
        dtype = NAMES[q.dtype]
        eight = dtype in ("e4m3", "e5m2")
        arch = "sm100" if self.blackwell else "sm90"
        rows, sk = q.shape[0], k.shape[0]
        sq = rows // self.group
        q, k, v = (x.float().numpy() for x in (q, k, v))
        scale = F(q.shape[1] ** -0.5 if self.scale is None else self.scale)
        if self.softcap:
            c, scale = LOG2_E, F(scale * self.qk_descale)
        else:
            c = F(F(scale * LOG2_E) * self.qk_descale)
        q, k = (np.pad(x, ((0, 0), (0, -x.shape[1] % (32 if eight else 16)))) for x in (q, k))  # whole MMA steps
        pad = -sk % self.tile_n
        k, v = (np.concatenate([x, np.zeros((pad, x.shape[1]), F)]) for x in (k, v))
        o, lse = np.zeros((rows, v.shape[1]), F), np.full(rows, -INF)
        with np.errstate(all="ignore"):
            for r in range(rows):
                acc, m, sums, last = None, -INF, [F(0)] * 4, None
                for n in self.tiles(r, sq, sk):
                    keys = range(n * self.tile_n, (n + 1) * self.tile_n)
                    s = list(matmul(q[r : r + 1], k[keys.start : keys.stop].T, architecture=arch, dtype=dtype)[0])
                    unit = F(1)
                    if self.blocks:
                        of_rows, of_k, of_v = self.blocks
                        s = [F(x * F(of_rows[r] * of_k[n])) for x in s]
                        unit = unit if last is None else F(of_v[last] / of_v[n])
                        last = n
                    if self.softcap:
                        s = [F(self.softcap) * tanh(F(F(x * scale) / F(self.softcap))) for x in s]
                    s = [x if self.sees(r // self.group, j, sq, sk) else -INF for x, j in zip(s, keys, strict=True)]
                    p, factor, m, sums = (self.blackwell_step if self.blackwell else self.hopper_step)(
                        s, c, m, sums, acc is None
                    )
                    saturate = eight or self.p_dtype is not None
                    p16 = round_to(np.array([p]), FORMATS[self.p_dtype or dtype], saturate=saturate)
                    before = None if acc is None else (acc * F(factor * unit)).astype(F)
                    acc = matmul(p16.astype(F), v[keys.start : keys.stop], before, architecture=arch, dtype=dtype)
                descale = self.blocks[2][last] if self.blocks else self.v_descale
                o[r], lse[r] = self.finish(acc, m, sums, c, v.shape[1], descale)
        out = "bf16" if eight else dtype
        return torch.from_numpy(round_to(o, FORMATS[out]).astype(F)).to(getattr(torch, _TORCH[out])), lse

    def hopper_step(self, s, c, old, sums, first):
        """SM90: serial sums in the four threads of a quad."""
        new = np.fmax.reduce([old, *s])
        ref = F(0) if new == -INF else new
        p = [ex2(fma(x, c, fma(-ref, c, F(self.offset)))) for x in s]
        factor = F(1) if first else ex2(F(F(old - ref) * c))
        new_sums = []
        for thread in range(4):
            own = [p[j] for j in range(len(p)) if j % 8 // 2 == thread]
            total = F(F(0) + own[0]) if first else fma(sums[thread], factor, own[0])
            for x in own[1:]:
                total = F(total + x)
            new_sums.append(total)
        return p, factor, new, new_sums

    def blackwell_step(self, s, c, old, sums, first):
        """SM100: lazy maximum, polynomial columns, eight partial sums."""
        new = np.fmax.reduce([old, *s])
        ref, factor = (F(0) if new == -INF else new), F(0)
        if not first:
            a = F(F(old - ref) * c)
            factor = ex2(a)
            if self.threshold > 0 and a >= -self.threshold:
                new = ref = old
                factor = F(1)
        bias = fma(-ref, c, F(self.offset))
        x = [fma(value, c, bias) for value in s]
        polynomial = nearest_exp2 if self.nearest else exp2.ex2_emulation
        p = [F(polynomial(y, self.coefficients)) if j in self.columns else ex2(y) for j, y in enumerate(x)]
        partial = p[:8] if first else [F(F(sums[0] * factor) + p[0]), *p[1:8]]
        for j in range(8, len(p)):
            partial[j % 8] = F(partial[j % 8] + p[j])
        a, b = (F(F(partial[i] + partial[i + 2]) + F(partial[i + 4] + partial[i + 6])) for i in (0, 1))
        return p, factor, new, [F(a + b)]

    def finish(self, acc, m, sums, c, width, descale):
        """Normalise by the reciprocal of the sum; LSE."""
        total = sums[0] if self.blackwell else F(F(sums[0] + sums[1]) + F(sums[2] + sums[3]))
        if acc is None:
            acc, m, total = np.zeros((1, width), F), -INF, F(0)
        log2_max = None
        if self.sink is not None:
            if m == -INF:
                log2_max, total = F(F(self.sink) * LOG2_E), ex2(self.offset)
            else:
                # ptxas contracts on SM100; on SM90 the product has a second use, so it does not
                product = F(F(self.sink) * LOG2_E)
                gap = fma(F(self.sink), LOG2_E, -F(m * c)) if self.blackwell else F(product - F(m * c))
                total = F(total + ex2(F(gap + F(self.offset))))
        if total == 0 or np.isnan(total):
            return acc[0], -INF
        log2_total = F(F(mufu.lg2(total)) - F(self.offset))
        log2_sum = fma(m, c, log2_total) if log2_max is None else log2_max
        if self.sink is not None and log2_max is None and not self.blackwell:
            log2_sum = F(F(m * c) + log2_total)
        return (acc[0] * F(F(mufu.rcp(total)) * F(descale))).astype(F), F(log2_sum * LN_2)


_TORCH = {"bf16": "bfloat16", "fp16": "float16"}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float tensors agree in every bit, any NaN equal to any other."""
    a, b = a.contiguous(), b.contiguous()
    size = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.dtype == b.dtype and bool(((a.view(size) == b.view(size)) | (a.isnan() & b.isnan())).all())
