"""Kernels that break their device: `fa4verify run SUITE --kernel tests.gpu.faulty:NAME --device cuda:0`."""

import torch
import triton
import triton.language as tl


@triton.jit
def _store_far_away(pointer, offset):
    tl.store(pointer + offset, 1.0)


def illegal_address(q, k, v, *, causal=False, softmax_scale=None):
    """Write a pebibyte behind a tensor; the context is lost."""
    y = torch.zeros(1, device=q.device)
    _store_far_away[(1,)](y, 1 << 48)
    torch.cuda.synchronize()
    return torch.zeros_like(q)


def out_of_memory(q, k, v, *, causal=False, softmax_scale=None):
    """Ask for a pebibyte."""
    return torch.empty(1 << 50, dtype=torch.uint8, device=q.device)


def fine(q, k, v, *, causal=False, softmax_scale=None):
    """Attention where the tensors are."""
    o = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).float() for x in (q, k, v)), is_causal=causal, scale=softmax_scale
    )
    return o.transpose(1, 2).to(q.dtype)


def on_device(q, k, v, *, causal=False, softmax_scale=None):
    """Attention, but only on a GPU."""
    assert q.is_cuda
    return fine(q, k, v, causal=causal, softmax_scale=softmax_scale)
