"""An index of a tensor in words: batch, head, token, and the place in the tile that computed it.

Contract: `locate` names every axis of the tensor; tiles are the kernel's own where its provenance says which
("192x128", queries by keys), else 128 by 128, FA4's usual ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fa4verify.vocabulary import Record

_AXES: dict[str, tuple[str, ...]] = {
    "o": ("batch", "query", "head", "channel"),
    "dq": ("batch", "query", "head", "channel"),
    "dk": ("batch", "key", "KV head", "channel"),
    "dv": ("batch", "key", "KV head", "channel"),
    "lse": ("batch", "head", "query"),
    "delta": ("batch", "head", "query"),
    "dsink": ("head",),
    "y": ("input",),
}
_USUAL = (128, 128)


def locate(record: Record, tensor: str | None, where: tuple[int, ...] | None) -> str:
    """Return the place in words, empty where there is none."""
    axes = _AXES.get(tensor or "")
    if not where or axes is None or len(where) > len(axes):
        return ""
    named = dict(zip(axes, where, strict=False))
    words = [f"{axis} {index}" for axis, index in named.items()]
    rows, columns = _tiles(record)
    if "query" in named:
        words.append(f"row {named['query'] % rows} of query tile {named['query'] // rows} ({rows} rows a tile)")
    if "key" in named:
        words.append(f"column {named['key'] % columns} of KV tile {named['key'] // columns} ({columns} keys a tile)")
    if (key := _heaviest(record, tensor, where)) is not None:
        words.append(f"the key that weighs most there is {key}: column {key % columns} of KV tile {key // columns}")
    return "; ".join([", ".join(words[: len(named)]), *words[len(named) :]])


def _tiles(record: Record) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", record.provenance.get("tiles", ""))
    rows, columns = (int(found[1]), int(found[2])) if found else _USUAL
    return (rows or _USUAL[0]), (columns or _USUAL[1])


def _heaviest(record: Record, tensor: str | None, where: tuple[int, ...]) -> int | None:
    """Return the key that weighs most in the row, where the row is the one whose key was stored."""
    metrics = record.metrics.get(tensor or "")
    if metrics is None or metrics.profile is None or metrics.where.get("max_abs") != where:
        return None
    return metrics.profile.worst_key
