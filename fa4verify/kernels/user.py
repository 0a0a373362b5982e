"""A user's own attention as a kernel.

Contract: `f(q, k, v, *, causal, softmax_scale, ...) -> o | (o, lse)` or an object with such a `.forward` (and perhaps
`.exp2(x) -> y`). Torch tensors on the CPU, shaped as in `fa4verify.vocabulary`, q, k and v positional; o and lse may
come back on any device. What the function takes is read from its signature:

- an option that a case needs (window_size, softcap, learnable_sink, causal=True, a softmax_scale, one of the case's
  own options) and that the function does not take declines the case: Unsupported, which is SKIPPED and never passed;
- a backward goes through torch's autograd, unless the object has a `.backward` of its own (`Kernel.backward`'s
  signature): the function runs once more on tensors that require gradients. It gets `deterministic` only if it takes
  it. Gradients of O and, where the case asks for it and the function returns an LSE, of LSE, are fed in together; an O,
  an LSE or a sink without a gradient is Unsupported, never zero in silence;
- without a scale in the case, a `softmax_scale` parameter whose default is None is left at None, so that the
  function's own default is under test; any other `softmax_scale` parameter gets 1/sqrt(head_dim) as a float.

Fails first where the signature does not tell the truth: `**kwargs` that swallow an option they ignore.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.interface import ContractViolation, UnknownKernel, Unsupported
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# What each option is when a case does not use it: a function without the parameter computes the same.
_UNUSED: dict[str, Any] = {"causal": False, "window_size": (None, None), "softcap": 0.0, "learnable_sink": None}

# How to add up: never a reason to decline, since the gradients are the same to a rounding.
_ORDER = ("deterministic", "seed")


class UserKernel:
    """Adapter between a user's function and `Kernel`."""

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        if inspect.isclass(target):
            raise UnknownKernel(f"kernel {name!r} is a class; name a function or an instance with .forward")
        self._forward = getattr(target, "forward", target)
        self._exp2: Callable[..., Any] | None = getattr(target, "exp2", None)
        self._backward: Callable[..., Any] | None = getattr(target, "backward", None)
        if not callable(self._forward):
            kind = type(target).__name__
            raise UnknownKernel(f"kernel {name!r} is a {kind}; expected a function or an object with .forward")
        try:
            self._parameters = {
                function: inspect.signature(function).parameters
                for function in (self._forward, self._exp2, self._backward)
                if function
            }
        except ValueError as error:
            raise UnknownKernel(f"kernel {name!r} has no readable signature; wrap it in a Python function") from error

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Output:
        """Call the function with what the case uses; see the module's docstring for `softmax_scale`."""
        given = self._options(self._forward, options)
        if given.get("softmax_scale", 0.0) is None and self._default("softmax_scale") is not None:
            given["softmax_scale"] = q.shape[-1] ** -0.5
        if self._takes("deterministic") and self._default("deterministic") is inspect.Parameter.empty:
            given.setdefault("deterministic", True)
        return as_output(self._forward(q, k, v, **given))

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor | None,
        *,
        dlse: torch.Tensor | None = None,
        **options: Any,
    ) -> Output:
        """Return dq, dk, dv and, with a sink, dsink: the object's own backward's, else autograd's."""
        if self._backward is not None:
            given = self._options(self._backward, {"dlse": dlse, **options})
            result = self._backward(dout, q, k, v, o, lse, **given)
            return as_gradients(result)
        return self._differentiate(dout, dlse, {"q": q, "k": k, "v": v}, options)

    def _differentiate(
        self, dout: torch.Tensor, dlse: torch.Tensor | None, tensors: dict[str, torch.Tensor], options: dict[str, Any]
    ) -> Output:
        """Run the function with autograd and return the gradients of sum(O * dout) + sum(LSE * dlse)."""
        import torch

        options = {name: value for name, value in options.items() if name not in _ORDER or self._takes(name)}
        leaves = dict(tensors)
        if options.get("learnable_sink") is not None:
            leaves["learnable_sink"] = options["learnable_sink"]
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in leaves.items()}
        if "learnable_sink" in leaves:
            options["learnable_sink"] = leaves["learnable_sink"]
        with torch.enable_grad():
            output = self.forward(leaves["q"], leaves["k"], leaves["v"], **options)
        losses = [("o", output.o, dout)] + ([("lse", output.lse, dlse)] if dlse is not None else [])
        for name, tensor, _ in losses:
            if tensor is None or not tensor.requires_grad:
                raise Unsupported(f"{self.name} gives {name} no gradient")
        found = torch.autograd.grad(
            [tensor for _, tensor, _ in losses if tensor is not None],
            list(leaves.values()),
            [upstream.to(tensor.device) for _, tensor, upstream in losses if tensor is not None],
            allow_unused=True,
        )
        gradients = dict(zip(leaves, found, strict=True))
        if "learnable_sink" in gradients and gradients["learnable_sink"] is None:
            raise Unsupported(f"{self.name} gives learnable_sink no gradient")
        # Without a key O depends on nothing: autograd says None and means zero.
        filled = {name: torch.zeros_like(leaves[name]) if x is None else x for name, x in gradients.items()}
        return Output(dq=filled["q"], dk=filled["k"], dv=filled["v"], dsink=filled.get("learnable_sink"))

    def exp2(self, x: torch.Tensor, **options: Any) -> Output:
        """Call the object's own `exp2`."""
        if self._exp2 is None:
            raise Unsupported(f"{self.name} has no exp2")
        given = self._options(self._exp2, options)
        result = self._exp2(x, **given)
        return result if isinstance(result, Output) else Output(y=result)

    def _options(self, function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
        """Return what to pass to a function."""
        return {name: value for name, value in options.items() if self._wants(function, name, value)}

    @property
    def takes_deterministic(self) -> bool:
        """Whether the object's own backward, else the function, is given `deterministic`."""
        if self._backward is None:
            return self._takes("deterministic")
        parameters = self._parameters[self._backward]
        swallows = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        return swallows or "deterministic" in parameters

    def _takes(self, name: str) -> bool:
        return name in self._parameters[self._forward]

    def _wants(self, function: Callable[..., Any], name: str, value: Any) -> bool:
        """Return whether to pass an option; decline the case if the function needs it and cannot take it."""
        parameters = self._parameters[function]
        if name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return True
        if value is None or name in _ORDER or (name in _UNUSED and value == _UNUSED[name]):
            return False
        raise Unsupported(f"{self.name} does not take {name}")

    def _default(self, name: str) -> Any:
        parameter = self._parameters[self._forward].get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default


def as_gradients(result: Any) -> Output:
    """Wrap what a backward returned: an Output, or (dq, dk, dv)."""
    if isinstance(result, Output):
        return result
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise ContractViolation(f"the backward returned a {type(result).__name__}, expected (dq, dk, dv) or an Output")
    return Output(dq=result[0], dk=result[1], dv=result[2])


def as_output(result: Any) -> Output:
    """Wrap what a function returned: an Output, o, or (o, lse)."""
    if isinstance(result, Output):
        return result
    if not isinstance(result, tuple | list):
        return Output(o=result)
    if len(result) in (1, 2):
        return Output(*result)
    raise ContractViolation(f"the kernel returned {len(result)} values, expected o or (o, lse)")
