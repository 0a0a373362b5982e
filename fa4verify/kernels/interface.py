"""What a kernel is to the rest of the house, and the ways in which it can refuse.

Contract: anything with a `name` and a `forward` of this signature is a kernel; `exp2` is optional. Imports nothing
heavy, so that a kernel's module can take its exceptions from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from fa4verify.vocabulary import Output


class Unsupported(Exception):  # noqa: N818 - not an error of the program: the kernel says what it does not do
    """A kernel declines a case; the message says which feature it lacks."""


class NoDevice(Unsupported):
    """A kernel declines for want of a GPU; `--require-gpu` makes that a failure."""


class ContractViolation(Exception):  # noqa: N818 - a finding about the kernel, told in its own words
    """A kernel returned something that is not an Output of this case; one line with expected and got."""


class UnknownKernel(Exception):  # noqa: N818 - reads as what it is: `except UnknownKernel`
    """A kernel's name or import string leads nowhere; one line that says where it broke."""


@runtime_checkable
class Kernel(Protocol):
    """A kernel under test.

    `forward` takes FlashAttention's own options by their names: causal, window_size=(left, right), softcap,
    learnable_sink (float32, (heads,)), softmax_scale (None: 1/sqrt(head_dim)); further keywords are the kernel's own.
    Shapes as in `fa4verify.vocabulary`. A kernel with a backward also has
    `backward(dout, q, k, v, o, lse, **options) -> Output(dq=..., dk=..., dv=..., delta=..., dsink=...)`, where o and
    lse are what its own forward gave; further options are `dlse` (gradient of the loss through LSE), `deterministic`
    and, for an order that is drawn, `seed`. A kernel with an elementwise exponential also has
    `exp2(x, **options) -> Output(y=...)`, float32 in and out.
    """

    name: str

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Output:
        """Return o in the dtype of q, and lse float32 or None."""
        ...
