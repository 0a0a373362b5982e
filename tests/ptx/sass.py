"""What ptxas makes of a text: its SASS, where a ptxas is installed (triton brings one)."""

from __future__ import annotations

import collections
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path


def tool(*names: str) -> str | None:
    """Path of one of `names`: of triton's, else on the PATH."""
    found = importlib.util.find_spec("triton")
    folders = [Path(folder) / "backends/nvidia/bin" for folder in (found.submodule_search_locations if found else ())]
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return str(folder / name)
        if path := shutil.which(name):
            return path
    return None


PTXAS, NVDISASM = tool("ptxas-blackwell", "ptxas"), tool("nvdisasm")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)((?:\.\w+)*)\s*([^;]*);", re.MULTILINE)


def disassembled(text: str, architecture: str, folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Opcode, modifiers and operands of every instruction, by entry."""
    source, cubin = folder / "text.ptx", folder / "text.cubin"
    source.write_text(text)
    assert PTXAS is not None
    assert NVDISASM is not None
    subprocess.run([PTXAS, "-arch", architecture, source, "-o", cubin], check=True, capture_output=True)
    listing = subprocess.run([NVDISASM, "-c", cubin], check=True, capture_output=True, text=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.", listing, flags=re.MULTILINE)[1:]
    return {re.match(r"[\w$]+", part).group(): INSTRUCTION.findall(part) for part in sections}


def counts(instructions: list[tuple[str, str, str]]) -> collections.Counter[str]:
    """How often each opcode occurs."""
    return collections.Counter(opcode for opcode, _, _ in instructions)
