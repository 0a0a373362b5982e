"""What comes back from the loss: dout and dlse that a backward finds hard. All other distributions get N(0, 1).

Contract: returns q, k, v and dout, and dlse where it matters; `cases.draw` drops dlse where the case has no LSE
gradient.
"""

from typing import Literal

import numpy as np

from fa4verify.cases.distributions.gaussian import fa3_outlier, normal
from fa4verify.cases.distributions.magnitudes import BITS, negative_rows
from fa4verify.cases.distributions.scores import Array, Arrays, leading, sizes
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case

SCORES = {"normal": normal, "fa3_outlier": fa3_outlier, "negative_rows": negative_rows}


def upstream(case: Case, stream: Stream) -> Arrays:
    """Return dout and dlse from N(0, 1): what a distribution gets that says nothing of its own."""
    return {
        "dout": stream("dout").standard_normal(_like_o(case)),
        "dlse": stream("dlse").standard_normal((case.shape.batch, case.shape.heads, case.shape.seqlen_q)),
    }


def scaled_dout(
    case: Case,
    stream: Stream,
    exponent: int = 8,
    scores: Literal["normal", "fa3_outlier", "negative_rows"] = "normal",
) -> Arrays:
    """Gradients of size 2^exponent, as under loss scaling or near the end of training.

    Detects dS that leaves the range of fp16: FA4 rounds it before the softmax scale, so that it overflows (large
    exponents) or becomes subnormal (small ones) where dQ and dK would not.

    Parameters
    ----------
    exponent
        Power of two of dout's and dlse's standard deviation.
    scores
        Distribution of Q, K and V.

    Check (closed form): all gradients are 2^exponent times those of exponent 0.
    """
    scaled = {name: array * 2.0**exponent for name, array in upstream(case, stream).items()}
    return {**SCORES[scores](case, stream), **scaled}


def cancellation_bwd(case: Case, stream: Stream, spread: float = 0.03125) -> Arrays:
    """V nearly the same for all keys and dout along it: dP - delta is a small difference of large numbers.

    Detects delta in low precision (products rounded to 16 bits, O rounded twice), and shows what the rounding of O
    costs dQ and dK. With a spread of 0, O is V exactly and dQ, dK are zero: then delta can be held to fp32.

    Parameters
    ----------
    spread
        Standard deviation of V between keys, relative to its common part.

    Check (closed form): delta is |V|^2 times the row's factor, and |dP - delta| about spread / sqrt(head_dim_v) of it.
    """
    arrays, size = normal(case, stream), sizes(case)["v"]
    shape = case.shape
    common = leading(1.0 + stream("common").random((shape.batch, 1, shape.heads_kv, shape.head_dim_v)), BITS)
    common = common * np.where(stream("sign").random(common.shape) < 0.5, -1.0, 1.0)
    own = np.round(stream("v").standard_normal(size) * spread * 2.0**BITS) * 2.0**-BITS
    factor = leading(stream("dout").standard_normal((shape.batch, shape.seqlen_q, shape.heads, 1)), BITS)
    along = np.repeat(common, shape.heads // shape.heads_kv, axis=2)
    return {**arrays, "v": common + own, "dout": factor * along}


def grad_adversarial(case: Case, stream: Stream, size: float = 76.0) -> Arrays:
    """One channel of one key is huge and every query looks at one channel only.

    Detects dV and dK that depend on which query tile holds the few rows that matter: rows which look at the huge
    channel give all their weight to its key, or none of it.

    Parameters
    ----------
    size
        The huge element.

    Check: every query has one element that is not 0; the largest element of K is `size`, once in each KV head.
    """
    arrays, (batch, seqlen_q, heads, width) = normal(case, stream), sizes(case)["q"]
    channel = stream("channel").integers(0, width, size=(batch, seqlen_q, heads, 1))
    # Half of the queries look at the huge channel.
    channel = np.where(stream("look").random(channel.shape) < 0.5, 0, channel)
    sign = np.where(stream("q").random(channel.shape) < 0.5, -1.0, 1.0)
    arrays["q"] = np.where(np.arange(width) == channel, sign, 0.0)
    key = stream("key").integers(0, max(1, case.shape.seqlen_k), size=(batch, 1, case.shape.heads_kv))
    arrays["k"][..., 0] = np.where(np.arange(case.shape.seqlen_k)[:, None] == key, size, arrays["k"][..., 0])
    return {**arrays, **upstream(case, stream)}


def lse_loss(
    case: Case, stream: Stream, scores: Literal["normal", "fa3_outlier", "negative_rows"] = "normal"
) -> Arrays:
    """Loss that reads LSE alone: dout is zero. Needs `lse_gradient`.

    Detects a gradient through LSE that is dropped, or that has the wrong sign.

    Parameters
    ----------
    scores
        Distribution of Q, K and V.

    Check (closed form): dV is zero, dQ is the softmax's mean key times scale and dlse.
    """
    return {**SCORES[scores](case, stream), "dout": np.zeros(_like_o(case)), "dlse": upstream(case, stream)["dlse"]}


def dout_poison(case: Case, stream: Stream, value: Literal["nan", "inf", "-inf"] = "nan") -> Arrays:
    """N(0, 1) inputs with one element of dout that is not finite, in the middle of the first head.

    Detects poison that a kernel launders, and poison that spreads to rows, channels or heads that never met it.

    Parameters
    ----------
    value
        What the element is.

    Check: exactly one element is not finite; it reaches one row of dQ, one channel of dV, and dK of the keys that its
    row sees.
    """
    arrays = {**normal(case, stream), **upstream(case, stream)}
    _, seqlen_q, _, width = _like_o(case)
    arrays["dout"][0, seqlen_q // 2, 0, width // 2] = float(value)
    return arrays


def one_signed(case: Case, stream: Stream) -> Array:
    """Return dout from [0.5, 1.5): errors of O of one sign then show in the mean of delta."""
    drawn: Array = 0.5 + stream("dout").random(_like_o(case))
    return drawn


def _like_o(case: Case) -> tuple[int, int, int, int]:
    shape = case.shape
    return shape.batch, shape.seqlen_q, shape.heads, shape.head_dim_v
