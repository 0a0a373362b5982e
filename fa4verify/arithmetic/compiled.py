"""Compiled code never outlives its source.

Contract: `discard_stale` deletes numba's cache files below a package when any of its sources, or of the floor's that
they call, changed since they were written. Needed because numba keys its cache by the file of the cached function
alone: an edit of a function that was inlined from another file would leave the old machine code running, and a
verifier would pass what it no longer says.
Not covered: a cache folder of the user's own (NUMBA_CACHE_DIR), which only its owner may empty.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STAMP = "numba-sources.sha256"


def discard_stale(package: Path, floor: Path | None = None) -> bool:
    """Delete the `.nbi` and `.nbc` files below `package` unless its sources are those they were compiled from.

    Parameters
    ----------
    package
        Folder whose compiled code is looked at.
    floor
        Another folder, whose compiled functions those of `package` call.

    Returns
    -------
    bool
        Whether the sources had changed. A package that cannot be written is left alone: numba then keeps its cache
        in the user's folder, keyed by the installed file's path and time.
    """
    digest = hashlib.sha256()
    for folder in (package, floor) if floor and floor != package else (package,):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    stamp = package / "__pycache__" / STAMP
    with contextlib.suppress(OSError):
        if stamp.exists() and stamp.read_text() == digest.hexdigest():
            return False
        for compiled in package.rglob("*.nb[ic]"):
            compiled.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())
    return True
