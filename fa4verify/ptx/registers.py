"""One lane's value of a slot, for units that take few values; lane operations read whole slots.

Contract: `slot` is valid (column not -1); a 64-bit value takes two slots as 32 lanes of 64 bits (operations.py).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.inner import inner
from fa4verify.ptx.raw import address_of, load_i64


@inner
def slot_at(state, r, w, slot):  # type: ignore[no-untyped-def]
    """Address of a slot's 128 bytes, for `raw.py`."""
    return address_of(state.registers[r, w, slot])


@inner
def value32(state, r, w, slot, lane):  # type: ignore[no-untyped-def]
    """Return the unsigned 32-bit value of a lane as an int64."""
    return np.int64(state.registers[r, w, slot, lane])


@inner
def signed32(state, r, w, slot, lane):  # type: ignore[no-untyped-def]
    """Return the signed 32-bit value of a lane as an int64."""
    return np.int64(np.int32(state.registers[r, w, slot, lane]))


@inner
def value64(state, r, w, slot, lane):  # type: ignore[no-untyped-def]
    """Return the 64-bit value of a lane as an int64."""
    return load_i64(slot_at(state, r, w, slot) + 8 * lane)
