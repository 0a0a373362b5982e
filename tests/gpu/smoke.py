"""Every GPU kernel and door once, on a machine with a GPU: `python -m tests.gpu.smoke [NAME ...]`.

Contract: each step runs whatever became of the others, prints `ok` or its traceback, and what it found; the exit code
is the number of steps that raised, or that found something else than expected. A name that no step has is an error. A
minute on an H200, most of it compiling. `--slow` adds what compiles emulations.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

DEVICE = "cuda:0"
STEPS = []
UNEXPECTED = []  # what the steps found


def step(function):
    STEPS.append(function)
    return function


def small(kernel, operation="forward", **fields):
    from fa4verify.vocabulary import Budget, Case, Distribution, Shape

    tensors = ("o",) if operation == "forward" else ("o", "dq") if operation == "repeat" else ("dq", "dk", "dv")
    metric = ("distinct", 1) if operation == "repeat" else ("relative_rmse", 0.05)
    budgets = tuple(Budget(t, t, metric[0], "absolute", metric[1], "smoke") for t in tensors)
    shape = fields.pop("shape", Shape(1, 256, 256, 4, 4, 64, 64))
    return Case("smoke", operation, kernel, Distribution("normal"), shape=shape, budgets=budgets, **fields)


def expect(what, found, expected):
    if found not in expected:
        UNEXPECTED.append(what)
        print(f"   UNEXPECTED: {what}: {found}, expected {' or '.join(map(str, expected))}", flush=True)


def told(case, expected=("PASS",)):
    from fa4verify.flow import verify

    record = verify(case, device=DEVICE)
    finding = record.verdict.findings[0].message[:300]
    seconds = {name: value for name, value in record.seconds.items() if value > 0.05}
    print(f"   {record.verdict.outcome} {case.kernel} {case.operation}: {finding} {seconds}", flush=True)
    expect(f"{case.kernel} {case.operation}", record.verdict.outcome, expected)
    return record


@step
def devices():
    from fa4verify.gpus import claim, listed
    from fa4verify.kernels.gpu.device import facts, lost

    print("  ", *listed(), sep="\n   ")
    with claim("auto") as device:
        print("  ", device, facts(torch.device(device)), "lost:", lost(device))


@step
def fa4():
    told(small("flash-attn-4"))
    record = told(small("flash-attn-4", "backward"))
    print("  ", record.provenance)


@step
def sdpa():
    for backend in ("flash", "cudnn", "efficient", "math"):
        record = told(small(f"sdpa-{backend}", causal=True))
        print("     lse:", record.checked.get("lse"), record.provenance.get("lse from"))
        told(small(f"sdpa-{backend}", "backward", deterministic=False))
        told(small(f"sdpa-{backend}", "backward", deterministic=True), ("PASS", "SKIPPED"))


@step
def standard():
    told(small("standard-gpu"))
    told(small("standard-gpu", "backward", learnable_sink=True, window_size=(50, 0)))


@step
def flex():
    told(small("flex-attention"))
    told(small("flex-attention", causal=True, softcap=20.0))
    told(small("flex-attention", "backward", deterministic=False))


@step
def fa4_features():
    from fa4verify.vocabulary import Shape

    for fields in (
        {"window_size": (100, 0)},
        {"softcap": 20.0},
        {"learnable_sink": True},
        {"shape": Shape(1, 200, 333, 6, 2, 128, 128)},
        {"shape": Shape(1, 256, 256, 2, 2, 256, 256)},
        {"lse_gradient": True},
        {"dtype": "fp16", "causal": True},
    ):
        told(small("flash-attn-4", "backward", **fields))
    told(small("flash-attn-4", shape=Shape(1, 256, 256, 2, 2, 512, 512)), ("PASS", "SKIPPED"))


@step
def truth():
    import numpy as np

    from fa4verify import cases, references
    from fa4verify.references import device64
    from fa4verify.references.problem import Problem

    for operation, fields in (("forward", {"causal": True}), ("backward", {"softcap": 5.0, "learnable_sink": True})):
        case = small("flash-attn-4", operation, **fields)
        inputs = cases.draw(case)
        assert device64.serves(Problem.of(case, inputs))
        here, there = references.solve(case, inputs), references.solve(case, inputs, device=DEVICE)
        apart = {name: float(np.abs(here.tensors[name] - there.tensors[name]).max()) for name in here.tensors}
        print("  ", there.provenance["reference"], "apart", apart, "radius", dict(there.radius), dict(here.radius))


@step
def functions():
    from fa4verify.admission.exhaust import exhaust, on_gpu
    from fa4verify.arithmetic.exhaust import NAMES

    answers = on_gpu(DEVICE)
    for name in NAMES:
        found = exhaust(name, answers, threads=4, blocks=[0, 126, 127, 130, 255, 256, 383, 385, 511])
        print("  ", found, flush=True)
        expect(f"bits of {name} that differ", found.unlike, (0,))


@step
def exp2():
    from fa4verify.kernels.gpu.functions import EXP2_GPU

    x = torch.linspace(-3, 3, 1000, device=DEVICE)
    for options in ({}, {"degree": 3}, {"degree": 5}):
        y = EXP2_GPU.exp2(x, **options).y
        print("  ", options, float((y / torch.exp2(x.double()) - 1).abs().max()))


@step
def repeats():
    from fa4verify import cases, judgement, kernels

    for fields in ({}, {"loaded": True}, {"deterministic": False}):
        case = small("flash-attn-4", "repeat", runs=50, **fields)
        start = time.perf_counter()
        seen = judgement.observe(kernels.repeat(case, cases.draw(case), device=DEVICE))
        counts = {name: tensor.distinct for name, tensor in seen.tensors.items()}
        expect(f"patterns of o, {fields}", counts["o"], (1,))
        print("  ", fields, counts, f"{(time.perf_counter() - start) / 50 * 1e3:.1f} ms a run")


@step
def invariance():
    from fa4verify.invariance import Problem, _line, examine

    for problem in (Problem(head_dim=128, causal=True),):
        print("  ", _line(problem, list(examine("flash-attn-4", DEVICE, problem))))


@step
def faults():
    """Show that an illegal address and a lack of memory cost one Record each, and that the next case is fine."""
    from fa4verify.sweep import Setup, sweep

    names = ("illegal_address", "fine", "out_of_memory", "on_device", "illegal_address")
    todo = [small(f"tests.gpu.faulty:{name}", seed=i) for i, name in enumerate(names)]
    import msgspec

    todo = [msgspec.structs.replace(case, id=f"{i}-{case.kernel}") for i, case in enumerate(todo)]
    for record in sweep(todo, workers=1, setup=Setup(DEVICE)):
        print("  ", record.case.id, record.verdict.outcome, record.verdict.findings[0].message[:200], flush=True)
        fault = record.case.kernel.endswith(("illegal_address", "out_of_memory"))
        expect(record.case.id, record.verdict.outcome, ("CRASHED",) if fault else ("PASS",))


def slow_fidelity():
    from fa4verify.cases import load_suite
    from fa4verify.sweep import Setup, sweep

    todo = [case for case in load_suite("fidelity").cases if "d64" in case.id and "normal" in case.id][:4]
    for record in sweep(todo, workers=4, setup=Setup(DEVICE)):
        print("  ", record.case.id, record.verdict.outcome, record.verdict.findings[0].message[:200], flush=True)


def main(words: list[str]) -> int:
    """Run the steps of these names, or all."""
    steps = STEPS + [slow_fidelity] * ("--slow" in words)
    words = [word for word in words if word != "--slow"]
    if strange := set(words) - {function.__name__ for function in steps}:
        print(f"no step {', '.join(sorted(strange))}")
        return 1
    outcomes = Counter()
    for function in steps:
        if words and function.__name__ not in words:
            continue
        start, before = time.perf_counter(), len(UNEXPECTED)
        print(f"== {function.__name__}", flush=True)
        try:
            function()
            outcome = "ok" if len(UNEXPECTED) == before else "UNEXPECTED"
        except Exception:  # the other steps are of use all the same
            traceback.print_exc(file=sys.stdout)
            outcome = "RAISED"
        outcomes[outcome] += 1
        print(f"== {function.__name__}: {outcome} {time.perf_counter() - start:.1f} s", flush=True)
    print(dict(outcomes))
    return outcomes["RAISED"] + outcomes["UNEXPECTED"]


if __name__ == "__main__":
    assert Path("fa4verify").is_dir(), "from the root of the repository"
    sys.exit(main(sys.argv[1:]))
