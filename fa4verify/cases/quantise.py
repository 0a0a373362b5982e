"""Drawn numbers become 8-bit codes and their descales.

Contract: float64 draws, rotated if the case asks for it, over the scale of their group, rounded once to the format with
satfinite. A code times its descale is what the kernel is meant to see. Without scales there is no descale. The draws do
not depend on how they are quantised, so that cases which differ only in that compare the same numbers. Fails first
where a scale of one tensor, block or head meets the codes of another: kernels wrong on purpose, tests/mutants. Source:
FlashAttention-3 (arXiv:2407.08608, section 3.3); `flash_attn.cute` for the shape of descales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case

    Array = NDArray[np.float64]

BLOCK = 128  # tokens that share a scale: query tile of FA3 and FA4, and the KV tile of the models here


def codes(case: Case, draws: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Return q, k, v in the case's 8-bit dtype and, where it has scales, q_descale, k_descale, v_descale in float32.

    Raises
    ------
    ValueError
        A draw with inf or NaN where there are scales.
    """
    import torch  # seconds, as numba is; listing and selecting cases does without

    from fa4verify.arithmetic.formats import FORMATS
    from fa4verify.arithmetic.hadamard import rotate, signs
    from fa4verify.arithmetic.scaling import largest_of_blocks, per_token, quantised, scales

    fmt, how = FORMATS[case.dtype], case.quantisation
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[case.dtype]
    found: dict[str, torch.Tensor] = {}
    for name in "qkv":
        x = np.asarray(draws[name], np.float64)
        if how.incoherent and name != "v":
            x = rotate(x, signs(x.shape[-1]))
        tokens, heads = x.shape[1:3]
        spread: Array = np.ones(1)
        if how.scales != "none":
            rows = BLOCK if how.scales == "block" else max(1, tokens)
            largest = largest_of_blocks(x, rows)  # (batch, heads, blocks)
            if how.scales != "block":
                largest = largest.max(axis=2, initial=0.0)
                grouped = largest.reshape(len(x), case.shape.heads_kv, -1).max(axis=2)  # q's is that of its KV head
                largest = np.full_like(grouped, grouped.max(initial=0.0)) if how.scales == "tensor" else grouped
            given = scales(largest, fmt, power_of_two=how.power_of_two)
            found[f"{name}_descale"] = torch.from_numpy(given.astype(np.float32))
            if how.scales != "block":
                given = np.repeat(given, heads // case.shape.heads_kv, axis=1)[:, :, None]
            spread = per_token(given, rows, tokens)
        rounded = quantised(x, spread, fmt).astype(np.float32)  # exact: the values are the format's
        found[name] = torch.from_numpy(rounded).to(dtype)
    return found
