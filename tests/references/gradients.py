"""Small backward problems: what comes back, the gradients in torch and by the full matrix, distances in bounds."""

import math
from functools import cache

import mpmath
import numpy as np
import torch

from fa4verify.references import backward, mp
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, widen
from fa4verify.vocabulary import Inputs

from .problems import attention_case, draw, scale_of, score_size


def case_of(features):
    return attention_case(**{key: value for key, value in features.items() if key != "dlse"})


def draw_backward(*, dlse=True, **features):
    """Return the forward's inputs with dout in their dtype and, unless dlse is False, dlse."""
    inputs = draw(**features)
    q, v = inputs.tensors["q"], inputs.tensors["v"]
    generator = torch.Generator().manual_seed(q.numel() + 1)
    tensors = dict(inputs.tensors)
    tensors["dout"] = torch.randn((*q.shape[:3], v.shape[3]), generator=generator).to(q.dtype)
    if dlse:
        tensors["dlse"] = torch.randn((q.shape[0], q.shape[2], q.shape[1]), generator=generator)
    return Inputs(tensors)


def problem_backward(**features):
    inputs = draw_backward(**features)
    return Problem.of(case_of(features), inputs), Upstream.of(inputs)


def by_torch(**features):
    """Differentiate the plain formula in float64: one exp, no maximum subtracted, visibility asked of mp."""
    inputs = draw_backward(**features)
    leaves = {name: inputs.tensors[name].double().requires_grad_() for name in "qkv"}
    q, k, v = leaves.values()
    if "learnable_sink" in inputs.tensors:
        leaves["sink"] = inputs.tensors["learnable_sink"].double().requires_grad_()
    group = q.shape[2] // k.shape[2]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2)) * scale_of(features, inputs)
    if features.get("softcap"):
        s = features["softcap"] * torch.tanh(s / features["softcap"])
    e = torch.where(torch.tensor(seen_by_mp(q.shape[1], k.shape[1], features)), s.exp(), 0.0)
    total = e.sum(-1)
    if "sink" in leaves:
        total = total + leaves["sink"].exp()[:, None]
    total = torch.where(total == 0, 1.0, total)  # rows without a key or a sink: O = 0, and LSE is a constant
    o = torch.einsum("bhqk,bkhd->bqhd", e / total[..., None], v.repeat_interleave(group, 2))
    dout = inputs.tensors["dout"].double()
    loss = (o * dout).sum()
    if "dlse" in inputs.tensors:
        loss = loss + (total.log() * inputs.tensors["dlse"].double()).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    result = {f"d{name}": grad.numpy() for name, grad in zip(leaves, grads, strict=True)}
    return result | {"delta": (o * dout).sum(-1).transpose(1, 2).detach().numpy()}


def seen_by_mp(seqlen_q, seqlen_k, features):
    mask = {"causal": features.get("causal", False), "window_size": features.get("window_size", (None, None))}
    return np.array(
        [[mp.visible(i, j, seqlen_q, seqlen_k, **mask) for j in range(seqlen_k)] for i in range(seqlen_q)], bool
    ).reshape(seqlen_q, seqlen_k)


@cache
def _by_mpmath(key):
    features = dict(key)
    inputs = draw_backward(**features)
    sink, dlse = (inputs.tensors.get(name) for name in ("learnable_sink", "dlse"))
    return mp.backward(
        *(inputs.tensors[name].double().tolist() for name in ("q", "k", "v", "dout")),
        None if dlse is None else dlse.tolist(),
        causal=features.get("causal", False),
        window_size=features.get("window_size", (None, None)),
        softcap=features.get("softcap", 0.0),
        learnable_sink=None if sink is None else sink.tolist(),
        softmax_scale=scale_of(features, inputs),
    )


def by_mpmath(**features):
    return _by_mpmath(tuple(sorted(features.items())))


