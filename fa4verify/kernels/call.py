"""Run the kernel of a case, and hold it to the shape of an Output.

Contract: the kernel gets only what the case uses (so that one without softcap serves every case without softcap), and
what it returns is checked before anybody measures it: types, shapes, dtypes, and that the inputs are as they were.
Values are not judged here; NaN is a value. Costs one copy of the inputs. A backward is chained: it gets the O and LSE
that the same kernel's forward gave, right or wrong.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.interface import ContractViolation, Kernel, Unsupported
from fa4verify.kernels.registry import kernel
from fa4verify.vocabulary import Case, Inputs, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

_FLASH_ATTENTION = ("causal", "window_size", "softcap", "learnable_sink", "softmax_scale")
_TENSORS = ("q", "k", "v", "x", "dout", "o", "lse")
# What a backward is given beside FlashAttention's options, where it has a parameter for it.
_BACKWARD = ("deterministic", "seed", "dlse")


def run(case: Case, inputs: Inputs, *, seed: int | None = None) -> Output:
    """Run the kernel that the case names on these inputs.

    Parameters
    ----------
    case, inputs
        What to run.
    seed
        For a backward that is not deterministic: the order of its adds, where the kernel lets it be chosen. Default:
        the case's seed.

    Returns
    -------
    Output
        o in the dtype of q (float32 with the option o_dtype = "fp32"), shape (batch, seqlen_q, heads, head_dim_v); lse
        float32, (batch, heads, seqlen_q), or None. For exp2, y float32, shaped like x. For backward and repeat also
        dq, dk, dv in the dtype of q (float32 with grad_dtype = "fp32"), delta float32 or None, and dsink float32 where
        there is a sink. On the CPU and detached.

    Raises
    ------
    Unsupported
        The kernel does not do what the case asks for.
    ContractViolation
        It returned something else, or wrote to its inputs.
    """
    under_test = kernel(case.kernel)
    tensors = inputs.tensors
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    if case.operation == "exp2":
        exp2: Callable[..., Output] | None = getattr(under_test, "exp2", None)
        if exp2 is None:
            raise Unsupported(f"{case.kernel} has no exp2")
        _check_options(case.kernel, exp2, {}, case.options)
        output = exp2(tensors["x"], **case.options)
    elif case.operation == "forward":
        options = _flash_attention_options(case, inputs)
        _check_options(case.kernel, under_test.forward, options, case.options)
        output = under_test.forward(tensors["q"], tensors["k"], tensors["v"], **options, **case.options)
    else:
        output = _chained(under_test, case, inputs, case.seed if seed is None else seed)
    for name, tensor in tensors.items():
        if not _same_bits(before[name], tensor):
            raise ContractViolation(f"{case.kernel} wrote to its input {name}, expected it unchanged")
    return _checked(case, inputs, output)


def _chained(kernel: Kernel, case: Case, inputs: Inputs, seed: int) -> Output:
    """Run the forward, then the backward on what it gave; each gets those of the case's options that it knows."""
    backward: Callable[..., Output] | None = getattr(kernel, "backward", None)
    if backward is None:
        raise Unsupported(f"{case.kernel} has no backward")
    tensors, features = inputs.tensors, _flash_attention_options(case, inputs)
    to_forward, to_backward = _known(kernel.forward, case.options), _known(backward, case.options)
    strange = {name: value for name, value in case.options.items() if name not in {**to_forward, **to_backward}}
    _check_options(case.kernel, kernel.forward, features, {**to_forward, **strange})
    _check_options(f"the backward of {case.kernel}", backward, features, to_backward)
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    forward = _checked_forward(case, inputs, kernel.forward(q, k, v, **features, **to_forward))
    order = {"deterministic": case.deterministic, "seed": None if case.deterministic else seed}
    given = _known(backward, order)
    if "dlse" in tensors:
        if not _known(backward, {"dlse": None}):
            raise Unsupported(f"{case.kernel} does not take dlse: it has no gradient through LSE")
        given["dlse"] = tensors["dlse"]
    output = backward(tensors["dout"], q, k, v, forward.o, forward.lse, **features, **given, **to_backward)
    output = _checked_backward(case, inputs, output)
    return replace(
        output,
        o=forward.o,
        lse=forward.lse,
        activity={**forward.activity, **output.activity},
        provenance={**{f"forward {name}": text for name, text in forward.provenance.items()}, **output.provenance},
    )


