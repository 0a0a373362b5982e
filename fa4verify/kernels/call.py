"""Run the kernel of a case, and hold it to the shape of an Output.

Contract: the kernel gets only what the case uses (so that one without softcap serves every case without softcap), and
what it returns is checked before anybody measures it (checks.py). It works on copies of its own: whatever it does to
them, `requires_grad_()` too, the baseline and the truth see the inputs as drawn. To have written to them is a
ContractViolation. torch's settings are put back as they were. Costs one copy of the inputs. A backward is chained: it
gets the O and LSE that the same kernel's forward gave, right or wrong; what it does to them is not seen.

`run` brings the output to the CPU. `place` and `run_placed` leave inputs and outputs where the kernel has them: each
way to the host waits for what the device has queued (with them an H200 took 3 ms a run, and 25 ms under load).
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.checks import checked, checked_backward, checked_forward, on_cpu, same_bits
from fa4verify.kernels.interface import ContractViolation, Kernel, NoDevice, Unsupported
from fa4verify.kernels.registry import computes_where_its_tensors_are, kernel, needs_gpu
from fa4verify.kernels.settings import settings_restored
from fa4verify.vocabulary import Case, Inputs, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

_FLASH_ATTENTION = ("causal", "window_size", "softcap", "learnable_sink", "softmax_scale")
_DESCALES = ("q_descale", "k_descale", "v_descale")
_TENSORS = ("q", "k", "v", "x", "dout", "o", "lse")
# What a backward is given beside FlashAttention's options, where it has a parameter for it.
_BACKWARD = ("deterministic", "seed", "dlse")


def run(case: Case, inputs: Inputs, *, seed: int | None = None, device: str | None = None) -> Output:
    """Run the kernel that the case names on these inputs.

    Parameters
    ----------
    case, inputs
        What to run.
    seed
        For a backward that is not deterministic: the order of its adds, where the kernel lets it be chosen. Default:
        the case's seed.
    device
        Where a GPU kernel and a user's own get their tensors: "cuda:0", "cpu", or None, with which a GPU kernel
        declines and a user's own gets them on the CPU. Emulations are not asked.

    Returns
    -------
    Output
        o in the dtype of q, bf16 where that has 8 bits (float32 with the option o_dtype = "fp32"), shape (batch,
        seqlen_q, heads, head_dim_v); lse float32, (batch, heads, seqlen_q), or None. For exp2, y float32, shaped like
        x. For backward and repeat also dq, dk, dv in the dtype of q (float32 with grad_dtype = "fp32"), delta float32
        or None, and dsink float32 where there is a sink. On the CPU and detached.

    Raises
    ------
    Unsupported
        The kernel does not do what the case asks for; NoDevice where it is for want of a GPU.
    ContractViolation
        It returned something else, or wrote to its inputs.
    """
    return on_cpu(run_placed(case, place(case, inputs, device), seed=seed))


def place(case: Case, inputs: Inputs, device: str | None) -> Inputs:
    """Return the inputs where the case's kernel gets them: on `device` if it computes there, else on the CPU."""
    if device is None and needs_gpu(case.kernel):
        raise NoDevice(f"{case.kernel} runs on a GPU: --device cuda:0, or auto where there is one")
    where = device if device is not None and computes_where_its_tensors_are(case.kernel) else "cpu"
    return Inputs({name: tensor.to(where) for name, tensor in inputs.tensors.items()})


def run_placed(case: Case, inputs: Inputs, *, seed: int | None = None) -> Output:
    """Run as `run` does on inputs that `place` gave; the output's tensors stay where the kernel left them."""
    given = Inputs({name: tensor.clone() for name, tensor in inputs.tensors.items()})
    with settings_restored(), _finished(given):
        output = _call(kernel(case.kernel), case, given, case.seed if seed is None else seed)
    for name, tensor in inputs.tensors.items():
        if not same_bits(tensor, given.tensors[name]):
            raise ContractViolation(f"{case.kernel} wrote to its input {name}, expected it unchanged")
    output = checked(case, inputs, output)
    facts = _facts(inputs)
    return replace(output, provenance={**output.provenance, **facts}) if facts else output


def _device(inputs: Inputs) -> torch.device | None:
    """Return the GPU that the inputs are on; None for a CPU."""
    device = next(iter(inputs.tensors.values())).device
    return None if device.type == "cpu" else device


def _finished(inputs: Inputs) -> AbstractContextManager[None]:
    """Wait for all streams of the inputs' GPU at the end: a kernel may use its own, and whoever looks may not."""
    device = _device(inputs)
    if device is None:
        return nullcontext()
    from fa4verify.kernels.gpu.device import finished

    return finished(device)


def _facts(inputs: Inputs) -> dict[str, str]:
    """Return what a Record says of the device that the inputs are on; nothing of a CPU."""
    device = _device(inputs)
    if device is None:
        return {}
    from fa4verify.kernels.gpu.device import facts

    return facts(device)


def _call(under_test: Kernel, case: Case, inputs: Inputs, seed: int) -> Any:
    """Call the function that the operation asks for; what a forward or exp2 gives is not checked yet."""
    tensors = inputs.tensors
    if case.operation == "exp2":
        exp2: Callable[..., Output] | None = getattr(under_test, "exp2", None)
        if exp2 is None:
            raise Unsupported(f"{case.kernel} has no exp2")
        _check_options(case.kernel, exp2, {}, case.options)
        return exp2(tensors["x"], **case.options)
    if case.operation == "forward":
        options = _flash_attention_options(case, inputs)
        _check_options(case.kernel, under_test.forward, options, case.options)
        return under_test.forward(tensors["q"], tensors["k"], tensors["v"], **options, **case.options)
    return _chained(under_test, case, inputs, seed)


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
    forward = checked_forward(case, inputs, kernel.forward(q, k, v, **features, **to_forward))
    order = {"deterministic": case.deterministic, "seed": None if case.deterministic else seed}
    given = _known(backward, order)
    if "dlse" in tensors:
        if not _known(backward, {"dlse": None}):
            raise Unsupported(f"{case.kernel} does not take dlse: it has no gradient through LSE")
        given["dlse"] = tensors["dlse"]
    o, lse = (None if x is None else x.to(q.device) for x in (forward.o, forward.lse))
    kept_o, kept_lse = (None if x is None else x.clone() for x in (forward.o, forward.lse))
    output = backward(tensors["dout"], q, k, v, o, lse, **features, **given, **to_backward)
    output = checked_backward(case, inputs, output)
    return replace(
        output,
        o=kept_o,
        lse=kept_lse,
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
    return options | {name: inputs.tensors[name] for name in _DESCALES if name in inputs.tensors}


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
    known = [
        parameter for parameter in parameters if parameter not in (*_TENSORS, *_DESCALES, *_FLASH_ATTENTION, *_BACKWARD)
    ]
    for option in own:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'none'}"
            raise TypeError(f"{name} has no option {option!r}; {hint}")
