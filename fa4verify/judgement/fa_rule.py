"""FlashAttention's own pass rule for O, as its tests state it, so that users can translate.

max|out - ref| <= rtol * max|pt - ref| + 2 * max|(ref + 0.3 - 0.3) - ref|, every operation in the input dtype, rtol 2
(3 with softcap); ref is the exact result cast to that dtype and pt low-precision attention with the scale folded into
K. (`tests/cute/test_flash_attn.py:test_flash_attn_output`; its reference is fp32, ours float64.)

Contract: the same decision as that assertion, non-finite values included: a NaN in out makes the left side NaN and the
comparison false, an infinity in pt makes the limit infinite and lets everything through. Neither is a number to store,
so they appear as counts and in `fa_rule_passes`.
Known to be blind: one global maximum, so that one outlier sets the budget of all (docs/metrics.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from fa4verify.arithmetic.formats import round_to
from fa4verify.judgement.layout import layout

if TYPE_CHECKING:
    from fa4verify.vocabulary import Case, Output, Truth


def fa_rule(case: Case, output: Output, truth: Truth, pt: Output) -> dict[str, float]:
    """Return both sides of the rule for O and its decision.

    Returns
    -------
    dict
        `fa_rule_value` and `fa_rule_limit` (absent where not finite), `fa_rule_passes` (1 or 0), and
        `fa_rule_nan`, the number of differences that are NaN. Empty where O or pt's O is missing, of another shape, or
        without elements.
    """
    exact = truth.tensors["o"]
    if output.o is None or pt.o is None or not exact.size or not exact.shape == output.o.shape == pt.o.shape:
        return {}
    shape = layout(case, "o", exact.shape)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[case.dtype]
    out_rows, pt_rows = output.o.detach().cpu().to(dtype), pt.o.detach().cpu().to(dtype)
    out_rows, pt_rows = out_rows.reshape(-1, shape.row), pt_rows.reshape(-1, shape.row)
    off = pt_off = proxy = -math.inf
    nan = 0
    for rows in shape.chunks():
        ref = torch.from_numpy(round_to(shape.matrix(exact)[rows], shape.format)).to(dtype)
        difference = (out_rows[rows] - ref).abs()
        nan += int(difference.isnan().sum())
        off = _larger(off, difference)
        pt_off = _larger(pt_off, (pt_rows[rows] - ref).abs())
        proxy = _larger(proxy, (ref + 0.3 - 0.3 - ref).abs())
    limit = (3 if case.softcap else 2) * pt_off + 2 * proxy
    found = {"fa_rule_passes": float(off <= limit), "fa_rule_nan": float(nan)}
    if math.isfinite(off):
        found["fa_rule_value"] = off
    if math.isfinite(limit):
        found["fa_rule_limit"] = limit
    return found


def _larger(so_far: float, differences: torch.Tensor) -> float:
    """Return the larger one, NaN if either is NaN, as torch's max over the whole tensor would."""
    return float(np.maximum(so_far, float(differences.max())))
