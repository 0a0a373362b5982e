"""Instructions by which the lanes of a warp exchange values, for a whole warp at a time.

Contract: `answer(opcode, mask, operands)` takes each lane's operands and the lanes that execute, and gives each lane's
results; a lane that does not execute gets None. Source: PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync",
"elect.sync" (its leader is the lowest lane on an H200; the ISA leaves the choice open).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from .oracle_integers import read

if TYPE_CHECKING:
    from collections.abc import Callable

Lanes = list[tuple[int, ...] | None]


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return the lane that a lane reads, and whether it lies in range."""
    offset, segment = b & 31, c >> 8 & 31
    largest = lane & segment | c & 31 & ~segment
    if mode == "up":
        source = lane - offset
        inside = source >= largest
    else:
        source = {"down": lane + offset, "bfly": lane ^ offset, "idx": lane & segment | offset & ~segment}[mode]
        inside = source <= largest
    return (source if inside else lane), inside


REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "min": min,
    "max": max,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}


def answer(opcode: str, mask: int, operands: list[tuple[int, ...]], negated: bool = False) -> Lanes:
    """Return the results of all 32 lanes."""
    operation, *words = opcode.split(".")
    members = [lane for lane in range(32) if mask >> lane & 1]
    out: Lanes = [None] * 32
    if operation == "shfl":
        for lane in members:
            source, inside = shuffled(words[1], lane, *operands[lane][1:])
            out[lane] = operands[source][0], int(inside)
        return out
    first = {lane: operands[lane][0] for lane in members}
    if operation == "vote":
        votes = {lane: bool(value) != negated for lane, value in first.items()}
        result = {
            "ballot": sum(1 << lane for lane in members if votes[lane]),
            "all": int(all(votes.values())),
            "any": int(any(votes.values())),
            "uni": int(len(set(votes.values())) == 1),
        }[words[1]]
        same: tuple[int, ...] = (result,)
    elif operation == "match" and words[0] == "all":
        equal = len(set(first.values())) == 1
        same = (mask if equal else 0, int(equal))
    elif operation == "match":
        for lane in members:
            out[lane] = (sum(1 << other for other in members if first[other] == first[lane]),)
        return out
    elif operation == "redux":
        kind = words[-1]
        same = (reduce(REDUCTIONS[words[1]], (read(first[lane], kind) for lane in members)) % (1 << 32),)
    elif operation == "elect":
        for lane in members:
            out[lane] = members[0], int(lane == members[0])
        return out
    elif operation == "activemask":
        same = (mask,)
    else:
        raise NotImplementedError(opcode)
    for lane in members:
        out[lane] = same
    return out
