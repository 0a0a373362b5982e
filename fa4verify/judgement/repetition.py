"""What runs of one case have in common, bit for bit.

Contract: `observe` reads outputs one by one and keeps copies of the first (one where it lies, one on the CPU), a digest
of each other one and where it differs: the memory does not grow with the number of runs. Runs are compared with the
first where they lie; only one that differs comes to the CPU. Equal means equal bits: -0 is not +0, and a NaN is its
payload. Largest differences are taken where both values are finite.

`rate_bound` is the one-sided 95 % Clopper-Pearson bound on the rate at which a run leaves the pattern that most runs
have; no difference in N runs bounds it by 1 - 0.05^(1/N): 14 % for 20 runs, 1.5 % for 200. It takes runs as
independent, which is the assumption to doubt first: an idle GPU may order its blocks in the same way for an hour.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import betaincinv

from fa4verify.judgement.layout import given
from fa4verify.vocabulary import TENSORS, Case, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from fa4verify.vocabulary import Output, Truth

CONFIDENCE = 0.95
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """Where a run first differed from the first one: its number, the index, both values."""

    run: int
    index: tuple[int, ...]
    first: float
    other: float


@dataclass
class Seen:
    """One tensor over all runs so far; `differing` counts the elements of each run that differ from the first's."""

    first: torch.Tensor
    there: torch.Tensor
    digests: list[bytes] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    largest: float = 0.0
    largest_at: tuple[int, ...] | None = None
    difference: Difference | None = None
    rmse: list[float] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """The number of runs that gave this tensor."""
        return len(self.digests)

    @property
    def distinct(self) -> int:
        """The number of bit patterns."""
        return len(set(self.digests))

    @property
    def strays(self) -> int:
        """The number of runs without the commonest pattern."""
        return self.runs - Counter(self.digests).most_common(1)[0][1]


@dataclass(frozen=True)
class Observed:
    """All runs: each tensor that they gave, what the first of them said of itself, and its counts at their least."""

    tensors: Mapping[str, Seen]
    activity: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


def observe(outputs: Iterable[Output], truth: Truth | None = None) -> Observed:
    """Look at the outputs of several runs, one at a time; with a truth, also at the RMSE of each gradient."""
    seen: dict[str, Seen] = {}
    first: Output | None = None
    least: dict[str, float] = {}
    for run, output in enumerate(outputs):
        first = first or output
        least = {name: min(count, least.get(name, count)) for name, count in output.activity.items()}
        for name in TENSORS["repeat"]:
            tensor = given(output, name)
            if tensor is None:
                continue
            # Copies: a kernel that returns the same memory each time would else be compared with itself.
            here = seen.get(name) or Seen(tensor.detach().to("cpu", copy=True).contiguous(), tensor.detach().clone())
            seen[name] = here
            repeated = _add(here, run, tensor.detach())
            if truth is not None and name in truth.tensors:
                known = repeated and here.rmse
                here.rmse.append(here.rmse[0] if known else _rmse(tensor, truth.tensors[name]))
    return Observed(seen, least, dict(first.provenance) if first else {})


def measure(
    case: Case, runs: Observed, shuffled: Observed | None = None, ordered: Observed | None = None
) -> dict[str, Metrics]:
    """Return the metrics of each tensor.

    Parameters
    ----------
    case
        The case of operation repeat.
    runs
        Its runs.
    shuffled
        Runs of the twin whose order of adds is random, None where there is none.
    ordered
        A run of the same kernel with deterministic=True, where the case has deterministic=False.
    """
    metrics = {}
    for name, seen in runs.tensors.items():
        values = {
            "elements": float(seen.first.numel()),
            "runs": float(seen.runs),
            "distinct": float(seen.distinct),
            "max_difference": seen.largest,
            "differing_share": _share(seen),
            "rate_bound": rate_bound(seen.strays, seen.runs),
        }
        twin = None if shuffled is None else shuffled.tensors.get(name)
        if twin is not None and name in order_dependent(case):
            values["distinct_shuffled"] = float(twin.distinct)
        if twin is not None and _says_less(seen.first, twin.first):
            values["says_less"] = 1.0
        values |= _spread(seen, None if ordered is None else ordered.tensors.get(name))
        where = {} if seen.difference is None else {"distinct": seen.difference.index}
        if seen.largest_at is not None:
            where["max_difference"] = seen.largest_at
        metrics[name] = Metrics(values, where)
    return metrics


