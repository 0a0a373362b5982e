"""What FA4, its compiler or the PTX machine declines, told in their own words.

Contract: inside `refusals(...)` an assertion, NotImplementedError or ValueError that FA4's interface raises, whatever
the DSL raises while it compiles, and PTX that the machine does not know become Unsupported, which is SKIPPED. Nothing
else does: a fault of a running kernel, or a private interface that has changed, stays what it is.
"""

from __future__ import annotations

import linecache
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fa4verify.kernels.interface import Unsupported
from fa4verify.ptx.errors import PtxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_REFUSED = (AssertionError, NotImplementedError, ValueError)
_COMPILERS = ("cutlass.base_dsl", "cutlass.cutlass_dsl")
_MOST_CHARACTERS = 300


@contextmanager
def refusals(compiled_for: str) -> Iterator[None]:
    """Turn a refusal into Unsupported."""
    try:
        yield
    except Unsupported:
        raise
    except PtxError as error:
        raise Unsupported(f"the PTX machine does not know all of this kernel: {_line(str(error))}") from error
    except Exception as error:
        frames = list(_frames(error.__traceback__))
        modules = [module for module, _, _ in frames]
        if any(module.startswith(_COMPILERS) for module in modules):
            said = _line(str(error)) or _where(frames)
            raise Unsupported(f"does not compile for {compiled_for}: {type(error).__name__}: {said}") from error
        if isinstance(error, _REFUSED) and any(module.startswith("flash_attn") for module in modules[-2:]):
            raise Unsupported(_line(str(error)) or f"FA4 refuses: {_where(frames)}") from error
        raise


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, str, int]]:
    while traceback is not None:
        frame = traceback.tb_frame
        yield str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def _where(frames: list[tuple[str, str, int]]) -> str:
    """Return the source line that raised, for an assertion without a text."""
    _, file, number = frames[-1]
    return f"{linecache.getline(file, number).strip()} ({file.rsplit('/', 1)[-1]}:{number})"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} ..."
