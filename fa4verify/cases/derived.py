"""Cases made from cases: another kernel on the same inputs, the last rows of a problem."""

from collections.abc import Iterable
from typing import Any

import msgspec

from fa4verify.cases.naming import case_id
from fa4verify.cases.quantise import BLOCK
from fa4verify.vocabulary import OF_BITS, Budget, Case, Inputs


def substitute_kernel(cases: Iterable[Case], name: str) -> tuple[Case, ...]:
    """Put one kernel in place of every case's own.

    The options of the replaced kernel and the counters that it must show are dropped, since they are not the new
    one's; a kernel put in its own place keeps both. Cases that become the same problem are merged: where their limits
    differ, the loosest counts, because nobody said which architecture the kernel runs on. To hold a kernel to one
    architecture's limits, select its cases first (`kernel=fa4-sm90`). Equal bits are promised of one kernel only:
    another one is not held to such budgets. An audit reads the code of its own kernel, so that no other can stand in.
    """
    merged: dict[str, Case] = {}
    for case in cases:
        if case.operation == "audit" and case.kernel != name:
            continue
        own: dict[str, Any] = {} if case.kernel == name else {"options": {}, "requires": (), **_without_bits(case)}
        renamed = msgspec.structs.replace(case, kernel=name, substituted=True, **own)
        renamed = msgspec.structs.replace(renamed, id=case_id(renamed))
        merged[renamed.id] = _merge(merged[renamed.id], renamed) if renamed.id in merged else renamed
    return tuple(merged.values())


def _without_bits(case: Case) -> dict[str, Any]:
    """Return what remains of a case's budgets, and no baseline where only its bits were of use."""
    kept = tuple(budget for budget in case.budgets if budget.metric not in OF_BITS)
    needed = any(budget.kind == "ratio_to_baseline" for budget in kept)
    return {"budgets": kept} if kept == case.budgets or needed else {"budgets": kept, "baseline": None}


def _merge(first: Case, second: Case) -> Case:
    """Return one case for two of the same problem."""
    budgets: dict[tuple[str, str, str, float], Budget] = {}
    for budget in (*first.budgets, *second.budgets):
        key = (budget.tensor, budget.metric, budget.kind, budget.value)
        if key not in budgets or budget.limit > budgets[key].limit:
            budgets[key] = budget
    return msgspec.structs.replace(
        first,
        budgets=tuple(budgets.values()),
        requires=tuple(dict.fromkeys((*first.requires, *second.requires))),
        baseline=first.baseline or second.baseline,
        timeout_s=max(first.timeout_s, second.timeout_s),
    )


def last_rows(case: Case, inputs: Inputs, count: int) -> tuple[Case, Inputs]:
    """Return the problem of the last `count` queries of the first batch, all heads.

    Masks are aligned at the bottom right, so O, LSE, dQ and delta of those rows are exactly the same. dK, dV and dsink
    are not: they are the gradients of a loss that reads the last rows alone, a problem of its own. For exp2, the last
    `count` arguments.
    """
    tensors = inputs.tensors
    if case.operation == "exp2":
        return case, Inputs({"x": tensors["x"][-count:].contiguous()})
    kept = min(count, case.shape.seqlen_q)
    if case.quantisation.scales == "block" and kept:  # of the last block, which has a scale of its own
        kept = min(kept, (case.shape.seqlen_q - 1) % BLOCK + 1)
    of_keys = ("k", "v", "q_descale", "k_descale", "v_descale")
    small = {name: tensor[:1].contiguous() for name, tensor in tensors.items() if name in of_keys}
    if "q_descale" in small and small["q_descale"].ndim == 3:
        small["q_descale"] = small["q_descale"][..., -1:].contiguous()
    first = case.shape.seqlen_q - kept
    small |= {name: tensors[name][:1, first:].contiguous() for name in ("q", "dout") if name in tensors}
    if "dlse" in tensors:
        small["dlse"] = tensors["dlse"][:1, :, first:].contiguous()
    if "learnable_sink" in tensors:
        small["learnable_sink"] = tensors["learnable_sink"]
    draws = {name: x[:1, first:] if name == "q" else x[:1] for name, x in inputs.draws.items()}
    shape = msgspec.structs.replace(case.shape, batch=1, seqlen_q=kept)
    return msgspec.structs.replace(case, shape=shape, id=f"{case.id}-last{kept}"), Inputs(small, draws)
