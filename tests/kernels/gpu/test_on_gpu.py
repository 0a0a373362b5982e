"""Each GPU kernel on a device, and the device's answers: skipped without one."""

import msgspec
import pytest
import torch

from fa4verify import flow, kernels
from fa4verify.kernels.gpu.device import facts, is_fault
from fa4verify.vocabulary import Shape
from tests.kernels.gpu.test_on_cpu import case

# Compilers warn of names of their own, in threads of their own.
pytestmark = pytest.mark.filterwarnings("ignore")
DEVICE = "cuda:0"
FULL = Shape(1, 256, 256, 4, 4, 64, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("kernel", [name for name in kernels.names() if kernels.needs_gpu(name) and name != "exp2-gpu"])
def test_each_is_attention(kernel, operation):
    problem = msgspec.structs.replace(case(kernel, operation, deterministic=False), shape=FULL)
    record = flow.verify(problem, device=DEVICE)
    assert record.verdict.outcome == "PASS", record.verdict.findings
    assert record.provenance["device"].startswith(torch.cuda.get_device_name())
    assert {"driver", "cuda", "torch", "flash-attn-4", "nvidia-cutlass-dsl", "tf32", "clocks"} <= set(record.provenance)


@pytest.mark.gpu
def test_the_truth_of_a_device_is_within_the_certified_radius():
    import numpy as np

    from fa4verify import cases, references

    for operation in ("forward", "backward"):
        problem = case("flash-attn-4", operation, causal=True)
        inputs = cases.draw(problem)
        here, there = references.solve(problem, inputs), references.solve(problem, inputs, device=DEVICE)
        for name, radius in there.radius.items():
            assert np.nanmax(np.abs(here.tensors[name] - there.tensors[name])) <= 100 * (radius + here.radius[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ex2", "rcp", "lg2", "tanh", "ex2_emulation_3"])
def test_a_block_of_a_function_has_the_floors_bits(name):
    from fa4verify.admission.exhaust import exhaust, on_gpu

    assert exhaust(name, on_gpu(DEVICE), threads=2, blocks=[0, 126, 385]).unlike == 0


def test_faults_are_told_from_refusals():
    assert is_fault(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert is_fault(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_fault(NotImplementedError("softcap is not supported"))
    assert callable(facts)
