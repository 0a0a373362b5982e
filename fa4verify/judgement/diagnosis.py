"""One-line hints at the cause of a failure, where the evidence is strong.

Contract: called on a FAIL only, and never decides one. A hint is given when a simple hypothesis (LSE in base 2, heads
permuted, O times a factor, ...) leaves less than a tenth of the error that it explains; a right output gets none, and
ordinary rounding noise gets none. Works on evenly spaced queries of large outputs, so that its cost is bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import FORMATS
from fa4verify.judgement.layout import format_name, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case, Output, Truth

    Array = NDArray[np.float64]

# What only the numerator PV or the row sum can cause; verdict.py makes it a finding of its own.
MISMATCH = "numerator/denominator mismatch"
# A hypothesis must leave no more than this share of the error it explains.
LEFT_OVER = 0.1
# Queries are thinned so that no more than about this many elements of O are looked at.
ELEMENTS = 1 << 20
# Errors below this many rounding units of the tensor's size are noise that no hypothesis should explain.
NOISE_UNITS = 4.0
# LSE counts as right below this error in nats, plus rounding: FA4's polynomial may cost it 8.8e-5.
LSE_RIGHT = 2e-4


@dataclass(frozen=True)
class _Evidence:
    """O as (batch, queries, heads, head_dim_v), LSE and row_max as (batch, queries, heads); None where not there."""

    case: Case
    o: Array | None
    o_truth: Array | None
    lse: Array | None
    lse_truth: Array | None
    row_max: Array | None


def diagnose(case: Case, output: Output, truth: Truth) -> list[tuple[str, str]]:
    """Return (tensor, hint) for every hypothesis that explains what is wrong with a forward or a backward."""
    if case.operation == "backward":
        return list(_gradients(case, output, truth))
    if case.operation != "forward" or "o" not in truth.tensors:
        return []
    evidence = _gather(case, output, truth)
    hints = [("lse", hint) for hint in _lse(evidence)]
    hints += [("o", hint) for hint in (*_zeroed_rows(evidence), *_factors(evidence), *_permuted_heads(evidence))]
    return hints


def _gather(case: Case, output: Output, truth: Truth) -> _Evidence:
    exact_o = truth.tensors["o"]
    queries, per_query = exact_o.shape[1], max(1, exact_o.size // max(1, exact_o.shape[1]))
    take = np.linspace(0, queries - 1, min(queries, max(1, ELEMENTS // per_query))).astype(np.int64)

    def pair(name: str, axis: int) -> tuple[Array | None, Array | None]:
        got, exact = given(output, name), truth.tensors.get(name)
        if got is None or exact is None or tuple(got.shape) != exact.shape or not exact.size:
            return None, None
        want = np.take(np.asarray(exact, dtype=np.float64), take, axis=axis)
        have = np.take(got.detach().double().cpu().numpy(), take, axis=axis)
        return (have, want) if axis == 1 else (np.moveaxis(have, 1, 2), np.moveaxis(want, 1, 2))

    o, o_truth = pair("o", 1)
    lse, lse_truth = pair("lse", 2)
    row_max = truth.moments.get("row_max")
    if row_max is not None and lse is not None:
        row_max = np.moveaxis(np.take(row_max, take, axis=2), 1, 2)
    return _Evidence(case, o, o_truth, lse, lse_truth, row_max)


def _rms(values: Array) -> float:
    return math.sqrt(float(np.mean(values * values))) if values.size else 0.0


def _explains(have: Array, want: Array, guess: Array, unit: float) -> bool:
    """Say whether `guess` is what came instead of `want`: error well above noise, and next to none of it left."""
    error = _rms(have - want)
    return error > NOISE_UNITS * unit * _rms(want) and _rms(have - guess) <= LEFT_OVER * error


def _lse(evidence: _Evidence) -> Iterator[str]:
    if evidence.lse is None or evidence.lse_truth is None:
        return
    there = np.isfinite(evidence.lse) & np.isfinite(evidence.lse_truth)
    if evidence.row_max is not None:
        there &= np.isfinite(evidence.row_max)
    have, want = evidence.lse[there], evidence.lse_truth[there]
    if not have.size or not want.any():
        return
    if not have.any():
        yield "LSE is zero everywhere"
        return
    unit = FORMATS["fp32"].unit_roundoff
    slope = float((have * want).sum() / (want * want).sum())
    scale = evidence.case.shape.head_dim**-0.5 if evidence.case.softmax_scale is None else evidence.case.softmax_scale
    guesses = {
        f"LSE is in base 2 (slope {slope:.4f} against the truth; log2 e is 1.4427)": want / math.log(2.0),
        f"LSE is missing the scale (slope {slope:.4f} against the truth; 1/softmax_scale is {1 / scale:.4f})": (
            want / scale
        ),
    }
    if evidence.row_max is not None:
        row_max = evidence.row_max[there]
        guesses["LSE is missing the scale on the row maximum"] = want + row_max * (1 / scale - 1)
        guesses["LSE lacks the row maximum: it is the logarithm of the row sum alone"] = want - row_max
    for hint, guess in guesses.items():
        # LSE is a plain number a row: what explains it leaves no more than a right kernel's own error.
        if _explains(have, want, guess, unit) and _rms(have - guess) <= LSE_RIGHT + 8 * unit * _rms(guess):
            yield hint
            return


def _zeroed_rows(evidence: _Evidence) -> Iterator[str]:
    if evidence.o is None or evidence.o_truth is None:
        return
    zeroed = (evidence.o == 0).all(axis=-1) & (evidence.o_truth != 0).any(axis=-1)
    if evidence.lse_truth is not None:
        zeroed &= np.isfinite(evidence.lse_truth)
    # A row that rounds to zero is no fault: it must hold something well above the smallest number of the format.
    visible = np.abs(evidence.o_truth).max(axis=-1) > 4 * FORMATS[format_name(evidence.case, "o")].min_subnormal
    if count := int((zeroed & visible).sum()):
        yield f"{count} of {zeroed.size} rows looked at are zero although they have valid keys"


def _factors(evidence: _Evidence) -> Iterator[str]:
    """Find one factor for all of O; else one factor a row with LSE right, which only row sum or PV can cause."""
    if evidence.o is None or evidence.o_truth is None:
        return
    unit = FORMATS[format_name(evidence.case, "o")].unit_roundoff
    usable = np.isfinite(evidence.o).all(axis=-1) & np.isfinite(evidence.o_truth).all(axis=-1)
    usable &= (evidence.o_truth != 0).any(axis=-1) & (evidence.o != 0).any(axis=-1)
    lse_is_right = _right_lse(evidence)
    have, want = evidence.o[usable], evidence.o_truth[usable]
    if not have.size:
        return
    factor = float((have * want).sum() / (want * want).sum())
    if abs(factor - 1) > unit and _explains(have, want, factor * want, unit / NOISE_UNITS):
        yield _blame(lse_is_right is not None and bool(lse_is_right.all())) + f"O is {factor:.6g} times the truth"
        return
    if lse_is_right is None:
        return
    right = lse_is_right[usable]
    have, want = have[right], want[right]
    square = (want * want).sum(axis=-1)
    factors = (have * want).sum(axis=-1) / square
    left = np.sqrt(((have - factors[:, None] * want) ** 2).sum(axis=-1))
    error = np.sqrt(((have - want) ** 2).sum(axis=-1))
    off = (np.abs(factors - 1) > NOISE_UNITS * unit) & (left <= LEFT_OVER * error)
    if off.any():
        worst = factors[off][np.argmax(np.abs(np.log(np.abs(factors[off]) + 1e-300)))]
        rows = "1 row of O is" if off.sum() == 1 else f"{int(off.sum())} rows of O are"
        yield _blame(True) + f"{rows} a multiple of the truth (worst {worst:.4g} times)"


def _blame(lse_is_right: bool) -> str:
    return f"{MISMATCH}: LSE is right, but " if lse_is_right else ""


def _right_lse(evidence: _Evidence) -> NDArray[np.bool_] | None:
    """Return for each row whether its LSE is right, None where there is no LSE."""
    if evidence.lse is None or evidence.lse_truth is None:
        return None
    there = np.isfinite(evidence.lse) & np.isfinite(evidence.lse_truth)
    want = np.where(there, evidence.lse_truth, 0.0)
    off = np.abs(np.where(there, evidence.lse, 0.0) - want)
    right: NDArray[np.bool_] = there & (off <= LSE_RIGHT + 8 * FORMATS["fp32"].unit_roundoff * np.abs(want))
    return right


def _permuted_heads(evidence: _Evidence) -> Iterator[str]:
    """Find for every head the truth's head that it equals."""
    heads = evidence.case.shape.heads
    if evidence.o is None or evidence.o_truth is None or heads < 2 or not np.nan_to_num(evidence.o).any():
        return
    have, want = (np.where(np.isfinite(values), values, 0.0) for values in (evidence.o, evidence.o_truth))
    unit = FORMATS[format_name(evidence.case, "o")].unit_roundoff
    distance = np.array([[_rms(have[:, :, h] - want[:, :, g]) for g in range(heads)] for h in range(heads)])
    found = distance.argmin(axis=1)
    moved = [
        h
        for h in range(heads)
        if found[h] != h
        and distance[h, h] > NOISE_UNITS * unit * _rms(want[:, :, h])
        and distance[h, found[h]] <= LEFT_OVER * distance[h, h]
    ]
    if moved:
        shown = ", ".join(f"{h} is the truth's {found[h]}" for h in moved[:4])
        more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
        yield f"heads are permuted: {shown}{more}"


