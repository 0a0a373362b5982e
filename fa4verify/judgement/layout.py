"""How each output tensor is cut: its format, its rows, and the units that count as independent.

Contract: a tensor is seen as a matrix of rows. A row of O or dQ is one query of one head, of dK or dV one key of one KV
head, and its error is one unit of the mean's standard error, because all its elements share P or dS. A row of LSE or
delta is one head (all queries), the only row of dsink all heads; a unit is one element. exp2's y has no rows. Nothing
here copies a tensor that is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fa4verify.arithmetic.formats import FORMATS, Format
from fa4verify.vocabulary import EIGHT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case, Output, Truth

# Elements handled at a time: about 8 float64 arrays of this size live at once, 64 MiB whatever the tensor's size.
CHUNK = 1 << 16
# What every kernel is asked for; a learnable sink adds dsink.
EXPECTED_TENSORS = {
    "forward": ("o", "lse"),
    "exp2": ("y",),
    "backward": ("dq", "dk", "dv", "delta"),
    "repeat": ("o", "lse", "dq", "dk", "dv"),
}
# Tensors in the case's dtype, one row for each token of each head.
OF_TOKENS = frozenset({"o", "dq", "dk", "dv"})
TORCH_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


@dataclass(frozen=True)
class Layout:
    """Shape of one tensor as a matrix: `row` elements a row, `rows_are_units` for the standard error of the mean."""

    tensor: str
    format: Format
    shape: tuple[int, ...]
    row: int
    rows_are_units: bool
    has_rows: bool

    def matrix(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values as rows."""
        return values.reshape(-1, self.row)

    def chunks(self) -> Iterator[slice]:
        """Cut the rows into slices of at most CHUNK elements (one row at least)."""
        rows = int(np.prod(self.shape)) // self.row
        step = max(1, CHUNK // self.row)
        for start in range(0, rows, step):
            yield slice(start, min(rows, start + step))

    def element(self, flat: int) -> tuple[int, ...]:
        """Return the index of the element at this flat position."""
        return tuple(int(i) for i in np.unravel_index(flat, self.shape))

    def row_index(self, row: int) -> tuple[int, ...]:
        """Return the index of a row: the element's without its last axis."""
        return self.element(row * self.row)[:-1]


def format_name(case: Case, tensor: str) -> str:
    """Return the name of the format in which a right kernel returns this tensor."""
    if tensor == "o" and case.dtype in EIGHT_BITS:
        return "bf16"
    return case.dtype if tensor in OF_TOKENS else "fp32"


def layout(case: Case, tensor: str, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a tensor of the case; its size must not be zero."""
    has_rows = tensor != "y"
    return Layout(
        tensor=tensor,
        format=FORMATS[format_name(case, tensor)],
        shape=tuple(shape),
        row=shape[-1] if has_rows else 1,
        rows_are_units=tensor in OF_TOKENS,
        has_rows=has_rows,
    )


def given(output: Output, tensor: str) -> torch.Tensor | None:
    """Return what the kernel gave for this tensor, None where it gave nothing."""
    found: torch.Tensor | None = getattr(output, tensor, None)
    return found


def contract_breach(case: Case, output: Output, truth: Truth, tensor: str) -> str | None:
    """Say what is wrong with the shape or dtype of a tensor that was given, None if nothing is."""
    got = given(output, tensor)
    if got is None:
        return None
    shape, dtype = truth.tensors[tensor].shape, TORCH_DTYPE[format_name(case, tensor)]
    # An emulation that is asked for a result before its last rounding; the errors stay in ulp of the case's dtype.
    if tensor in OF_TOKENS and case.options.get("o_dtype" if tensor == "o" else "grad_dtype") == "fp32":
        dtype = TORCH_DTYPE["fp32"]
    if tuple(got.shape) != shape:
        return f"{tensor} has shape {tuple(got.shape)}, expected {shape}"
    if str(got.dtype) != dtype:
        return f"{tensor} has dtype {got.dtype}, expected {dtype}"
    return None


def per_row_of_o(lse_like: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array shaped like LSE (batch, heads, seqlen_q) as one number for each row of O."""
    return np.moveaxis(lse_like, 1, 2).reshape(-1)
