"""Compiled kernels: what the DSL made of one FA4 kernel, kept in memory and on disk.

Contract: a `KernelCache` is what FA4 uses as a dict from its compile key to a compiled function. A kernel that FA4
compiles is taken apart into host object file and PTX; calling it links the object (runtime.py) and gives every launch
to the PTX machine. On disk (2 to 4 s of compiling a kernel otherwise) entries lie in
`$FA4VERIFY_CACHE_DIR`, else `$XDG_CACHE_HOME/fa4verify`, else `~/.cache/fa4verify`, below a fingerprint of all that
decides what is compiled: the sources of flash_attn and quack, the versions of the DSL, TVM-FFI and Python, the target.
A changed FA4 is therefore always compiled anew. A folder that cannot be written costs time, nothing else; a damaged
file is a miss. `FA4VERIFY_CACHE_DIR=` (empty) keeps nothing.

Fails first when a compile key does not survive pickling the same way: then every run compiles.
Source: flash-attn-4 4.0.0b36, `cache_utils.JITPersistentCache`, which keys its own files the same way.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sys
import tempfile
import zlib
from dataclasses import astuple
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fa4verify.kernels.shipped import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fa4verify.kernels.shipped.target import Target

_EXPORTED = "fa4verify"
_LAYOUT = 1  # of the files; a new layout gets a new folder
_SOURCES = ("flash_attn", "quack")
_VERSIONS = ("nvidia-cutlass-dsl", "apache-tvm-ffi")


class Compiled(msgspec.Struct, frozen=True):
    """One compiled function: the host's relocatable object, and the PTX of the kernels that it launches."""

    object_file: bytes
    ptx: str


class CompiledFunction:
    """What FA4 calls; `execute(self, arguments)` runs it, `kernels` keeps the entries that it loaded."""

    def __init__(self, compiled: Compiled, execute: Callable[[CompiledFunction, Any], None]) -> None:
        self.compiled = compiled
        self.kernels: dict[Any, Any] = {}
        self._execute = execute
        self._function: Any = None

    @property
    def function(self) -> Any:
        """The linked host function."""
        if self._function is None:
            self._function = runtime.load(self.compiled.object_file, _EXPORTED)
        return self._function

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel on these arguments."""
        self._execute(self, arguments)


class KernelCache(dict[Any, CompiledFunction]):
    """FA4's `compile_cache` of one function, for one target."""

    def __init__(self, name: str, folder: Path | None, execute: Callable[[CompiledFunction, Any], None]) -> None:
        super().__init__()
        self._name = name
        self._folder = folder
        self._execute = execute

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        compiled = self._read(key)
        if compiled is None:
            return False
        super().__setitem__(key, CompiledFunction(compiled, self._execute))
        return True

    def __setitem__(self, key: Hashable, compiled_by_dsl: Any) -> None:
        compiled = taken_apart(compiled_by_dsl)
        super().__setitem__(key, CompiledFunction(compiled, self._execute))
        self._write(key, compiled)

    def _path(self, key: object) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._name.strip('_')}-{hashlib.sha256(pickle.dumps(key)).hexdigest()[:32]}"

    def _read(self, key: object) -> Compiled | None:
        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            return msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=Compiled)
        except (OSError, zlib.error, msgspec.MsgspecError):
            return None

    def _write(self, key: object, compiled: Compiled) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(zlib.compress(msgspec.msgpack.encode(compiled), 1))
            Path(file.name).replace(path)  # whole or not at all, also where two processes write
        except OSError:
            return


def taken_apart(compiled_by_dsl: Any) -> Compiled:
    """Return object file and PTX of what `cute.compile` gave, both of this compilation and no other.

    The DSL names its dumps alike for different shapes, so they are read at once.
    """
    ptx = compiled_by_dsl.artifacts.PTX
    if not isinstance(ptx, str) or ".entry" not in ptx:
        raise RuntimeError("the DSL kept no PTX of this compilation")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.o")
        compiled_by_dsl.export_to_c(object_file_path=str(path), function_name=_EXPORTED)
        return Compiled(path.read_bytes(), ptx.rstrip("\0"))  # nvidia-cutlass-dsl 4.5 ends a text with a NUL


def cache_folder(target: Target) -> Path | None:
    """Return where compiled kernels of this target are kept; None: nowhere."""
    given = os.environ.get("FA4VERIFY_CACHE_DIR")
    if given == "":
        return None
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fa4verify"
    return base / "shipped" / _fingerprint(target)


@cache
def _fingerprint(target: Target) -> str:
    digest = hashlib.sha256(repr((_LAYOUT, astuple(target), platform.machine(), sys.version_info[:2])).encode())
    for package in _VERSIONS:
        digest.update(f"{package} {version(package)}".encode())
    for package in _SOURCES:
        spec = find_spec(package)
        for folder in sorted((spec and spec.submodule_search_locations) or ()):
            for source in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{source.relative_to(folder)}".encode())
                digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
