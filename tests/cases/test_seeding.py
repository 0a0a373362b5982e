"""The same bits everywhere: pinned, and dependent on what is drawn only."""

import hashlib

import msgspec
import numpy as np
import pytest
import torch

from fa4verify.cases import draw
from fa4verify.cases.seeding import stream
from fa4verify.vocabulary import Distribution
from tests.cases.build import case


def digest(a_case):
    tensors = draw(a_case).tensors
    return hashlib.sha256(b"".join(tensors[name].view(torch.int16).numpy().tobytes() for name in "qkv")).hexdigest()


def test_uniform_and_normal_numbers_are_pinned():
    """Equal under NumPy 1.26.4 and 2.4; a change of either generator would move every input."""
    generator = stream("pin")("x")
    assert [number.hex() for number in generator.random(2)] == ["0x1.d2b1a1ce78d06p-1", "0x1.80e4281be3c6cp-2"]
    rounded = generator.standard_normal(4096).astype(np.float32)
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:16] == "7f6dcf8f38870669"


@pytest.mark.parametrize(("name", "expected"), [("normal", "b1812247e9be2ee7"), ("fa3_outlier", "f15f15465b890e9a")])
def test_drawn_tensors_are_pinned(name, expected):
    assert digest(case(name))[:16] == expected


def test_kernel_options_and_budgets_do_not_move_inputs():
    first = case("fa3_outlier")
    other = msgspec.structs.replace(first, id="y", kernel="else", options={"degree": 2}, timeout_s=1.0, suite="s")
    assert digest(first) == digest(other)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"causal": True},
        {"softcap": 15.0},
        {"softmax_scale": 0.1},
        {"window_size": (3, None)},
        {"distribution": Distribution("scaled_normal", {"factor": 1.0})},
    ],
)
def test_what_is_drawn_moves_inputs(change):
    first = case("normal")
    assert digest(first) != digest(msgspec.structs.replace(first, **change))


def test_an_argument_at_its_default_is_the_same_as_none():
    assert digest(case("fa3_outlier")) == digest(case("fa3_outlier", sigma=10))
    assert digest(case("fa3_outlier")) != digest(case("fa3_outlier", sigma=11))


def test_tensors_are_independent_streams():
    tensors = draw(case("normal", sizes={"seqlen_q": 256})).tensors
    assert not torch.equal(tensors["q"], tensors["k"])
    with_sink = draw(case("normal", sizes={"seqlen_q": 256}, fields={"learnable_sink": True})).tensors
    assert torch.equal(tensors["q"], with_sink["q"])


def test_thread_count_does_not_matter():
    before, threads = digest(case("low_rank_qk")), torch.get_num_threads()
    try:
        torch.set_num_threads(3 if threads != 3 else 1)
        assert digest(case("low_rank_qk")) == before
    finally:
        torch.set_num_threads(threads)
