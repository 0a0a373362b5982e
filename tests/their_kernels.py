"""Kernels as users might bring them; the tests use this file from a folder that only has fa4verify installed."""

import os
import signal
import sys
import time
from pathlib import Path

import torch


def good(q, k, v, *, causal, softmax_scale):
    """Attention in float32, with its LSE."""
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.float().repeat_interleave(group, dim=2) for tensor in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * softmax_scale
    if causal:
        rows, keys = scores.shape[2:]
        scores = scores.masked_fill(~torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows), -torch.inf)
    o = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    return o.to(q.dtype), scores.logsumexp(-1)


def prints(q, k, v, *, causal, softmax_scale):
    print("a kernel that prints", flush=True)
    os.write(2, b"and writes to stderr\n")
    return good(q, k, v, causal=causal, softmax_scale=softmax_scale)


def without_causal(q, k, v, *, softmax_scale):
    return good(q, k, v, causal=False, softmax_scale=softmax_scale)


def zeros(q, k, v, *, causal, softmax_scale):
    return torch.zeros_like(q)


def nan(q, k, v, *, causal, softmax_scale):
    o, lse = good(q, k, v, causal=causal, softmax_scale=softmax_scale)
    o[0, 3, 0, 5] = torch.nan
    return o, lse


def raises(q, k, v, *, causal, softmax_scale):
    raise RuntimeError("no such\nthing")


def wrong_shape(q, k, v, *, causal, softmax_scale):
    return q.transpose(1, 2)


def wrong_dtype(q, k, v, *, causal, softmax_scale):
    return q.float()


def mutates(q, k, v, *, causal, softmax_scale):
    return good(q, k.mul_(2), v, causal=causal, softmax_scale=softmax_scale)


def leaves(q, k, v, *, causal, softmax_scale):
    print("goodbye")
    os._exit(3)


def leaves_with_0(q, k, v, *, causal, softmax_scale):
    print("done")
    os._exit(0)


def closes(q, k, v, *, causal, softmax_scale):
    sys.stdout.close()
    os.closerange(0, 3)
    return good(q, k, v, causal=causal, softmax_scale=softmax_scale)


def exits(q, k, v, *, causal, softmax_scale):
    sys.exit("enough")


def segfaults(q, k, v, *, causal, softmax_scale):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(q, k, v, *, causal, softmax_scale):
    Path("hanging").write_text(str(os.getpid()))
    time.sleep(600)
