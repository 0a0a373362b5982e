"""What an audit compiles: FA4's forward and backward kernels over architecture, head dim, mask, dtype and layout.

Contract: `every()` is the whole grid; `covering()` a fixed part of it in which each pair of values of two factors that
FA4 can be asked for occurs, for each direction and family of architectures. An audit takes the part by default, because
the whole grid is hours of compiling. Ids are readable and stable: fwd-sm_100a-d192v128-causal-e4m3-varlen.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Literal

import msgspec

from fa4verify.kernels.shipped.target import TARGETS

Direction = Literal["fwd", "bwd"]
HEAD_DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))
MASKS = ("full", "causal", "window")
DTYPES = ("bf16", "fp16", "e4m3", "e5m2")
FP8 = ("e4m3", "e5m2")
LAYOUTS = ("mha", "gqa", "varlen")
FP8_ARCHES = ("sm_100a", "sm_103a")
FAMILIES = (("sm_80", "sm_120a"), ("sm_90a",), ("sm_100a", "sm_103a"))
# Always audited: what the suite `gate` asks for and what is compared between releases.
ANCHORS = (
    "fwd-sm_80-d64-full-bf16-mha",
    "fwd-sm_80-d128-causal-bf16-mha",
    "fwd-sm_90a-d64-full-bf16-mha",
    "fwd-sm_90a-d128-causal-bf16-mha",
    "fwd-sm_100a-d128-full-bf16-mha",
    "fwd-sm_100a-d128-causal-bf16-mha",
    "fwd-sm_100a-d128-full-e4m3-mha",
    "fwd-sm_103a-d128-causal-bf16-mha",
    "bwd-sm_90a-d64-full-bf16-mha",
    "bwd-sm_90a-d128-causal-bf16-mha-det",
)
BACKWARD_ARCHES = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


class Configuration(msgspec.Struct, frozen=True, order=True):
    """One kernel that FA4 may be asked for; `deterministic` is of the backward."""

    direction: Direction
    arch: str
    head_dim: int
    head_dim_v: int
    mask: str
    dtype: str
    layout: str
    deterministic: bool = False

    @property
    def id(self) -> str:
        """Readable and unique."""
        dims = f"d{self.head_dim}" + (f"v{self.head_dim_v}" if self.head_dim_v != self.head_dim else "")
        tail = "-det" if self.deterministic else ""
        return f"{self.direction}-{self.arch}-{dims}-{self.mask}-{self.dtype}-{self.layout}{tail}"


def every() -> tuple[Configuration, ...]:
    """Return the whole grid, also what FA4 refuses: FP8 elsewhere than on Blackwell, a backward on Ampere."""
    grid = []
    for arch, (head_dim, head_dim_v), mask, dtype, layout in product(TARGETS, HEAD_DIMS, MASKS, DTYPES, LAYOUTS):
        grid.append(Configuration("fwd", arch, head_dim, head_dim_v, mask, dtype, layout))
        grid += [
            Configuration("bwd", arch, head_dim, head_dim_v, mask, dtype, layout, deterministic)
            for deterministic in (False, True)
        ]
    return tuple(grid)


def covering() -> tuple[Configuration, ...]:
    """Return a part of the grid that holds every pair of values that FA4 can be asked for, greedily chosen.

    Within each family of architectures that share FA4's kernel class, for each direction. Of what FA4 does not serve at
    all, one configuration each: its refusal is on record. `ANCHORS` are in it.
    """
    grid = every()
    chosen: list[Configuration] = []
    for direction, family in product(("fwd", "bwd"), FAMILIES):
        mine = [one for one in grid if one.direction == direction and one.arch in family]
        chosen += _covered([one for one in mine if is_served(one)])
        refused = [one for one in mine if not is_served(one)]
        kinds = dict.fromkeys((one.arch, one.dtype in FP8) for one in refused)
        chosen += [next(one for one in refused if (one.arch, one.dtype in FP8) == kind) for kind in kinds]
    anchors = [one for one in grid if one.id in ANCHORS and one not in chosen]
    return (*chosen, *anchors)


def is_served(one: Configuration) -> bool:
    """Whether FA4 claims the combination of direction, architecture and dtype; head dims are for it to refuse."""
    if one.direction == "bwd":
        return one.arch in BACKWARD_ARCHES and one.dtype not in FP8
    return one.dtype not in FP8 or one.arch in FP8_ARCHES


def _factors(one: Configuration) -> tuple[object, ...]:
    return (one.arch, one.head_dim, one.mask, one.dtype, one.layout, one.deterministic)


def _pairs(one: Configuration) -> set[tuple[int, object, int, object]]:
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(_factors(one)), 2)}


def _covered(grid: list[Configuration]) -> list[Configuration]:
    left = set().union(*map(_pairs, grid)) if grid else set()
    chosen = []
    while left:
        best = max(grid, key=lambda one: len(_pairs(one) & left))  # the first of equals: the grid's order decides
        chosen.append(best)
        left -= _pairs(best)
    return chosen
