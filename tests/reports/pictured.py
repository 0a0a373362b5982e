"""Hand-made Records that fill every figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fa4verify.vocabulary import Distribution, Finding, Metrics, Profile, Record, Shape, Verdict
from tests.reports.make import case, record

if TYPE_CHECKING:
    from fa4verify.vocabulary import Outcome

KERNELS = ("fa4-sm90", "fa4-sm100")
TAUS = (0, 1, 2, 4, 8, 16)


def everything() -> list[Record]:
    """Return records of two kernels that fill all figures."""
    return [*_forwards(), *_backwards(), *_exponentials(), *_thresholds(), *_repeats()]


def profile(scale: float = 1.0, *, tensor: str = "o", heads: int = 2) -> Profile:
    """Return a profile whose errors are about 2^-9 of `scale`."""
    step = round(16 * math.log2(scale))
    hill = tuple(round(1000 * math.exp(-((place - 12) ** 2) / 20)) for place in range(25))
    return Profile(
        errors=hill,
        errors_from=-30 + step // 8,
        exact=17,
        floors=hill[:14],
        floors_from=-30,
        ulps=tuple(round(1e4 * math.exp(-abs(place - 17))) for place in range(35)),
        in_tile=tuple(-216 if tensor == "lse" and place % 16 > 11 else -320 for place in range(128))
        if tensor in ("lse", "dk", "dv")
        else (),
        octave=tuple(-220 + place % 30 + step for place in range(128)) if tensor == "y" else (),
        rows=tuple(tuple(-150 + (7 * line + place) % 40 for place in range(32)) for line in range(heads)),
        radius=1e-13,
        worst_key=37,
    )


def metrics(scale: float = 1.0, tensor: str = "o", **values: float) -> Metrics:
    numbers = {"rmse": 2e-4 * scale, "floor_rmse": 1.8e-4, "truth_rms": 0.1, "relative_rmse": 2e-3 * scale}
    numbers |= {"worst_row_relative_l2": 0.01 * scale, "max_abs": 0.001 * scale}
    return Metrics(numbers | values, {"max_abs": (0, 3, 1, 5)}, {}, profile(scale, tensor=tensor))


def failing(name: str, kernel: str, outcome: Outcome = "FAIL", message: str = "o rmse 4e-4 > 3e-4") -> Record:
    """Return a record whose finding has all that a page can show."""
    finding = Finding(message, "o", "rmse", 4e-4, 3e-4, (0, 3, 1, 5), "o-model")
    hint = Finding("hint: O is 2 times the truth", "o")
    return record(
        name,
        case=case(name, kernel=kernel),
        verdict=Verdict(outcome, (finding, hint) if outcome == "FAIL" else (Finding(message),)),
        metrics={"o": metrics(2.0, fa_rule_value=1.0, fa_rule_limit=2.0), "lse": metrics(tensor="lse")},
    )


def _forwards() -> list[Record]:
    found = []
    for index, kernel in enumerate(KERNELS):
        for dtype in ("bf16", "fp16"):
            for keys in (64, 256, 1024, 4096):
                name = f"fwd-{kernel}-{dtype}-{keys}"
                one = case(name, kernel=kernel, dtype=dtype, shape=Shape(1, 128, keys, 2, 2, 64, 64))
                measured = {"o": metrics(1 + index, fa_rule_passes=1.0), "lse": metrics(tensor="lse")}
                found.append(record(name, case=one, metrics=measured))
    return [*found, failing("bad", "mine:attention"), failing("dead", "mine:other", "CRASHED", "run: ValueError")]


def _backwards() -> list[Record]:
    found = []
    for kernel in KERNELS:
        for dtype in ("bf16", "fp16"):
            name = f"bwd-{kernel}-{dtype}"
            measured = {tensor: metrics(tensor=tensor) for tensor in ("dq", "dk", "dv")}
            one = case(name, operation="backward", kernel=kernel, dtype=dtype)
            found.append(record(name, case=one, metrics=measured))
    return found


def _exponentials() -> list[Record]:
    found = []
    for degree in range(6):
        name = f"exp2-{degree}"
        one = case(name, operation="exp2", kernel="fa4-sm100", options={"degree": degree})
        found.append(record(name, case=one, metrics={"y": metrics(4.0 ** (3 - degree), "y", max_relative=1e-4)}))
    return found


def _thresholds() -> list[Record]:
    found = []
    for inputs in ("normal", "fa3_outlier"):
        for tau in TAUS:
            name = f"tau-{inputs}-{tau}"
            one = case(name, distribution=Distribution(inputs), options={"rescale_threshold": tau})
            found.append(
                record(
                    name,
                    case=one,
                    metrics={"o": metrics(1 + tau / 10)},
                    activity={"rescales_done": 16 - tau, "rescales_skipped": tau},
                )
            )
    return found


def _repeats() -> list[Record]:
    found = []
    for adds in (2, 4, 8, 32):
        name = f"rep-{adds}"
        shape = Shape(1, 128, 128 * adds, 2, 2, 64, 64)
        one = case(name, operation="repeat", deterministic=False, shape=shape)
        measured = {
            tensor: Metrics({"differing_share": 1e-4 * adds, "distinct": 9.0, "runs": 20.0}) for tensor in ("dq", "dk")
        }
        found.append(record(name, case=one, metrics=measured, activity={"dq_adds_max": adds, "dkv_adds": 1}))
    return found
