"""`fa4verify invariance`: what must not change a bit of a sequence's result, although it lies beside it in memory.

Contract: for a kernel with FA4's own varlen arguments (flash-attn-4 on a GPU, fa4@... on a CPU), forward and
deterministic backward of one sequence are run again

- `batch`: between neighbours, at each place of a batch; once with neighbours that are all NaN;
- `varlen`: packed between others by cu_seqlens;
- `unwritten`: with outputs that the caller brings filled with NaN (kernels that take them);
- `padding`: with keys beyond `seqused_k` (and their values) filled with 0, NaN, infinity, 1e38 (65504 in fp16).

and each is compared with the sequence alone, bit by bit: "equal", "differs" with a count and the first place, or
"refused" with the kernel's own words; an error ends its problem as "crashed". A refusal is not a success: only "equal"
is, and a tensor that is missing, not finite or the same number everywhere is none, since it would be equal whatever lay
beside it. Not covered: values that a mask hides inside the sequence (a case of nan_inf_poison asks for those), and
other batch sizes than FILL.
"""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from fa4verify import gpus, kernels
from fa4verify.judgement.repetition import constant
from fa4verify.outcome import writable, write
from fa4verify.plan import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fa4verify.vocabulary import Output

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FILL = 3  # sequences in a batch
TENSORS = ("o", "lse", "dq", "dk", "dv")
_INTEGERS = {2: torch.int16, 4: torch.int32}


class Problem(msgspec.Struct, frozen=True):
    """One sequence: `pad` keys lie behind it in `padding`."""

    dtype: str = "bf16"
    head_dim: int = 64
    heads: int = 2
    heads_kv: int = 1
    seqlen: int = 333
    pad: int = 51
    causal: bool = False


class Finding(msgspec.Struct, frozen=True):
    """What became of one comparison."""

    check: str
    problem: Problem
    tensor: str
    outcome: str
    detail: str = ""


PROBLEMS = tuple(
    Problem(dtype=dtype, head_dim=head_dim, causal=causal)
    for dtype in DTYPES
    for head_dim in (64, 128, 256)
    for causal in (False, True)
)


