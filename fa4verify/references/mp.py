"""mpmath attention, by the definition: slow, and unlike fp64 and ball on purpose. The tests' second opinion.

Contract: the exact value to about 45 digits, for a few hundred keys at most. Scores by mpmath's fdot, exponentials
summed as they are (mpmath's exponent range needs no maximum), every (query, key) pair asked whether it is visible, the
head map spelled out. Inputs are nested lists of Python numbers, so that no reading of ours is shared either. Gradients
come from the softmax's Jacobian, without O, delta or LSE; the tests hold them to difference quotients of `forward`.
Known failure mode: time; 0.3 ms for each query and key at d = 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpmath

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGITS = 50


def visible(
    i: int, j: int, seqlen_q: int, seqlen_k: int, *, causal: bool, window_size: tuple[int | None, int | None]
) -> bool:
    """Say whether query i sees key j: distances are counted from the diagonal that ends at the last key."""
    left, right = window_size
    if left is not None and left < 0 and right is not None and right < 0:
        left, right = None, None
    ahead = (seqlen_q - 1 - i) - (seqlen_k - 1 - j)  # how far key j lies beyond query i's own position
    if causal and ahead > 0:
        return False
    if not causal and right is not None and ahead > right:
        return False
    return left is None or -ahead <= left


def attention_row(
    q: Sequence[Any],
    k: Sequence[Sequence[Any]],
    v: Sequence[Sequence[Any]],
    *,
    scale: float,
    softcap: float = 0.0,
    sink: float | None = None,
    columns: int,
) -> tuple[list[Any], Any]:
    """Return O (a list over head_dim_v, `columns` of them) and LSE of one query over the keys that it sees, as mpf."""
    with mpmath.workdps(DIGITS):
        weights = []
        for key in k:
            score = mpmath.fdot(q, key) * mpmath.mpf(scale)
            if softcap:
                score = mpmath.mpf(softcap) * mpmath.tanh(score / mpmath.mpf(softcap))
            weights.append(mpmath.exp(score))
        absent = sink is None or sink == -mpmath.inf
        total = mpmath.fsum(weights) + (0 if absent else mpmath.exp(mpmath.mpf(sink)))
        if not weights:
            return [mpmath.mpf(0)] * columns, -mpmath.inf if absent else mpmath.mpf(sink)
        o = [mpmath.fdot(weights, [value[c] for value in v]) / total for c in range(columns)]
        return o, mpmath.log(total)


def forward(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    learnable_sink: Sequence[float] | None = None,
    softmax_scale: float,
) -> tuple[dict[tuple[int, int, int], list[Any]], dict[tuple[int, int, int], Any]]:
    """Return O and LSE as mpf, keyed by (batch, head, query row); q, k, v are nested lists, FlashAttention's layout."""
    o: dict[tuple[int, int, int], list[Any]] = {}
    lse: dict[tuple[int, int, int], Any] = {}
    for b, queries in enumerate(q):
        seqlen_q, seqlen_k = len(queries), len(k[b])
        heads = len(queries[0]) if seqlen_q else 0
        for h in range(heads):
            kv_head = h * len(k[b][0]) // heads if seqlen_k else 0
            for i in range(seqlen_q):
                seen = [
                    j
                    for j in range(seqlen_k)
                    if visible(i, j, seqlen_q, seqlen_k, causal=causal, window_size=window_size)
                ]
                o[b, h, i], lse[b, h, i] = attention_row(
                    queries[i][h],
                    [k[b][j][kv_head] for j in seen],
                    [v[b][j][kv_head] for j in seen],
                    scale=softmax_scale,
                    softcap=softcap,
                    sink=None if learnable_sink is None else learnable_sink[h],
                    columns=len(v[b][0][0]) if seqlen_k else 0,
                )
    return o, lse


def backward(
    q: Any,
    k: Any,
    v: Any,
    dout: Any,
    dlse: Any = None,
    *,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    learnable_sink: Sequence[float] | None = None,
    softmax_scale: float,
) -> dict[str, dict[tuple[int, ...], Any]]:
    """Return dq, dk, dv as mpf keyed by (batch, position, head, component), delta by (batch, head, row), dsink by head.

    `dout` is nested like o, `dlse` (None: zero) like lse; a sink must be finite.
    """
    zero = mpmath.mpf(0)
    grads: dict[str, dict[tuple[int, ...], Any]] = {"delta": {}, "dsink": {}}
    for name, tensor in (("dq", q), ("dk", k), ("dv", v)):
        grads[name] = {
            (b, s, h, c): zero
            for b, positions in enumerate(tensor)
            for s, heads in enumerate(positions)
            for h, components in enumerate(heads)
            for c in range(len(components))
        }
    with mpmath.workdps(DIGITS):
        for b, queries in enumerate(q):
            for i, heads in enumerate(queries):
                for h, query in enumerate(heads):
                    kv_head = h * len(k[b][0]) // len(heads) if k[b] else 0
                    seen = [
                        j
                        for j in range(len(k[b]))
                        if visible(i, j, len(queries), len(k[b]), causal=causal, window_size=window_size)
                    ]
                    sink = None if learnable_sink is None else mpmath.mpf(learnable_sink[h])
                    values = [v[b][j][kv_head] for j in seen]
                    slopes, scores = [], []
                    for j in seen:
                        score = mpmath.fdot(query, k[b][j][kv_head]) * mpmath.mpf(softmax_scale)
                        bent = mpmath.tanh(score / mpmath.mpf(softcap)) if softcap else None
                        scores.append(score if bent is None else softcap * bent)
                        slopes.append(mpmath.mpf(1) if bent is None else 1 - bent**2)
                    logits = scores if sink is None else [*scores, sink]
                    total = mpmath.fsum(map(mpmath.exp, logits))
                    weights = [mpmath.exp(logit) / total for logit in logits]
                    dp = [mpmath.fdot(dout[b][i][h], value) for value in values] + [zero] * (sink is not None)
                    grads["delta"][b, h, i] = mpmath.fdot(weights, dp)
                    # d L / d logit_j = sum_l dP_l (w_l [l = j] - w_l w_j) + dlse w_j
                    row_dlse = zero if dlse is None else mpmath.mpf(dlse[b][h][i])
                    ds = [
                        weight * (row_dlse + mpmath.fsum(dp[n] * ((n == m) - weights[n]) for n in range(len(dp))))
                        for m, weight in enumerate(weights)
                    ]
                    if sink is not None:
                        grads["dsink"][(h,)] = grads["dsink"].get((h,), zero) + ds[-1]
                    for n, j in enumerate(seen):
                        along = ds[n] * slopes[n] * mpmath.mpf(softmax_scale)
                        for c, component in enumerate(k[b][j][kv_head]):
                            grads["dq"][b, i, h, c] += along * component
                            grads["dk"][b, j, kv_head, c] += along * query[c]
                        for c, component in enumerate(dout[b][i][h]):
                            grads["dv"][b, j, kv_head, c] += weights[n] * component
    return grads
