"""Small attention problems, and how far a result of theirs is from mpmath in units of the bound that fp64 states."""

import itertools
import math
from functools import cache

import mpmath
import numpy as np
import torch

from fa4verify.references import fp64, mp
from fa4verify.references.problem import Problem
from fa4verify.vocabulary import Case, Distribution, Inputs

UNIT = 2.0**-53
TINY_TILES = (3, 4)  # rows and keys: problems of a few keys then cross tile edges

LENGTHS = [(1, 1), (1, 7), (7, 1), (5, 5), (3, 9), (9, 4)]
MASKS = [
    {},
    {"causal": True},
    {"window_size": (2, 1)},
    {"window_size": (None, 1)},
    {"window_size": (1, None)},
    {"window_size": (0, 0)},
    {"window_size": (-1, 3)},  # shifted: keys one to three places ahead
    {"window_size": (3, -1)},  # shifted: keys one to three places behind
    {"window_size": (-1, 0)},  # no key at all
    {"window_size": (-1, -1)},  # a pair of negatives is no window
    {"causal": True, "window_size": (2, 5)},  # causal narrows the right side
]
EXTRAS = [{}, {"softcap": 2.5}, {"learnable_sink": True}, {"softcap": 2.5, "learnable_sink": True}]
FEATURES = [
    {"lengths": lengths, **mask, **extra} for lengths, mask, extra in itertools.product(LENGTHS, MASKS, EXTRAS)
] + [
    {"lengths": (5, 5), "heads": heads, "causal": True, "softmax_scale": scale, "learnable_sink": sink, "dtype": dtype}
    for heads, scale, sink, dtype in itertools.product(
        [(1, 1), (6, 2), (3, 1)], [None, 0.0, -0.7, 3.0], [False, True], ["bf16", "fp16"]
    )
]


def name(features):
    return "-".join(f"{key}={value}" for key, value in features.items()).replace(" ", "")


def attention_case(*, budgets=(), **features):
    return Case(
        id="a case",
        operation="forward",
        kernel="none",
        distribution=Distribution("none"),
        budgets=budgets,
        **{key: value for key, value in features.items() if key not in ("lengths", "heads", "dims", "batch", "spread")},
    )


def draw(*, lengths=(5, 5), heads=(4, 2), dims=(4, 3), batch=1, spread=2.0, dtype="bf16", learnable_sink=False, **_):
    generator = torch.Generator().manual_seed(math.prod(lengths) + 100 * heads[0])
    to = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    sizes = [
        (batch, lengths[0], heads[0], dims[0]),
        (batch, lengths[1], heads[1], dims[0]),
        (batch, lengths[1], heads[1], dims[1]),
    ]
    tensors = dict(
        zip("qkv", ((spread * torch.randn(size, generator=generator)).to(to) for size in sizes), strict=True)
    )
    if learnable_sink:
        tensors["learnable_sink"] = 3 * torch.randn(heads[0], generator=generator)
    return Inputs(tensors)


def problem(**features):
    return Problem.of(attention_case(**features), draw(**features))


def score_size(inputs, scale):
    """Return the largest |scale| sum_c |q_c k_jc| of the problem."""
    q, k = (inputs.tensors[name].double().abs() for name in "qk")
    if not q.numel() or not k.numel():
        return 0.0
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    return abs(scale) * float(torch.einsum("bqhd,bkhd->bhqk", q, k).max())


@cache
def _by_mpmath(key):
    features = dict(key)
    inputs = draw(**features)
    sink = inputs.tensors.get("learnable_sink")
    return mp.forward(
        *(inputs.tensors[name].double().tolist() for name in "qkv"),
        causal=features.get("causal", False),
        window_size=features.get("window_size", (None, None)),
        softcap=features.get("softcap", 0.0),
        learnable_sink=None if sink is None else sink.tolist(),
        softmax_scale=scale_of(features, inputs),
    )


def scale_of(features, inputs):
    given = features.get("softmax_scale")
    return 1.0 / math.sqrt(inputs.tensors["q"].shape[3]) if given is None else given


def by_mpmath(**features):
    return _by_mpmath(tuple(sorted(features.items())))


def worst(result, **features):
    """Return the largest error of o or lse over its bound, against mpmath; infinite for a wrong class of value."""
    inputs = draw(**features)
    o, lse = by_mpmath(**features)
    read = Problem.of(attention_case(**features), inputs)
    factor = fp64.error_bound(read, score_size(inputs, scale_of(features, inputs)))
    ratios = [0.0]
    for (b, h, i), exact in lse.items():
        found = result["lse"][b, h, i]
        if not mpmath.isfinite(exact) or not np.isfinite(found):
            ratios.append(0.0 if exact == found else math.inf)
        else:
            size = 8 * math.log(read.k.shape[1] + 1) + abs(float(exact))
            ratios.append(float(abs(exact - mpmath.mpf(float(found)))) / (factor + UNIT * size))
        largest = np.abs(inputs.tensors["v"].double().numpy()).max(initial=0.0)
        for exact_o, found_o in zip(o[b, h, i], result["o"][b, i, h].tolist(), strict=bool(read.k.shape[1])):
            ratios.append(float(abs(exact_o - mpmath.mpf(found_o))) / (factor * largest))
    return max(ratios)
