"""A digest of a directed graph that no name and no order of its vertices changes.

Contract: each vertex starts with the colour of its label; a round gives it one made of its label and what it reads,
until no round tells more vertices apart (colour refinement; Weisfeiler and Lehman, 1968). Graphs with unlike digests
differ. Equal digests mean equal histories: all that a walk from reader to read can see, of whatever length.

Fails first where two vertices have equal histories, as two loads of one address: they are one.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

Edge = tuple[int, int, int]  # the vertex that reads, as which operand, the vertex that is read
DIGITS = 12


def refined(labels: Sequence[str], edges: Iterable[Edge], vertices: Iterable[int]) -> list[int]:
    """Return the final colours of these vertices, which read no others: 64 bits, made of labels and edges alone."""
    number = {vertex: at for at, vertex in enumerate(vertices)}
    own = np.array([_word(labels[vertex]) for vertex in number], np.uint64)
    kept = sorted((number[one[0]], one[1], number[one[2]]) for one in edges if one[0] in number)
    reader, operand, source = np.array(kept, np.int64).reshape(-1, 3).T
    salt = _mixed(operand.astype(np.uint64))
    reading, first = np.unique(reader, return_index=True)
    colours, told = own, 0
    while (apart := len(np.unique(colours))) > told:
        told, before, colours = apart, colours, own.copy()
        if len(first):
            colours[reading] += np.add.reduceat(_mixed(before[source] ^ salt), first)
        colours = _mixed(colours)
    found: list[int] = colours.tolist()
    return found


def behind(wanted: Iterable[int], edges: Iterable[Edge]) -> set[int]:
    """Return the vertices that these are made of, themselves included."""
    sources: dict[int, list[int]] = {}
    for reader, _, source in edges:
        sources.setdefault(reader, []).append(source)
    found = {*wanted}
    waiting = [*found]
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def digest(colours: Iterable[int], text: str = "") -> str:
    """Return a short text for a collection of colours, in whatever order, and a text."""
    return hashlib.sha256(" ".join((text, *map(str, sorted(colours)))).encode()).hexdigest()[:DIGITS]


@cache
def _word(label: str) -> int:
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "little")


def _mixed(words: Words) -> Words:
    """Scramble 64 bits (splitmix64's finalizer; Steele, Lea and Flood, 2014), one to one."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