def full_matrix(read, upstream, seen, dtype=np.longdouble):
    """Return the gradients, and what the bound of each multiplies, from S x S matrices in `dtype`."""
    q, k, v, dout = (widen(x).swapaxes(1, 2).astype(dtype) for x in (read.q, read.k, read.v, upstream.dout))
    k, v = (x.repeat(read.group, axis=1) for x in (k, v))
    scale = dtype(read.scale)
    s = q @ k.swapaxes(2, 3) * scale
    slope = np.ones_like(s)
    if read.softcap:
        cap = dtype(read.softcap)
        s, slope = cap * np.tanh(s / cap), 1 / np.cosh(s / cap) ** 2
    s = np.where(seen, s, -np.inf)
    sink = np.full((q.shape[1], 1), -np.inf, dtype) if read.sink is None else read.sink[:, None].astype(dtype)
    top = np.maximum(s.max(axis=-1, initial=-np.inf), sink)
    top[top == -np.inf] = 0
    e, p_sink = np.exp(s - top[..., None]), np.exp(sink - top)
    total = e.sum(axis=-1) + p_sink
    total[total == 0] = 1
    p, p_sink = e / total[..., None], p_sink / total
    dlse = np.zeros(total.shape, dtype) if upstream.dlse is None else upstream.dlse.astype(dtype)
    dp = dout @ v.swapaxes(2, 3)
    delta = (p * dp).sum(axis=-1)
    ds = p * slope * (dp - (delta - dlse)[..., None])
    size = np.where(seen, np.abs(dout) @ np.abs(v).swapaxes(2, 3), 0).max(axis=-1, initial=0)  # M of the docstring
    reach = (size + np.abs(dlse))[..., None]

    def by_head(x):
        return x.swapaxes(1, 2)

    def by_key_head(x):
        return by_head(x.reshape(x.shape[0], x.shape[1] // read.group, read.group, *x.shape[2:]).sum(axis=2))

    gradients = {
        "dq": by_head(scale * (ds @ k)),
        "dk": by_key_head(scale * (ds.swapaxes(2, 3) @ q)),
        "dv": by_key_head(p.swapaxes(2, 3) @ dout),
        "delta": delta,
        "dsink": -(p_sink * (delta - dlse)).sum(axis=(0, 2)),
    }
    sizes = {
        "dq": by_head(abs(scale) * reach * (p * slope @ np.abs(k))),
        "dk": by_key_head(abs(scale) * (p * slope).swapaxes(2, 3) @ (reach * np.abs(q))),
        "dv": by_key_head(p.swapaxes(2, 3) @ np.abs(dout)),
        "delta": size,
        "dsink": (p_sink * reach[..., 0]).sum(axis=(0, 2)),
    }
    if read.sink is None:
        del gradients["dsink"], sizes["dsink"]
    return (
        gradients,
        sizes,
        {"p": p, "dp": dp, "ds": ds, "slope": slope, "q": q, "k": k, "dout": dout, "p_sink": p_sink},
    )


def in_bounds(result, expected, **features):
    """Return for each gradient its largest error over its bound; infinite where it should be exact and is not."""
    inputs = draw_backward(**features)
    read, upstream = Problem.of(case_of(features), inputs), Upstream.of(inputs)
    _, sizes, _ = full_matrix(read, upstream, seen_by_mp(read.q.shape[1], read.k.shape[1], features), np.float64)
    finite = np.abs(result["lse"][np.isfinite(result["lse"])]).max(initial=0.0)
    factors = backward.error_bound(read, score_size(inputs, scale_of(features, inputs)), float(finite))
    ratios = {}
    for name, values in expected.items():
        error = np.abs(result[name] - values).astype(float)
        bound = 1.0001 * factors[name] * sizes[name].astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios[name] = np.where(error == 0, 0.0, error / bound).max(initial=0.0)
    return ratios


def exactly(**features):
    """Return mpmath's gradients as arrays of mpf, shaped like a result."""
    read, _ = problem_backward(**features)
    batch, seqlen_q, heads, _ = read.q.shape
    shapes = {"dq": read.q.shape, "dk": read.k.shape, "dv": read.v.shape, "delta": (batch, heads, seqlen_q)}
    if read.sink is not None:
        shapes["dsink"] = (read.q.shape[2],)
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = np.full(shape, mpmath.mpf(0), object)
        for place, value in by_mpmath(**features)[name].items():
            arrays[name][place] = value
    return arrays


def from_mpmath(result, **features):
    """Return for each gradient its largest error over its bound, against mpmath."""
    exact = exactly(**features)
    with mpmath.workdps(mp.DIGITS):
        away = np.vectorize(lambda x, y: float(abs(x - mpmath.mpf(y))), otypes=[float])
        errors = {name: away(values, result[name].astype(object)) for name, values in exact.items()}
    reference = {name: np.zeros(values.shape) for name, values in exact.items()}
    measured = errors | {"lse": result["lse"]}
    return in_bounds(measured, reference, **features)


def worst(ratios):
    return max(ratios.values(), default=math.nan)
