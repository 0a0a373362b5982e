"""The grid and its covering part: every pair is there, and taking one configuration away is noticed."""

from itertools import combinations

from fa4verify.kernels.shipped.audit.configurations import (
    ANCHORS,
    FAMILIES,
    Configuration,
    covering,
    every,
    is_served,
)


def pairs(some):
    """Every pair of values, written down anew: as a set of names and values."""
    found = set()
    for one in some:
        values = {
            "arch": one.arch,
            "dims": (one.head_dim, one.head_dim_v),
            "mask": one.mask,
            "dtype": one.dtype,
            "layout": one.layout,
            "deterministic": one.deterministic,
        }
        found |= {frozenset(two) for two in combinations(values.items(), 2)}
    return found


def test_the_grid_is_what_was_asked_for():
    grid = every()
    assert len({one.id for one in grid}) == len(grid) == 5 * 5 * 3 * 4 * 3 * 3  # the last: forward, two backwards
    assert {(one.head_dim, one.head_dim_v) for one in grid} == {(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)}
    one = Configuration("bwd", "sm_90a", 192, 128, "window", "fp16", "varlen", deterministic=True)
    assert one.id == "bwd-sm_90a-d192v128-window-fp16-varlen-det"
    assert one in grid


def test_every_pair_is_covered_in_every_family_and_direction():
    for direction in ("fwd", "bwd"):
        for family in FAMILIES:
            grid = [one for one in every() if one.direction == direction and one.arch in family and is_served(one)]
            part = [one for one in covering() if one in grid]
            assert pairs(part) == pairs(grid)
            if part:
                assert pairs(part[1:]) != pairs(grid) or part[0].id in ANCHORS


def test_the_part_is_small_and_has_the_anchors():
    part = covering()
    assert len(set(part)) == len(part) <= 120
    assert {*ANCHORS} <= {one.id for one in part}
