"""From a configuration to the PTX that FA4 makes for it, without running any of it.

Contract: FA4's own interface is called with zeros of a small problem and softmax_scale 1; every launch is recorded with
its parameters instead of executed. What FA4 or its compiler refuses is Unsupported, in their words. The problem decides
which of FA4's kernels answers: 1024 queries and keys (more than two query tiles, so that pairs of CTAs are chosen where
FA4 has them), 4 heads; packed GQA has 8 over 2, varlen two sequences of 512.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fa4verify.kernels.shipped.audit.extract import facts_of, parameter_places, together
from fa4verify.ptx.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.kernels.shipped.audit.configurations import Configuration
    from fa4verify.kernels.shipped.audit.facts import Facts
    from fa4verify.kernels.shipped.runtime import Launch

LENGTH = 1024
WINDOW = (256, 128)
TORCH = {"bf16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


@dataclass(frozen=True)
class Compiled:
    """A PTX text and the parameters of its launches by name; None where its host code could not be linked."""

    ptx: str
    parameters: Mapping[str, bytes] | None


def compiled(one: Configuration) -> list[Compiled]:
    """Return what FA4 compiles for a configuration, in the order of its launches.

    Raises
    ------
    Unsupported
        FA4 or its compiler declines.
    """
    from fa4verify.kernels.shipped import attention, execution
    from fa4verify.kernels.shipped.target import TARGETS

    found: dict[str, dict[str, bytes]] = {}

    def record(ptx: str, launch: Launch | None) -> None:
        found.setdefault(ptx, {}).update({} if launch is None else _parameters(ptx, launch))

    kernel = attention.ShippedFa4(TARGETS[one.arch])
    tensors, options = _problem(one)
    with execution.using(instead=record):
        if one.direction == "fwd":
            kernel.forward(*tensors, **options)
        else:
            kernel.backward(*tensors, **options, deterministic=one.deterministic)
    return [Compiled(ptx, parameters or None) for ptx, parameters in found.items()]


def facts(one: Configuration) -> dict[str, Facts]:
    """Return the facts of a configuration by kind of kernel: forward, or preprocess, backward, postprocess.

    Raises
    ------
    Unsupported
        FA4 or its compiler declines.
    PtxError
        A text whose structure cannot be followed.
    """
    gathered: dict[str, Facts] = {}
    for text in compiled(one):
        gathered = together(gathered, facts_of(text.ptx, text.parameters))
    return gathered


def _parameters(ptx: str, launch: Launch) -> dict[str, bytes]:
    entry = next(one for one in parse(ptx).entries if one.name == launch.kernel)
    places = parameter_places(entry)
    size = max((offset + length for _, offset, length in places), default=0)
    block = launch.parameters(places, size)
    return {name: block[offset : offset + length] for name, offset, length in places}


def _problem(one: Configuration) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    heads, heads_kv = (8, 2) if one.layout == "gqa" else (4, 4)
    dtype = getattr(torch, TORCH[one.dtype])
    rows = (LENGTH,) if one.layout == "varlen" else (1, LENGTH)

    def zeros(heads: int, dim: int) -> torch.Tensor:
        return torch.zeros(*rows, heads, dim, dtype=dtype)

    q, k, v = zeros(heads, one.head_dim), zeros(heads_kv, one.head_dim), zeros(heads_kv, one.head_dim_v)
    options: dict[str, Any] = {"softmax_scale": 1.0, "causal": one.mask == "causal"}
    if one.mask == "window":
        options["window_size"] = WINDOW
    if one.layout == "varlen":
        ends = torch.tensor([0, LENGTH // 2, LENGTH], dtype=torch.int32)
        options |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        options |= {"max_seqlen_q": LENGTH // 2, "max_seqlen_k": LENGTH // 2}
    if one.direction == "fwd":
        return (q, k, v), options
    o = zeros(heads, one.head_dim_v)
    lse = torch.zeros((heads, LENGTH) if one.layout == "varlen" else (1, heads, LENGTH))
    return (o.clone(), q, k, v, o, lse), options
