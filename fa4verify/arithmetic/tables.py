"""Where the tables of the special-function unit come from: the H200's, or those recorded on another device.

Contract: `use(folder)` makes `mufu` and `mufu_tanh` read FOLDER/mufu_tables.json instead of the one beside this file,
in this process, and keeps what numba compiles with them in FOLDER/compiled/CHECKSUM, of that file: numba freezes a
table into its machine code and would otherwise find that of another device, or of tables changed since, in its cache.
It has to be called before either module is imported, which a door does first (`fa4verify run --tables FOLDER`); later
is a RuntimeError, never half of each.
Fails first where a table has another shape: `read` says which. `fa4verify record-device` writes such a folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FILE = "mufu_tables.json"
ROWS = {"ex2": 64, "rcp": 128, "lg2": 64, "tanh": 51}
_READERS = ("fa4verify.arithmetic.mufu", "fa4verify.arithmetic.mufu_tanh")
_chosen: Path | None = None
_tables: dict[str, Any] | None = None


def use(folder: Path) -> None:
    """Read the tables of this folder from now on.

    Raises
    ------
    RuntimeError
        The tables are in use already, or another folder was chosen before.
    OSError, ValueError
        The folder holds no such file, or it holds something else.
    """
    global _chosen, _tables
    folder = folder.resolve()
    if _chosen == folder:
        return
    if _chosen is not None or any(name in sys.modules for name in _READERS):
        raise RuntimeError("the tables of the special-function unit are in use already: choose them before any kernel")
    content = (folder / FILE).read_bytes()
    tables = _checked(json.loads(content), folder / FILE)
    from numba.core import config

    setattr(config, "CACHE_DIR", str(folder / "compiled" / hashlib.sha256(content).hexdigest()[:16]))  # noqa: B010 - numba does not declare it
    _chosen, _tables = folder, tables


def read() -> dict[str, Any]:
    """Return the tables: rows of three integers for each function, and tanh's segments."""
    if _tables is not None:
        return _tables
    shipped: dict[str, Any] = json.loads(files(__package__).joinpath(FILE).read_text())
    return shipped


def _checked(tables: Any, path: Path) -> dict[str, Any]:
    """Return the tables; ValueError unless each has as many rows of three integers as the unit has."""
    for name, count in ROWS.items():
        rows = tables.get(name) if isinstance(tables, dict) else None
        whole = isinstance(rows, list) and len(rows) == count
        if not whole or not all(
            isinstance(row, list) and len(row) == 3 and all(isinstance(value, int) for value in row)
            for row in rows or ()
        ):
            raise ValueError(f"{path}: {name} is not a table of {count} rows of three integers")
    bits = tables.get("tanh_segment_bits")
    whole = isinstance(bits, list) and all(isinstance(n, int) and 0 <= n <= 6 for n in bits)
    if not whole or sum(1 << n for n in bits) != ROWS["tanh"]:
        raise ValueError(f"{path}: no tanh_segment_bits that make {ROWS['tanh']} segments")
    found: dict[str, Any] = tables
    return found