def _gradients(case: Case, output: Output, truth: Truth) -> Iterator[tuple[str, str]]:
    """Find gradients that are a multiple of the truth, with the usual reasons, and KV heads that changed places."""
    scale = case.shape.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    reasons = {
        -1.0: "its sign is wrong",
        0.0: "it is zero everywhere",
        1 / scale: "the softmax scale is missing",
        scale: "the softmax scale is there twice",
        math.log(2.0): "a factor log2 e is missing",
        1 / math.log(2.0): "a factor log2 e is too many",
    }
    for name in ("dq", "dk", "dv", "dsink"):
        got, exact = given(output, name), truth.tensors.get(name)
        if got is None or exact is None or tuple(got.shape) != exact.shape:
            continue
        want, have = np.asarray(exact, dtype=np.float64), got.detach().double().cpu().numpy()
        if not np.isfinite(want).all() or not np.isfinite(have).all() or not want.any():
            continue
        unit = FORMATS[case.dtype].unit_roundoff
        factor = float((have * want).sum() / (want * want).sum())
        if _explains(have, want, factor * want, unit):
            near = min(reasons, key=lambda reason: abs(factor - reason))
            why = f": {reasons[near]}" if abs(factor - near) <= NOISE_UNITS * unit * max(1.0, abs(near)) else ""
            yield name, f"{name} is {factor:.6g} times the truth{why}"
        elif name != "dsink":
            moved = _moved_heads(have, want, unit)
            if moved:
                yield name, f"heads of {name} are permuted: {moved}"


def _moved_heads(have: Array, want: Array, unit: float) -> str:
    """Return which heads of (batch, tokens, heads, width) are another head of the truth."""
    heads = range(want.shape[2])
    distance = np.array([[_rms(have[:, :, h] - want[:, :, g]) for g in heads] for h in heads])
    moved = []
    for h in heads:
        found = int(distance[h].argmin())
        noise = NOISE_UNITS * unit * _rms(want[:, :, h])
        if found != h and distance[h, h] > noise and distance[h, found] <= LEFT_OVER * distance[h, h]:
            moved.append(f"{h} is the truth's {found}")
    return ", ".join(moved[:4])
