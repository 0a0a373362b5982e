"""The GPUs that FA4 is compiled for, as far as its host code looks at them.

Contract: `TARGETS` by name of the architecture; `sm_count` decides how FA4 schedules, splits and pairs CTAs, so that
another count can be another kernel, with other bits. `l2_bytes` is not read by flash-attn-4 4.0.0b36 (its schedulers
take 50 MiB for every GPU); it is here for releases that ask.
SM counts: H200 132, B200 148, B300 148 (also fa4verify's emulation), A100 108, RTX 5090 170; L2 from NVIDIA's data
sheets. Shared memory of a block: CUDA C++ Programming Guide, table of technical specifications by compute capability.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Target:
    """One GPU: `compiled_for` is the DSL's name of the architecture, `number` FA4's."""

    compiled_for: str
    number: int
    sm_count: int
    l2_bytes: int
    shared_bytes: int


TARGETS = {
    target.compiled_for: target
    for target in (
        Target("sm_80", 80, 108, 40 * MIB, 163 * 1024),
        Target("sm_90a", 90, 132, 50 * MIB, 227 * 1024),
        Target("sm_100a", 100, 148, 126 * MIB, 227 * 1024),
        Target("sm_103a", 103, 148, 126 * MIB, 227 * 1024),
        Target("sm_120a", 120, 170, 96 * MIB, 99 * 1024),
    )
}
