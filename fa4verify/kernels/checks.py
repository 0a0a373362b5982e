"""Hold what a kernel returned to the shape of an Output.

Contract: types, shapes, dtypes and whether there are values; anything else than asked for is a ContractViolation, one
line with expected and got. Values are not judged here, NaN is a value, and tensors stay where the kernel left them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.interface import ContractViolation
from fa4verify.vocabulary import Case, Inputs, Output

if TYPE_CHECKING:
    import torch


def checked(case: Case, inputs: Inputs, output: Any) -> Output:
    """Return the output with its tensors detached, where they are, or raise ContractViolation."""
    import torch

    if case.operation == "forward":
        return checked_forward(case, inputs, output)
    if case.operation in ("backward", "repeat"):
        return checked_backward(case, inputs, output)
    whole = _output(case, output)
    return replace(whole, y=_tensor("y", whole.y, tuple(inputs.tensors["x"].shape), torch.float32))


def _output(case: Case, output: Any) -> Output:
    """Return the output with activity and provenance in types that can be written down."""
    if not isinstance(output, Output):
        raise ContractViolation(f"{case.kernel} returned a {type(output).__name__}, expected an Output")
    for name, kind, what in (("activity", Real, "numbers"), ("provenance", str, "texts")):
        found = getattr(output, name)
        if not isinstance(found, Mapping) or not all(isinstance(value, kind) for value in found.values()):
            raise ContractViolation(f"{name}: expected a dict of {what}, got {' '.join(repr(found)[:80].split())}")
    if not isinstance(output.activity_per_row, Mapping):
        kind_found = type(output.activity_per_row).__name__
        raise ContractViolation(f"activity_per_row: expected a dict of arrays, got a {kind_found}")
    counted = {name: n if type(n) in (int, float) else float(n) for name, n in output.activity.items()}
    return replace(output, activity=counted)


def checked_forward(case: Case, inputs: Inputs, output: Any) -> Output:
    """Check O and, where there is one, LSE."""
    import torch

    whole = _output(case, output)
    q, v = inputs.tensors["q"], inputs.tensors["v"]
    batch, seqlen_q, heads, _ = q.shape
    # An emulation can be asked for O before its rounding; whoever asks is told so by the case's id.
    dtype = torch.float32 if case.options.get("o_dtype") == "fp32" else q.dtype
    dtype = torch.bfloat16 if dtype.itemsize == 1 else dtype
    o = _tensor("o", whole.o, (batch, seqlen_q, heads, v.shape[-1]), dtype)
    lse = whole.lse
    if lse is not None:
        lse = _tensor("lse", lse, (batch, heads, seqlen_q), torch.float32)
    return replace(whole, o=o, lse=lse)


def checked_backward(case: Case, inputs: Inputs, output: Any) -> Output:
    """Check the gradients. delta is a by-product that a kernel may keep to itself; dsink is a result."""
    import torch

    whole = _output(case, output)
    q = inputs.tensors["q"]
    batch, seqlen_q, heads, _ = q.shape
    dtype = torch.float32 if case.options.get("grad_dtype") == "fp32" else q.dtype  # as o_dtype
    found: dict[str, Any] = {
        f"d{name}": _tensor(f"d{name}", getattr(whole, f"d{name}"), tuple(inputs.tensors[name].shape), dtype)
        for name in ("q", "k", "v")
    }
    if whole.delta is not None:
        found["delta"] = _tensor("delta", whole.delta, (batch, heads, seqlen_q), torch.float32)
    if case.learnable_sink:
        found["dsink"] = _tensor("dsink", whole.dsink, (heads,), torch.float32)
    return replace(whole, **found)


def _tensor(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    expected = f"expected a torch.Tensor {shape} {dtype}"
    if not isinstance(tensor, torch.Tensor):
        raise ContractViolation(f"{name}: {expected}, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ContractViolation(f"{name}: {expected}, got {tuple(tensor.shape)} {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ContractViolation(f"{name}: {expected} with values, got one of {tensor.layout} on {tensor.device}")
    return tensor.detach()


def on_cpu(output: Output) -> Output:
    """Return the output with its tensors on the CPU; this waits for the device."""
    tensors = {name: getattr(output, name) for name in ("o", "lse", "y", "dq", "dk", "dv", "delta", "dsink")}
    return replace(output, **{name: tensor.cpu() for name, tensor in tensors.items() if tensor is not None})


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors hold the same bits; NaN equals itself, unlike under `==`."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    same_kind = a.shape == b.shape and a.dtype == b.dtype
    return same_kind and torch.equal(a.view(integers), b.detach().view(integers))
