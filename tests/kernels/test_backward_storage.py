"""Where FA4's accumulators lie, and what a reader with another width gets: tests/golden proves head dim 40."""

import numpy as np
import pytest
import torch

from fa4verify.kernels.emulated.backward_storage import Storage, positions
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90

from .backward_model import gradients64
from .test_backward import chained, problem


@pytest.mark.parametrize(
    ("rows", "width", "groups"),
    [(128, 48, (2,)), (128, 64, (2,)), (64, 80, (1,)), (64, 96, (1,)), (64, 112, (1, 2)), (64, 128, (1, 2))],
)
def test_a_tile_fills_its_part_once(rows, width, groups):
    where = positions(rows, width, *groups)
    assert sorted(where.ravel()) == list(range(rows * width))


def test_registers_of_wgmma():
    """Thread 0 holds (0, 0), (0, 1), (8, 0), (8, 1), then column 8; thread 1 starts at column 2, thread 4 at row 1."""
    where = positions(128, 64, 2)
    assert [where[0, 0], where[0, 1], where[8, 0], where[8, 1]] == [0, 1, 2, 3]
    assert (where[0, 8], where[0, 2], where[1, 0], where[16, 0]) == (512, 4, 16, 128)
    assert where[64, 0] == 64 * 64, "the second warp group's half"
    assert positions(64, 112, 1, 2)[0, 56] == 64 * 56, "the same by columns"


def test_equal_widths_change_nothing():
    tiles = np.arange(2 * 128 * 64, dtype=np.float32).reshape(2, 128, 64)
    assert np.array_equal(Storage(64, 64, 2).reread(tiles), tiles)


def test_narrow_tiles_keep_only_the_first_rows():
    tiles = np.arange(1, 1 + 2 * 128 * 48, dtype=np.float32).reshape(2, 128, 48)
    read = Storage(48, 64, 2).reread(tiles)
    assert read.shape == (2, 128, 64)
    assert np.array_equal(read[0, :64, :48], tiles[0, :64])
    assert not (read[0, 64:, :48] == tiles[0, 64:]).any()
    assert not (read[1, :, :48] == tiles[1]).any()


@pytest.mark.parametrize("head_dim", [8, 16, 40, 48, 72, 80, 104, 112])
def test_dq_is_noise_where_16_and_32_pad_differently(head_dim):
    """FA4's bug, as the recording has it at head dim 40; the same kernel without it is right."""
    q, k, v, dout = problem(300, 200, head_dim)
    exact = gradients64(q, k, v, dout, right=150)[0]
    forward, out = chained(FA4_SM90, q, k, v, dout, window_size=(None, 150))
    own = {"window_size": (None, 150), "intended_storage": True}
    intended = FA4_SM90.backward(dout, q, k, v, forward.o, forward.lse, **own)

    def error(dq):
        return float(torch.linalg.norm(dq.double() - exact) / torch.linalg.norm(exact))

    assert error(out.dq) > 0.8
    assert error(intended.dq) < 0.01
    assert torch.equal(out.dk, intended.dk), "one query head for each KV head: dK has no accumulator in memory"


def test_grouped_heads_lose_dk_and_dv_too():
    q, k, v, dout = problem(60, 200, 40, heads=2)
    forward, out = chained(FA4_SM90, q, k, v, dout)
    intended = FA4_SM90.backward(dout, q, k, v, forward.o, forward.lse, intended_storage=True)
    assert torch.equal(out.dk[:, :64], intended.dk[:, :64])
    assert not torch.equal(out.dk, intended.dk)
    assert not torch.equal(out.dv, intended.dv)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_other_head_dims_are_read_as_written(head_dim):
    q, k, v, dout = problem(20, 40, head_dim)
    forward, out = chained(FA4_SM90, q, k, v, dout)
    intended = FA4_SM90.backward(dout, q, k, v, forward.o, forward.lse, intended_storage=True)
    assert torch.equal(out.dq, intended.dq)