def _says_less(tensor: torch.Tensor, twin: torch.Tensor) -> bool:
    """Return whether it holds more NaN and infinity than the twin's, or one number where the twin's does not."""
    if int((~tensor.isfinite()).sum()) > int((~twin.isfinite()).sum()):
        return True
    return constant(tensor) and not constant(twin)


def constant(tensor: torch.Tensor) -> bool:
    """Return whether it is one number everywhere; NaN is none."""
    return bool((tensor == tensor.reshape(-1)[:1]).all())


def order_dependent(case: Case) -> tuple[str, ...]:
    """Return the tensors whose bits depend on an order of adds: dQ, and dK and dV where heads share them."""
    return ("dq", "dk", "dv") if case.shape.heads > case.shape.heads_kv else ("dq",)


def rate_bound(strays: int, runs: int) -> float:
    """Return the bound that the rate of strays keeps with 95 % confidence, after so many of so many runs."""
    if strays >= runs:
        return 1.0
    return float(betaincinv(strays + 1, runs - strays, CONFIDENCE))


def _add(seen: Seen, run: int, tensor: torch.Tensor) -> bool:
    """Add a run; return whether it has the first one's bits."""
    if seen.digests and _same(seen.there, tensor):
        seen.digests.append(seen.digests[0])
        seen.differing.append(0)
        return True
    tensor = tensor.cpu().contiguous()
    bits, before = _bits(tensor), _bits(seen.first)
    seen.digests.append(hashlib.blake2b(bits.tobytes(), digest_size=16).digest())
    if seen.digests[-1] == seen.digests[0]:
        seen.differing.append(0)
        return True
    places = np.flatnonzero(bits != before)
    seen.differing.append(len(places))
    old, new = (_values(x)[places] for x in (seen.first, tensor))
    shape = tuple(tensor.shape)
    if seen.difference is None:
        seen.difference = Difference(run, _index(int(places[0]), shape), float(old[0]), float(new[0]))
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(old) & np.isfinite(new), np.abs(new - old), -1.0)
    worst = int(np.argmax(off))
    if off[worst] > seen.largest:
        seen.largest, seen.largest_at = float(off[worst]), _index(int(places[worst]), shape)
    return False


def _same(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both hold the same bits on the same device; False says nothing of another device's."""
    alike = (first.device, first.dtype, first.shape) == (other.device, other.dtype, other.shape)
    kind = _INTEGERS[first.element_size()]
    return alike and torch.equal(first.view(kind), other.view(kind))


def _share(seen: Seen) -> float:
    """Return which share of elements differs from the first run's, the mean over the other runs."""
    others = (seen.runs - 1) * seen.first.numel()
    return sum(seen.differing) / others if others else 0.0


def _spread(seen: Seen, ordered: Seen | None) -> dict[str, float]:
    """Return the RMSE's mean, range, the one in the deterministic order, and the share of orders that are better."""
    if not seen.rmse:
        return {}
    values = {"rmse": fmean(seen.rmse), "rmse_low": min(seen.rmse), "rmse_high": max(seen.rmse)}
    if ordered is not None and ordered.rmse:
        own = ordered.rmse[0]
        values |= {"rmse_deterministic": own, "orders_better": fmean(value < own for value in seen.rmse)}
    return values


def _rmse(tensor: torch.Tensor, truth: NDArray[np.float64]) -> float:
    off = tensor.detach().cpu().double().numpy() - truth
    off = off[np.isfinite(off)]
    return float(np.sqrt(np.mean(off * off))) if off.size else 0.0


def _bits(tensor: torch.Tensor) -> NDArray[Any]:
    bits: NDArray[Any] = tensor.view(_INTEGERS[tensor.element_size()]).numpy().reshape(-1)
    return bits


def _values(tensor: torch.Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = tensor.double().numpy().reshape(-1)
    return values


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
