"""Random streams by name: the same bits on every machine, in every order, for every kernel.

Contract: the stream of a tensor depends on what is drawn (distribution, its arguments, dtype, shape, mask, scale,
seed) and on the tensor's name, never on the kernel, its options or other tensors. Arguments at their default are left
out, so that a new argument with a default moves no existing input.
Known limit: NumPy's normals take log1p from the C library in 1 of 3,000 draws; a last-bit difference there survives
the rounding to float32 once in 2^29. tests/cases/test_seeding.py pins hashes, which NumPy 1.26 and 2.4 share.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fa4verify.vocabulary import Case

Stream = Callable[[str], np.random.Generator]


def canonical(case: Case, arguments: dict[str, Any]) -> str:
    """Return the text that the seed is made of; `arguments` are those of the distribution that differ from default."""
    shape = case.shape
    return json.dumps(
        [
            case.operation,
            case.distribution.name,
            arguments,
            case.dtype,
            [
                shape.batch,
                shape.seqlen_q,
                shape.seqlen_k,
                shape.heads,
                shape.heads_kv,
                shape.head_dim,
                shape.head_dim_v,
            ],
            [case.causal, list(case.window_size)],
            case.softcap,
            case.softmax_scale,
            case.seed,
        ],
        sort_keys=True,
    )


def stream(text: str) -> Stream:
    """Return the function from a tensor's name to its generator."""

    def generator(name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{text}\n{name}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))

    return generator
