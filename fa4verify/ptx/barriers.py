"""What a warp can wait for: named barriers, mbarriers and the barrier of a cluster.

Contract: `complete_tx(state, r, address, bytes)` and `arrive(state, r, address, count)` are what asynchronous
operations call when they have had their effect; addresses are shared::cluster ones.
"""

from __future__ import annotations

from fa4verify.ptx.mbarrier import arrive, complete_tx

__all__ = ["arrive", "complete_tx"]
