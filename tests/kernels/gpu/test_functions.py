"""The CuTe kernel around one instruction, on the PTX machine; FA4's keywords, in the installed FA4."""

import inspect
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fa4verify import kernels
from fa4verify.arithmetic.exhaust import MUFU, model
from fa4verify.kernels import fa4_options

pytestmark = [
    pytest.mark.skipif(kernels.availability("fa4@sm_90a") is not None, reason=str(kernels.availability("fa4@sm_90a"))),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # FA4 imports names that the DSL deprecates
]


@pytest.mark.parametrize("name", ["ex2", "tanh"])
def test_the_kernel_is_the_instruction_on_every_element(name, monkeypatch):
    from fa4verify.kernels.gpu import functions
    from fa4verify.kernels.gpu.elementwise import Instruction
    from fa4verify.kernels.shipped import micro, micro_kernels

    monkeypatch.setattr(micro_kernels, "Instruction", Instruction, raising=False)
    assert functions.INSTRUCTIONS == MUFU
    first = 0xBF000000
    x = torch.from_numpy(np.arange(first, first + 8192, dtype=np.uint32).view(np.float32))
    y = torch.full_like(x, torch.nan)
    micro._run("sm_90a", "Instruction", {"text": functions.INSTRUCTIONS[name]}, (x, y))
    assert np.array_equal(y.numpy().view(np.uint32), model(name, first, 8192))


def test_the_names_of_functions_lead_to_their_kernels():
    from fa4verify.kernels.gpu.functions import kernel_of

    assert kernel_of("rcp").text == "rcp.approx.ftz.f32"
    assert (kernel_of("ex2_emulation_5").degree, kernel_of("ex2_emulation_5").packed) == (5, False)
    assert (kernel_of("ex2_emulation_2_4").degree, kernel_of("ex2_emulation_2_4").packed) == (4, True)


def test_every_keyword_is_one_of_the_installed_fa4():
    from flash_attn.cute import interface

    attention = {
        "causal": True, "window_size": (3, None), "softcap": 1.0, "learnable_sink": None, "softmax_scale": 0.5,
    }  # fmt: skip
    forward = fa4_options.forward(**attention, num_splits=2, pack_gqa=True, tile_mn=(1, 2), out="o", lse="l",
                                  q_descale="q", k_descale="k", v_descale="v", max_seqlen_q=None)  # fmt: skip
    assert set(forward) <= set(inspect.signature(interface._flash_attn_fwd).parameters)
    assert (forward["window_size_left"], forward["window_size_right"], forward["k_descale"]) == (3, None, "k")
    assert "max_seqlen_q" not in forward
    backward = fa4_options.backward(**attention, deterministic=True, dlse=None, dq="q", seqused_k=None)
    assert set(backward) <= set(inspect.signature(interface._flash_attn_bwd).parameters)
    assert backward["deterministic"] is True


def test_threads_that_ask_together_compile_one_after_the_other(monkeypatch):
    """The DSL's compiler, entered by two threads, ends the process: seen on an H200."""
    from fa4verify.kernels.gpu import functions

    inside, most = [], []

    def compiled(name, device):
        inside.append(name)
        most.append(len(inside))
        time.sleep(0.01)
        inside.remove(name)
        return lambda x, y: y.copy_(x)

    monkeypatch.setattr(functions, "_compiled", compiled)
    monkeypatch.setattr(functions, "on_cuda", lambda *_: None)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: functions.evaluate("ex2", torch.arange(5.0)), range(4)):
            assert torch.equal(y, torch.arange(5.0))
    assert most == [1, 1, 1, 1]


def test_what_a_kernel_leaves_unwritten_is_no_older_answer(monkeypatch):
    from fa4verify.kernels.gpu import functions

    monkeypatch.setattr(functions, "_compiled", lambda *_: lambda x, y: y[:4000].copy_(x[:4000]))
    monkeypatch.setattr(functions, "on_cuda", lambda *_: None)
    y = functions.evaluate("ex2", torch.zeros(4096))
    assert set(y[4000:].tolist()) == {functions.UNWRITTEN}
    for name, first in (("ex2", 0x3F800000), ("lg2", 0x3F800000), ("tanh", 0xBF800000)):
        assert functions.UNWRITTEN not in model(name, first, 1 << 16).view(np.float32)
