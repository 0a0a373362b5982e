"""Is an output the same as another kernel's, bit by bit.

Contract: counts the elements whose bits differ from the baseline's. Zeros of different sign differ; a NaN equals any
NaN, since a NaN's payload carries nothing. An output of another dtype (a trivial one in float64, when a budget is
tried) is rounded to the baseline's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa4verify.judgement.layout import given
from fa4verify.vocabulary import BITS

if TYPE_CHECKING:
    from fa4verify.vocabulary import Output

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def unlike(
    tensor: str, got: torch.Tensor, baseline: Output | None
) -> tuple[dict[str, float], dict[str, tuple[int, ...]]]:
    """Return the metric and the index of the first such element; nothing where the baseline gave no such tensor."""
    expected = None if baseline is None else given(baseline, tensor)
    if expected is None or expected.shape != got.shape:
        return {}, {}
    have, want = got.detach().cpu().to(expected.dtype).contiguous(), expected.detach().cpu().contiguous()
    kind = _INTEGERS[want.element_size()]
    differs = (have.view(kind) != want.view(kind)) & ~(have.isnan() & want.isnan())
    count = int(differs.sum())
    where = {BITS: tuple(int(i) for i in differs.nonzero()[0])} if count else {}
    return {BITS: float(count)}, where
