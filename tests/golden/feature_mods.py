"""Score and mask modifications that the recording of FA4's features uses; needs nvidia-cutlass-dsl at import.

FA4 compiles these functions into its kernels and keys its cache by their source, so they live in a file.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute


@cute.jit
def slope(score, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Add a bias that is linear in the distance and differs by head, as ALiBi does."""
    distance = (kv_idx - q_idx).to(cutlass.Float32)
    return score + distance * (0.03125 * (head_idx + 1).to(cutlass.Float32))


@cute.jit
def slope_bwd(grad, score, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Pass the gradient of slope on: it adds a constant."""
    return grad


@cute.jit
def halved(score, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Scale the score by 0.7 and square a part of it, so that the gradient depends on the score."""
    return score * 0.75 + score * score * 0.125


@cute.jit
def halved_bwd(grad, score, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Return the gradient of halved."""
    return grad * (score * 0.25 + 0.75)


@cute.jit
def prefix(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):
    """Let every query see the first 50 keys and those up to its own position."""
    return (n_idx <= m_idx) | (n_idx < 50)


@cute.jit
def stripes(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):
    """Let a query see keys of its own parity, and its first 8 keys."""
    return (((m_idx - n_idx) & 1) == 0) | (n_idx < 8)


MODS = {
    "slope": {"score_mod": slope, "score_mod_bwd": slope_bwd},
    "halved": {"score_mod": halved, "score_mod_bwd": halved_bwd},
    "prefix": {"mask_mod": prefix},
    "stripes": {"mask_mod": stripes},
    "slope+prefix": {"score_mod": slope, "score_mod_bwd": slope_bwd, "mask_mod": prefix},
}
