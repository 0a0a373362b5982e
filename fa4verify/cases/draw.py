"""A case becomes tensors.

Contract: float64 from the distribution, rounded to float32, then to the case's dtype (the path that every framework
takes: a direct conversion to fp16 would change 6e-5 of the elements); 8-bit codes straight from float64 (quantise.py).
The bits depend on the case without its kernel.
"""

import msgspec
import numpy as np

from fa4verify.cases.distributions import TABLE, bind, given
from fa4verify.cases.distributions.gradients import upstream
from fa4verify.cases.quantise import codes
from fa4verify.cases.seeding import canonical, stream
from fa4verify.vocabulary import EIGHT_BITS, Case, Inputs

# Standard deviation of a learnable sink that the distribution does not set, in nats.
SINK_SPREAD = 2.0
FLOAT32 = ("x", "learnable_sink", "dlse")


def draw(case: Case) -> Inputs:
    """Draw the inputs of a case.

    Returns
    -------
    Inputs
        forward: q, k, v in the case's dtype, and `learnable_sink` float32 (heads,) where the case has one; backward
        and repeat also dout in the case's dtype and, with an LSE gradient, `dlse` float32 (batch, heads, seqlen_q),
        both N(0, 1) unless the distribution says otherwise; exp2: x float32 (n,). With truth = "draws" or the baseline
        "e5m2", also the draws.

    Raises
    ------
    SuiteError
        The distribution or one of its arguments is unknown, or a capture cannot be read.
    """
    import torch  # costs a second; listing and selecting cases does without

    streams = stream(canonical(case, given(case.distribution)))
    arrays = TABLE[case.distribution.name].generate(case, streams, **bind(case.distribution, "distribution"))
    if case.learnable_sink and "learnable_sink" not in arrays:
        arrays = {**arrays, "learnable_sink": SINK_SPREAD * streams("learnable_sink").standard_normal(case.shape.heads)}
    if case.operation in ("backward", "repeat"):
        arrays = {**upstream(case, streams), **arrays}
    if not case.lse_gradient:
        arrays.pop("dlse", None)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}

    def rounded(name: str) -> torch.Tensor:
        with np.errstate(over="ignore"):  # a capture may hold more than float32 can
            tensor = torch.from_numpy(np.ascontiguousarray(arrays[name], dtype=np.float32))
        return tensor if name in FLOAT32 else tensor.to(dtypes[case.dtype])

    draws = {name: np.asarray(arrays[name], np.float64) for name in "qkv"} if _needs_draws(case) else {}
    if case.dtype not in EIGHT_BITS:
        return Inputs({name: rounded(name) for name in arrays}, draws)
    tensors = codes(case, arrays) | {name: rounded(name) for name in arrays if name not in ("q", "k", "v")}
    return Inputs(tensors, draws)


def _needs_draws(case: Case) -> bool:
    return case.truth == "draws" or case.baseline in EIGHT_BITS


def in_format(case: Case, inputs: Inputs, dtype: str) -> tuple[Case, Inputs]:
    """Return the case and its inputs with the same draws in another 8-bit format."""
    other = msgspec.structs.replace(case, dtype=dtype)
    return other, Inputs({**inputs.tensors, **codes(other, inputs.draws)}, inputs.draws)
