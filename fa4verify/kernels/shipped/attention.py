"""FlashAttention-4 itself, forward and backward, on a CPU: `fa4@sm_90a`, `fa4@sm_100a` and the others.

Contract: what the installed `flash_attn.cute` computes on the named GPU, as far as its PTX decides it (docs/shipped.md:
what ptxas may still change, and which arithmetic is assumed on Blackwell). Options beyond FlashAttention's own go to
FA4 by its own names; `sm_count` is the GPU's, which FA4's heuristics read, `disable_2cta` FA4's switch. Beyond the
dense layout, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, score_mod, mask_mod, aux_tensors and
block_sparse_tensors are taken as FA4 takes them, tensors on the CPU; q may then be (total, heads, head_dim).

What FA4 refuses is Unsupported in its own words; so is what its compiler refuses or the PTX machine does not know. A
fault while a kernel runs (an address out of bounds, a deadlock) is not a refusal: it is raised.
Fails first where FA4 changes a keyword: tests/kernels/shipped/test_attention.py.
Source: flash-attn-4 4.0.0b36, `interface._flash_attn_fwd`, `_flash_attn_bwd`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any

from fa4verify.kernels import fa4_options
from fa4verify.kernels.shipped.target import TARGETS, Target
from fa4verify.vocabulary import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from fa4verify.kernels.shipped.execution import Execution


@dataclass(frozen=True)
class How:
    """What is not FA4's business: the GPU's SM count, FA4's switch for pairs of CTAs, the order of threads."""

    sm_count: int | None = None
    disable_2cta: bool = False
    schedule: str | None = None
    schedule_seed: int = 0


