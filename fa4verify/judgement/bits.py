"""Is an output the same as another kernel's, bit by bit.

Contract: counts the elements whose bits differ from the baseline's, the share of those that are equal, and the largest
distance in ulp: steps from one value to the other through the numbers of the format, infinity being the step after the
largest. Zeros of different sign differ, by no ulp; a NaN equals any NaN, since a NaN's payload carries nothing, and has
no distance to a number. An output of another dtype (a trivial one in float64, when a budget is tried) is rounded to the
baseline's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa4verify.judgement.layout import given
from fa4verify.vocabulary import BITS, OF_BITS

if TYPE_CHECKING:
    from fa4verify.vocabulary import Output

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


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
