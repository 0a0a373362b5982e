"""Where an address of the program lies in this process, and whether it lies anywhere.

Contract: each function returns an address for `raw.py`, or 0 where not every byte belongs to the window. Shared
addresses are shared::cluster ones, rank << RANK_SHIFT | address in that CTA; those of the CTA itself carry its rank.
Global memory is the list of ranges that the caller declared: an access may not run from one into the next.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import PARAMETER_BASE, RANK_SHIFT
from fa4verify.ptx.raw import address_of
from fa4verify.ptx.state import Cta

_FIRST, _SIZE = int(Cta.FIRST), int(Cta.SIZE)
_OFFSET = (1 << RANK_SHIFT) - 1


@inner
def shared_at(state, r, address, size):  # type: ignore[no-untyped-def]
    """Address of `size` bytes of the cluster of resident CTA `r` at a shared::cluster address."""
    rank, offset = int(address) >> RANK_SHIFT, int(address) & _OFFSET
    if rank < 0 or rank >= state.ctas[r, _SIZE] or offset + size > state.shared.shape[1]:
        return np.int64(0)
    return address_of(state.shared[state.ctas[r, _FIRST] + rank]) + offset


@inner
def shared_owner(state, r, address):  # type: ignore[no-untyped-def]
    """Index of the resident CTA that a shared::cluster address belongs to; call after `shared_at`."""
    return state.ctas[r, _FIRST] + (int(address) >> RANK_SHIFT)


@inner
def global_at(state, address, size):  # type: ignore[no-untyped-def]
    """Address of `size` bytes of the caller's memory."""
    for i in range(state.memory.shape[0]):
        offset = int(address) - state.memory[i, 0]
        if offset >= 0 and offset + size <= state.memory[i, 1]:
            return np.int64(address)
    return np.int64(0)


@inner
def parameter_at(state, address, size):  # type: ignore[no-untyped-def]
    """Address of `size` bytes of the kernel's parameters."""
    offset = int(address) - PARAMETER_BASE
    if offset < 0 or offset + size > state.parameters.size:
        return np.int64(0)
    return address_of(state.parameters) + offset