def examine_all(name: str, wanted: str, *, matching: str = "", file: Path | None = None) -> int:
    """Examine every problem, print what came out; 0 if all is equal, 1 if a bit differs or it crashed, 3 if refused.

    Raises
    ------
    BadRequest
        There is no such kernel, it takes no varlen arguments, or no problem matches: nothing would be compared.
    """
    found: list[Finding] = []
    problems = [problem for problem in PROBLEMS if matching in str(problem)]
    if not problems:
        raise BadRequest(f"invariance: --matching {matching!r} matches none of {len(PROBLEMS)} problems")
    _refuse_unfit(name)
    if file is not None:
        writable(file)
    with ExitStack() as held:
        device = "cpu"
        if wanted != "cpu" and (wanted != "auto" or kernels.needs_gpu(name)):
            device = held.enter_context(gpus.claim(wanted))
        try:
            for problem in problems:
                here = list(_survived(name, device, problem))
                found += here
                print(_line(problem, here), flush=True)
        finally:  # also when somebody ends it
            if file is not None:
                write(file, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    outcomes = {finding.outcome for finding in found}
    return 1 if outcomes & {"differs", "crashed"} else 3 if outcomes != {"equal"} else 0


def _survived(name: str, device: str, problem: Problem) -> Iterator[Finding]:
    """Yield the findings of one problem, and what ended it: the next problems are tried all the same."""
    try:
        yield from examine(name, device, problem)
    except Exception as error:  # whatever a kernel may raise, a fault of the device too
        said = " ".join(str(error).split())
        yield Finding("crashed", problem, "all", "crashed", f"{type(error).__name__}: {said}")


def _refuse_unfit(name: str) -> None:
    """Raise BadRequest for a kernel that a sequence cannot be packed for."""
    try:
        forward: Any = kernels.kernel(name).forward
    except kernels.Unsupported:
        return  # each problem tells, in the kernel's words
    except kernels.UnknownKernel as error:
        raise BadRequest(f"invariance: {error}") from error
    taken = inspect.signature(forward).parameters
    if not {"cu_seqlens_q", "seqused_k"} <= set(taken):
        raise BadRequest(f"invariance: {name} takes no cu_seqlens_q and seqused_k; flash-attn-4 and fa4@... do")


def _line(problem: Problem, found: list[Finding]) -> str:
    """Say how many comparisons came out how, and the first of each check that is not equal."""
    title = f"{problem.dtype} d{problem.head_dim} {'causal' if problem.causal else 'full'}"
    counted = ", ".join(f"{count} {outcome}" for outcome, count in Counter(f.outcome for f in found).items())
    told = {finding.check: finding for finding in reversed(found) if finding.outcome != "equal"}
    lines = [f"  {check}: {finding.tensor} {finding.outcome}: {finding.detail}" for check, finding in told.items()]
    return "\n".join([f"{title}: {counted}", *lines])


def examine(name: str, device: str, problem: Problem) -> Iterator[Finding]:
    """Yield the findings of one problem."""
    kernel: Any = kernels.kernel(name)
    sequences = [_drawn(problem, device, seed) for seed in range(FILL)]
    victim = sequences[0]
    try:
        alone = _run(kernel, victim, problem)
    except kernels.Unsupported as reason:
        yield Finding("alone", problem, "all", "refused", str(reason))
        return
    yield from _meaningless(problem, alone)
    for check, found in _variants(kernel, sequences, problem):
        if isinstance(found, str):
            yield Finding(check, problem, "all", "refused", found)
            continue
        for tensor, expected in alone.items():
            if tensor in found:
                yield _compared(check, problem, tensor, expected, found[tensor])
            else:
                yield Finding(check, problem, tensor, "differs", "not returned")


def _meaningless(problem: Problem, alone: dict[str, torch.Tensor]) -> Iterator[Finding]:
    """Yield what the sequence alone gives that would be equal whatever lay beside it: nothing, a constant, NaN."""
    for tensor in TENSORS:
        x = alone.get(tensor)
        if x is None:
            yield Finding("alone", problem, tensor, "refused", "not returned: nothing to compare")
        elif not bool(x.isfinite().all()):
            yield Finding("alone", problem, tensor, "differs", "NaN or infinity, of inputs that are finite")
        elif constant(x):
            yield Finding("alone", problem, tensor, "differs", f"{float(x.flatten()[0])} everywhere, of random inputs")


def _variants(
    kernel: Any, sequences: list[dict[str, torch.Tensor]], problem: Problem
) -> Iterator[tuple[str, dict[str, torch.Tensor] | str]]:
    """Yield each variant's results for the first sequence, or why it was refused."""
    victim, *others = sequences
    hostile = [{name: torch.full_like(x, torch.nan) for name, x in other.items()} for other in others]
    for place in range(FILL):
        for word, neighbours in (("neighbours", others), ("NaN neighbours", hostile)):
            batch = [*neighbours[:place], victim, *neighbours[place:]]
            joined = {name: torch.cat([one[name] for one in batch]) for name in victim}
            yield f"batch: place {place} of {FILL}, {word}", _tried(kernel, joined, problem, place)
    before, after = min(77, problem.seqlen), min(130, problem.seqlen)
    lengths, packed = [before, problem.seqlen, after], [_cut(others[0], before), victim, _cut(others[1], after)]
    yield (
        "varlen: between others",
        _tried(kernel, _packed(packed), problem, None, _offsets(lengths, victim["q"].device)),
    )
    if "out" in inspect.signature(kernel.forward).parameters:
        yield "unwritten: outputs filled with NaN", _tried(kernel, victim, problem, 0, None, fill=True)
    for value in (0.0, torch.nan, torch.inf, 1e38 if problem.dtype == "bf16" else 65504.0):
        padded = dict(victim)
        for name in ("k", "v"):
            beyond = torch.full_like(victim[name][:, : problem.pad], value)
            padded[name] = torch.cat([victim[name], beyond], dim=1)
        yield f"padding: {value}", _tried(kernel, padded, problem, 0, used=problem.seqlen)


def _tried(
    kernel: Any,
    tensors: dict[str, torch.Tensor],
    problem: Problem,
    place: int | None,
    offsets: torch.Tensor | None = None,
    *,
    fill: bool = False,
    used: int | None = None,
) -> dict[str, torch.Tensor] | str:
    """Run a variant and cut the sequence out of its results; a refusal's words instead."""
    try:
        found = _run(kernel, tensors, problem, offsets, fill=fill, used=used)
    except kernels.Unsupported as reason:
        return str(reason)
    if offsets is not None:
        start, stop = int(offsets[1]), int(offsets[2])
        return {name: x[:, start:stop][None] if name == "lse" else x[start:stop][None] for name, x in found.items()}
    cut = {name: x[place : (place or 0) + 1] for name, x in found.items()}
    return {name: x[:, : problem.seqlen] if name in ("dk", "dv") else x for name, x in cut.items()}


def _run(
    kernel: Any,
    tensors: Mapping[str, torch.Tensor],
    problem: Problem,
    offsets: torch.Tensor | None = None,
    *,
    fill: bool = False,
    used: int | None = None,
) -> dict[str, torch.Tensor]:
    """Return o, lse and the gradients of a forward and a deterministic backward."""
    q, k, v, dout = (tensors[name] for name in ("q", "k", "v", "dout"))
    layout: dict[str, Any] = {"causal": problem.causal}
    if offsets is not None:
        longest = int((offsets[1:] - offsets[:-1]).max())
        layout |= {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": longest, "max_seqlen_k": longest}
    if used is not None:
        layout["seqused_k"] = torch.full((q.shape[0],), used, dtype=torch.int32, device=q.device)
    brought, grads = {}, {}
    if fill:
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.nan, dtype=torch.float32, device=q.device)
        brought = {"out": torch.full_like(q, torch.nan), "out_lse": lse}
        grads = {"grads": tuple(torch.full_like(x, torch.nan) for x in (q, k, v))}
    forward: Output = kernel.forward(q, k, v, **layout, **brought)
    if forward.o is None or forward.lse is None:
        raise kernels.Unsupported("no O or no LSE returned, which the backward needs")
    backward: Output = kernel.backward(dout, q, k, v, forward.o, forward.lse, deterministic=True, **layout, **grads)
    found = {"o": forward.o, "lse": forward.lse, "dq": backward.dq, "dk": backward.dk, "dv": backward.dv}
    # Copies: a kernel may hand out the same buffer every time, and a buffer equals itself.
    return {name: x.detach().to("cpu", copy=True) for name, x in found.items() if x is not None}


def _compared(check: str, problem: Problem, tensor: str, expected: torch.Tensor, got: torch.Tensor) -> Finding:
    if got.shape != expected.shape:
        return Finding(check, problem, tensor, "differs", f"shape {tuple(got.shape)}, alone {tuple(expected.shape)}")
    kind = _INTEGERS[expected.element_size()]
    unlike = got.contiguous().view(kind) != expected.contiguous().view(kind)
    count = int(unlike.sum())
    if not count:
        return Finding(check, problem, tensor, "equal")
    at = tuple(int(i) for i in unlike.nonzero()[0])
    values = f"{float(got[at])} for {float(expected[at])}"
    return Finding(check, problem, tensor, "differs", f"{count} of {unlike.numel()} elements, first at {at}: {values}")


def _drawn(problem: Problem, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Return q, k, v, dout of one sequence, as a batch of one."""
    generator = torch.Generator().manual_seed(seed)
    heads = {"q": problem.heads, "k": problem.heads_kv, "v": problem.heads_kv, "dout": problem.heads}
    return {
        name: torch.randn(1, problem.seqlen, count, problem.head_dim, generator=generator)
        .to(DTYPES[problem.dtype])
        .to(device)
        for name, count in heads.items()
    }


def _cut(sequence: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    return {name: x[:, :length] for name, x in sequence.items()}


def _packed(sequences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([one[name][0] for one in sequences]) for name in sequences[0]}


def _offsets(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