def _known(function: Callable[..., Output], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the function has a parameter for."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in parameters}


def _flash_attention_options(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return causal and softmax_scale, and of the others those that differ from their default."""
    options: dict[str, Any] = {"causal": case.causal, "softmax_scale": case.softmax_scale}
    if case.window_size != (None, None):
        options["window_size"] = case.window_size
    if case.softcap:
        options["softcap"] = case.softcap
    if case.learnable_sink:
        options["learnable_sink"] = inputs.tensors["learnable_sink"]
    return options


def _check_options(
    name: str, function: Callable[..., Output], features: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Decline a feature of FlashAttention that the kernel lacks; refuse an option of its own that it does not know."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for feature in features:
        if feature not in parameters:
            raise Unsupported(f"{name} does not take {feature}")
    known = [parameter for parameter in parameters if parameter not in (*_TENSORS, *_FLASH_ATTENTION, *_BACKWARD)]
    for option in own:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'none'}"
            raise TypeError(f"{name} has no option {option!r}; {hint}")


def _checked(case: Case, inputs: Inputs, output: Any) -> Output:
    """Return the output with its tensors on the CPU, or raise ContractViolation."""
    import torch

    if case.operation == "forward":
        return _checked_forward(case, inputs, output)
    if case.operation in ("backward", "repeat"):
        return _checked_backward(case, inputs, output)
    if not isinstance(output, Output):
        raise _not_an_output(case, output)
    return replace(output, y=_tensor("y", output.y, tuple(inputs.tensors["x"].shape), torch.float32))


def _not_an_output(case: Case, output: Any) -> ContractViolation:
    return ContractViolation(f"{case.kernel} returned a {type(output).__name__}, expected an Output")


def _checked_forward(case: Case, inputs: Inputs, output: Any) -> Output:
    import torch

    if not isinstance(output, Output):
        raise _not_an_output(case, output)
    q, v = inputs.tensors["q"], inputs.tensors["v"]
    batch, seqlen_q, heads, _ = q.shape
    # An emulation can be asked for O before its rounding; whoever asks is told so by the case's id.
    dtype = torch.float32 if case.options.get("o_dtype") == "fp32" else q.dtype
    o = _tensor("o", output.o, (batch, seqlen_q, heads, v.shape[-1]), dtype)
    lse = output.lse
    if lse is not None:
        lse = _tensor("lse", lse, (batch, heads, seqlen_q), torch.float32)
    return replace(output, o=o, lse=lse)


def _checked_backward(case: Case, inputs: Inputs, output: Any) -> Output:
    """Check the gradients. delta is a by-product that a kernel may keep to itself; dsink is a result."""
    import torch

    if not isinstance(output, Output):
        raise _not_an_output(case, output)
    q = inputs.tensors["q"]
    batch, seqlen_q, heads, _ = q.shape
    dtype = torch.float32 if case.options.get("grad_dtype") == "fp32" else q.dtype  # as o_dtype
    found: dict[str, Any] = {
        f"d{name}": _tensor(f"d{name}", getattr(output, f"d{name}"), tuple(inputs.tensors[name].shape), dtype)
        for name in ("q", "k", "v")
    }
    if output.delta is not None:
        found["delta"] = _tensor("delta", output.delta, (batch, heads, seqlen_q), torch.float32)
    if case.learnable_sink:
        found["dsink"] = _tensor("dsink", output.dsink, (heads,), torch.float32)
    return replace(output, **found)


def _tensor(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    expected = f"expected a torch.Tensor {shape} {dtype}"
    if not isinstance(tensor, torch.Tensor):
        raise ContractViolation(f"{name}: {expected}, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ContractViolation(f"{name}: {expected}, got {tuple(tensor.shape)} {tensor.dtype}")
    return tensor.detach().cpu()


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors hold the same bits; NaN equals itself, unlike under `==`."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(integers), b.view(integers))
