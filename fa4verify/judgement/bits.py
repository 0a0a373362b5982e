"""Is an output the same as another kernel's, bit by bit.

Contract: counts the elements whose bits differ from the baseline's, the share of those that are equal, and the largest
distance in ulp: steps from one value to the other through the numbers of the format, infinity being the step after the
largest. Zeros of different sign differ, by no ulp; a NaN equals any NaN, since a NaN's payload carries nothing, and has
no distance to a number. An output of another dtype (a trivial one in float64, when a budget is tried) is rounded to the
baseline's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement.layout import format_name, given
from fa4verify.vocabulary import BITS, OF_BITS, Output

if TYPE_CHECKING:
    from fa4verify.vocabulary import Case, Truth

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def of_bits(case: Case) -> bool:
    """Return whether a case asks nothing but whether its kernel gives the bits of its baseline."""
    return bool(case.budgets) and all(budget.metric in OF_BITS for budget in case.budgets)


def rounded(case: Case, truth: Truth) -> Output:
    """Return the truth, each tensor correctly rounded to the format that a right kernel returns."""
    tensors: dict[str, Any] = {}
    for name, exact in truth.tensors.items():
        form = format_name(case, name)
        tensors[name] = torch.from_numpy(round_to(np.asarray(exact), FORMATS[form])).to(_DTYPES[form])
    return Output(**tensors)


def unlike(
    tensor: str, got: torch.Tensor, baseline: Output | None
) -> tuple[dict[str, float], dict[str, tuple[int, ...]]]:
    """Return the metrics, and the index of the first such element and of the farthest.

    Nothing where the baseline gave no such tensor.
    """
    expected = None if baseline is None else given(baseline, tensor)
    if expected is None or expected.shape != got.shape:
        return {}, {}
    have, want = got.detach().cpu().to(expected.dtype).contiguous(), expected.detach().cpu().contiguous()
    kind = _INTEGERS[want.element_size()]
    differs = (have.view(kind) != want.view(kind)) & ~(have.isnan() & want.isnan())
    count = int(differs.sum())
    _, equal, distance = OF_BITS
    values = {BITS: float(count), equal: 1.0 - count / differs.numel() if differs.numel() else 1.0, distance: 0.0}
    if not count:
        return values, {}
    where = {BITS: tuple(int(i) for i in differs.nonzero()[0])}
    apart = (_steps(have.view(kind)) - _steps(want.view(kind))).abs()
    apart[have.isnan() | want.isnan()] = 0
    farthest = int(apart.reshape(-1).argmax())
    values[distance] = float(apart.reshape(-1)[farthest])
    where[distance] = tuple(int(i) for i in torch.unravel_index(torch.tensor(farthest), apart.shape))
    return values, where


def _steps(bits: torch.Tensor) -> torch.Tensor:
    """Return where each number stands among those of its format, both zeros at 0; int64."""
    wide = bits.long()
    return torch.where(wide < 0, torch.iinfo(bits.dtype).min - wide, wide)
