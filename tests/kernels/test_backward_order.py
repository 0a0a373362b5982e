"""Order of adds: FA4's tiles against the keys themselves, and permutations that are permutations."""

import numpy as np
import pytest

from fa4verify.kernels.emulated.backward_order import DK, DV, NOBODY, dq_turns, head_turns, visited
from fa4verify.kernels.emulated.visibility import resolve

MASKS = [
    (False, (None, None)),
    (True, (None, None)),
    (False, (7, 3)),
    (False, (None, 5)),
    (False, (9, None)),
    (False, (None, -6)),
    (False, (-4, 12)),
    (True, (6, None)),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("lengths", [(40, 40), (13, 50), (50, 13), (1, 30), (30, 1)])
def test_tiles_meet_where_a_query_sees_a_key(mask, lengths):
    """Every pair with a visible key is visited. Beyond those FA4's bounds, which look at tile edges, may add some."""
    (sq, sk), tile_m, tile_n = lengths, 6, 8
    resolved = resolve(*mask)
    met = visited(resolved, tile_m=tile_m, tile_n=tile_n, seqlen_q=sq, seqlen_k=sk)
    gap = np.arange(sk)[None] - (np.arange(sq)[:, None] + sk - sq)
    sees = np.ones((sq, sk), bool)
    if resolved.left is not None:
        sees &= gap >= -resolved.left
    if resolved.right_bound is not None:
        sees &= gap <= resolved.right_bound
    needed = np.zeros_like(met)
    for i, j in np.argwhere(sees):
        needed[i // tile_m, j // tile_n] = True
    assert met.shape == (-(-sq // tile_m), -(-sk // tile_n))
    assert (met >= needed).all()
    surplus = met & ~needed
    assert surplus.sum() <= met.shape[1] + met.shape[0]
    if resolved.left is None and resolved.right_bound is None:
        assert met.all()


def test_fa4s_orders():
    met = np.array([[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]], bool)
    assert dq_turns(met, descending=False).tolist() == [[0, 1, 2, NOBODY], [1, 3, NOBODY, NOBODY], [NOBODY] * 4]
    assert dq_turns(met, descending=True).tolist() == [[2, 1, 0, NOBODY], [3, 1, NOBODY, NOBODY], [NOBODY] * 4]
    assert head_turns(3, 2, kind=DK).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_random_orders_are_permutations_by_seed():
    met = np.tri(8, 12, 4, dtype=bool)
    orders = {}
    for seed in range(3):
        for stream in ((0, 0), (0, 1)):
            turns = dq_turns(met, descending=False, seed=seed, stream=stream)
            for m, row in enumerate(turns):
                assert sorted(row[row != NOBODY]) == np.flatnonzero(met[m]).tolist()
            assert (turns == dq_turns(met, descending=True, seed=seed, stream=stream)).all()
            orders[seed, stream] = turns.tobytes()
    assert len(set(orders.values())) == len(orders)
    turns = head_turns(6, 5, kind=DK, seed=1)
    assert (np.sort(turns) == np.arange(6)).all()
    assert len({row.tobytes() for row in turns}) > 1, "each KV tile has its own order"
    assert (turns != head_turns(6, 5, kind=DV, seed=1)).any(), "dK and dV wait on different semaphores"


def test_every_order_of_three_comes_up():
    met = np.ones((1, 3), bool)
    seen = {dq_turns(met, descending=False, seed=seed).tobytes() for seed in range(60)}
    assert len(seen) == 6
