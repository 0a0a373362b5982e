"""The gate meets features in pairs: what is right alone may be wrong beside another (a sink that GQA drops).

A kernel can pass every case of one feature and forget it where a second one is on. So every pair that FA4's forward
supports occurs in a forward case of the gate, for both kernels; the pairs that cannot occur are declared with a reason.
"""

from collections.abc import Callable
from itertools import combinations

import pytest

from fa4verify.cases import load_suite
from fa4verify.vocabulary import Case

FEATURES: dict[str, Callable[[Case], bool]] = {
    "batch": lambda c: c.shape.batch > 1,
    "gqa": lambda c: c.shape.heads > c.shape.heads_kv,
    "causal": lambda c: c.causal,
    "window": lambda c: c.window_size != (None, None),
    "softcap": lambda c: c.softcap > 0,
    "sink": lambda c: c.learnable_sink,
    "ragged": lambda c: c.shape.seqlen_k % 128 > 0,
    "sq<sk": lambda c: c.shape.seqlen_q < c.shape.seqlen_k,
    "sq>sk": lambda c: c.shape.seqlen_q > c.shape.seqlen_k,
    "bf16": lambda c: c.dtype == "bf16",
    "fp16": lambda c: c.dtype == "fp16",
    "d64": lambda c: c.shape.head_dim == 64,
    "d96": lambda c: c.shape.head_dim == 96,
    "d128": lambda c: c.shape.head_dim == 128,
    "d192": lambda c: c.shape.head_dim == 192,
    "d256": lambda c: c.shape.head_dim == 256,
}
# A case has one dtype, one head dim and one order of its lengths.
EXCLUSIVE = (("sq<sk", "sq>sk"), ("bf16", "fp16"), ("d64", "d96", "d128", "d192", "d256"))
IMPOSSIBLE = {frozenset(pair) for group in EXCLUSIVE for pair in combinations(group, 2)}
PAIRS = [pair for pair in combinations(FEATURES, 2) if frozenset(pair) not in IMPOSSIBLE]
# Larger combinations that models run, and shapes with kernels' own special cases.
POINTS: dict[str, Callable[[Case], bool]] = {
    "Mistral: causal, left window, GQA": lambda c: _on(c, "causal", "window", "gqa") and c.window_size[1] is None,
    "causal, right edge that FA4 replaces by 0": lambda c: c.causal and (c.window_size[1] or 0) > 0,
    "Gemma 2: softcap, causal, window, GQA": lambda c: _on(c, "softcap", "causal", "window", "gqa"),
    "gpt-oss: sink, causal, window, GQA": lambda c: _on(c, "sink", "causal", "window", "gqa"),
    "gpt-oss decode": lambda c: _on(c, "sink", "window", "gqa") and c.shape.seqlen_q == 1 < c.shape.seqlen_k,
    "open to the right": lambda c: not c.causal and c.window_size[0] is not None and c.window_size[1] is None,
    "open to the left": lambda c: not c.causal and c.window_size[0] is None and c.window_size[1] is not None,
    "decode": lambda c: c.causal and c.shape.seqlen_q == 1 < c.shape.seqlen_k,
    "chunked prefill": lambda c: c.causal and c.shape.seqlen_k > 2 * c.shape.seqlen_q > 2,
    "rows without a key in a group": lambda c: _on(c, "causal", "gqa", "sq>sk"),
    "a sink and no key": lambda c: c.learnable_sink and not c.shape.seqlen_k,
    "no query": lambda c: not c.shape.seqlen_q,
    "many keys": lambda c: c.shape.seqlen_k > 4096,
    "many queries": lambda c: c.shape.seqlen_q > 2048,
    "an odd batch": lambda c: c.shape.batch == 3,
}
GATE = [case for case in load_suite("gate").cases if case.operation == "forward"]
KERNELS = ("fa4-sm90", "fa4-sm100")


def _on(case: Case, *features: str) -> bool:
    return all(FEATURES[feature](case) for feature in features)


def missing(cases: list[Case]) -> list[str]:
    """Return the pairs and points that no case with keys and queries (points: any case) holds."""
    full = [case for case in cases if case.shape.seqlen_q and case.shape.seqlen_k]
    pairs = [f"{a} with {b}" for a, b in PAIRS if not any(_on(case, a, b) for case in full)]
    return pairs + [name for name, there in POINTS.items() if not any(map(there, cases))]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_pair_of_features_is_met(kernel: str):
    assert missing([case for case in GATE if case.kernel == kernel]) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_causal_is_met_at_every_head_dim_in_both_dtypes(dtype: str, head_dim: int):
    cases = [case for case in GATE if case.causal and (case.dtype, case.shape.head_dim) == (dtype, head_dim)]
    assert {case.kernel for case in cases} >= set(KERNELS)


def test_a_hole_is_seen():
    """Without the cases of a batch, every pair with it is missing; without softcap under a window, that pair."""
    single = missing([case for case in GATE if case.shape.batch == 1])
    assert {f"batch with {other}" for a, other in PAIRS if a == "batch"} <= set(single)
    plain = missing([case for case in GATE if not _on(case, "softcap", "window")])
    assert {"window with softcap", "Gemma 2: softcap, causal, window, GQA"} <= set(plain)


def test_what_cannot_occur_does_not():
    assert not any(_on(case, *pair) for case in GATE for pair in IMPOSSIBLE)