class ShippedFa4:
    """The kernel object of room 2 for one target."""

    def __init__(self, target: Target) -> None:
        self.name = f"fa4@{target.compiled_for}"
        self._target = target
        self._caches: dict[tuple[str, int], Any] = {}

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: fa4_options.Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        num_splits: int = 1,
        pack_gqa: bool | None = None,
        tile_mn: tuple[int, int] | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_q: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        page_table: torch.Tensor | None = None,
        score_mod: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        aux_tensors: list[torch.Tensor] | None = None,
        block_sparse_tensors: Any = None,
        qv: torch.Tensor | None = None,
        gather_kv_indices: torch.Tensor | None = None,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
        sm_count: int | None = None,
        disable_2cta: bool = False,
        schedule: str | None = None,
        schedule_seed: int = 0,
    ) -> Output:
        """Return o in the dtype of q and lse float32; shapes as in vocabulary, or FA4's own for varlen.

        q_descale, k_descale, v_descale: float32 (batch, heads_kv), for e4m3 and e5m2. schedule: "fixed", "reversed",
        "random" or "late" (execution.py), the last two drawn by schedule_seed.
        """
        options = fa4_options.forward(
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            num_splits=num_splits,
            pack_gqa=pack_gqa,
            tile_mn=tile_mn,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            page_table=page_table,
            score_mod=score_mod,
            mask_mod=mask_mod,
            aux_tensors=aux_tensors,
            block_sparse_tensors=block_sparse_tensors,
            qv=qv,
            gather_kv_indices=gather_kv_indices,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
        )
        how = How(sm_count, disable_2cta, schedule, schedule_seed)
        (o, lse, *_), execution = self._call("_flash_attn_fwd", (q, k, v), options, how)
        return Output(o=o, lse=lse, provenance=self._provenance("forward", execution))

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool = False,
        window_size: fa4_options.Window = (None, None),
        softcap: float = 0.0,
        learnable_sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        deterministic: bool = True,
        seed: int | None = None,
        dlse: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_q: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        score_mod: Callable[..., Any] | None = None,
        score_mod_bwd: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        aux_tensors: list[torch.Tensor] | None = None,
        block_sparse_tensors: Any = None,
        sm_count: int | None = None,
        disable_2cta: bool = False,
        schedule: str | None = None,
        schedule_seed: int = 0,
    ) -> Output:
        """Return dq, dk, dv in the dtype of q and, with a sink, dsink (heads,); o and lse as `forward` gave them.

        seed: run in a random order of warps and CTAs drawn by it, unless `execution.using` says in which; with
        deterministic=False the gradients depend on it. schedule: as in `forward`.
        """
        options = fa4_options.backward(
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            learnable_sink=learnable_sink,
            softmax_scale=softmax_scale,
            deterministic=deterministic,
            dlse=dlse,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            score_mod=score_mod,
            score_mod_bwd=score_mod_bwd,
            mask_mod=mask_mod,
            aux_tensors=aux_tensors,
            block_sparse_tensors=block_sparse_tensors,
        )
        if seed is not None and schedule is None and not _scheduled_outside():
            schedule, schedule_seed = "random", seed
        how = How(sm_count, disable_2cta, schedule, schedule_seed)
        gradients, execution = self._call("_flash_attn_bwd", (q, k, v, o, dout, lse), options, how)
        dq, dk, dv, *dsink = gradients
        provenance = self._provenance("backward", execution)
        return Output(dq=dq, dk=dk, dv=dv, dsink=dsink[0] if dsink else None, provenance=provenance)

    def _call(
        self, function: str, tensors: tuple[torch.Tensor, ...], options: dict[str, Any], how: How
    ) -> tuple[Any, Execution]:
        """Call a function of FA4's interface for the target."""
        with self.interface(how) as (fa4, execution):
            from fa4verify.kernels.shipped.device_tensors import on_host

            called = getattr(fa4, function)
            known = signature(called).parameters  # an older release has fewer: what was not asked for is left out
            given = {name: value for name, value in options.items() if value is not None or name in known}
            found = called(*tensors, **given)
        return on_host(found), execution

    @contextmanager
    def interface(self, how: How | None = None) -> Iterator[tuple[Any, Execution]]:
        """Yield `flash_attn.cute.interface`, set for the target, and the list of what is executed inside.

        All of FA4's public functions work there on CPU tensors, autograd included.
        """
        from fa4verify.kernels.shipped import execution as executions
        from fa4verify.kernels.shipped.host import interface
        from fa4verify.kernels.shipped.refusals import refusals

        chosen = how or How()
        target = self._target if chosen.sm_count is None else replace(self._target, sm_count=chosen.sm_count)
        execution = executions.scheduled(chosen.schedule, chosen.schedule_seed)
        caches = partial(self._cache, target=target)
        with (
            interface(target, caches, disable_2cta=chosen.disable_2cta) as fa4,
            executions.running(execution),
            refusals(target.compiled_for),
        ):
            yield fa4, execution

    def _cache(self, name: str, target: Target) -> Any:
        from fa4verify.kernels.shipped.compiler import KernelCache, cache_folder
        from fa4verify.kernels.shipped.execution import execute

        key = name, target.sm_count
        if key not in self._caches:
            run: Callable[..., None] = partial(execute, target=target)
            self._caches[key] = KernelCache(name, cache_folder(target), run)
        return self._caches[key]

    def _provenance(self, what: str, execution: Execution) -> dict[str, str]:
        versions = {package: version(package) for package in ("flash-attn-4", "nvidia-cutlass-dsl")}
        return {
            "model": f"flash-attn-4 {versions['flash-attn-4']} {what}, its own PTX for {self._target.compiled_for}",
            "compiler": f"nvidia-cutlass-dsl {versions['nvidia-cutlass-dsl']}",
            "launches": " ".join("x".join(map(str, launch.grid)) for launch in execution.launches) or "none",
        }


def _scheduled_outside() -> bool:
    from fa4verify.kernels.shipped import execution as executions

    return executions.current().schedule is not None


FA4_SM_80, FA4_SM_90A, FA4_SM_100A, FA4_SM_103A, FA4_SM_120A = (ShippedFa4(target) for target in TARGETS.values())
