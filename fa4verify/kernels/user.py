"""A user's own attention as a kernel.

Contract: `f(q, k, v, *, causal, softmax_scale, ...) -> o | (o, lse)` or an object with such a `.forward` (and perhaps
`.exp2(x) -> y`). Torch tensors on the CPU, shaped as in `fa4verify.vocabulary`, q, k and v positional; o and lse may
come back on any device. What the function takes is read from its signature:

- an option that a case needs (window_size, softcap, learnable_sink, causal=True, a softmax_scale, one of the case's
  own options) and that the function does not take declines the case: Unsupported, which is SKIPPED and never passed;
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


class UserKernel:
    """Adapter between a user's function and `Kernel`."""

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        if inspect.isclass(target):
            raise UnknownKernel(f"kernel {name!r} is a class; name a function or an instance with .forward")
        self._forward = getattr(target, "forward", target)
        self._exp2: Callable[..., Any] | None = getattr(target, "exp2", None)
        if not callable(self._forward):
            kind = type(target).__name__
            raise UnknownKernel(f"kernel {name!r} is a {kind}; expected a function or an object with .forward")
        try:
            self._parameters = {
                function: inspect.signature(function).parameters for function in (self._forward, self._exp2) if function
            }
        except ValueError as error:
            raise UnknownKernel(f"kernel {name!r} has no readable signature; wrap it in a Python function") from error

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Output:
        """Call the function with what the case uses; see the module's docstring for `softmax_scale`."""
        given = {name: value for name, value in options.items() if self._wants(self._forward, name, value)}
        if given.get("softmax_scale", 0.0) is None and self._default("softmax_scale") is not None:
            given["softmax_scale"] = q.shape[-1] ** -0.5
        return as_output(self._forward(q, k, v, **given))

    def exp2(self, x: torch.Tensor, **options: Any) -> Output:
        """Call the object's own `exp2`."""
        if self._exp2 is None:
            raise Unsupported(f"{self.name} has no exp2")
        given = {name: value for name, value in options.items() if self._wants(self._exp2, name, value)}
        result = self._exp2(x, **given)
        return result if isinstance(result, Output) else Output(y=result)

    def _wants(self, function: Callable[..., Any], name: str, value: Any) -> bool:
        """Return whether to pass an option; decline the case if the function needs it and cannot take it."""
        parameters = self._parameters[function]
        if name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return True
        if value is None or (name in _UNUSED and value == _UNUSED[name]):
            return False
        raise Unsupported(f"{self.name} does not take {name}")

    def _default(self, name: str) -> Any:
        parameter = self._parameters[self._forward].get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default


def as_output(result: Any) -> Output:
    """Wrap what a function returned: an Output, o, or (o, lse)."""
    if isinstance(result, Output):
        return result
    if not isinstance(result, tuple | list):
        return Output(o=result)
    if len(result) in (1, 2):
        return Output(*result)
    raise ContractViolation(f"the kernel returned {len(result)} values, expected o or (o, lse)")
