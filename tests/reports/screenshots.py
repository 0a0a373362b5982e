"""docs/report.png and docs/terminal.svg, the pictures of the README: `python -m tests.reports.screenshots` makes them.

Runs a few cases of the gate with a kernel that keeps its row sum in bf16 (seconds), photographs the page in Chromium
and draws the terminal with rich, without the web fonts that rich links to: a picture asks the network for nothing.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from fa4verify.cli import main as fa4verify
from fa4verify.reports import summarise, terminal
from fa4verify.runs import read
from tests.reports.test_html_browser import CHROMIUM

if TYPE_CHECKING:
    from fa4verify.reports import Summary

DOCS = Path(__file__).parents[2] / "docs"
KERNEL = "from tests.mutants.catalog import sm100\n\nattention = sm100.row_sum_bf16\n"
CASES = "kernel=fa4-sm100 and not operation=backward and (q65k129 or single_key_rows or q8k0d64 or specials)"
RUN = ["run", "gate", "--kernel", "mine:attention", "--select", CASES]
SIZE = {"width": 1120, "height": 900}


def drawn(summary: Summary, path: Path) -> str:
    """Return what a terminal shows, as SVG: long lines continue below, as they do there."""
    shown = io.StringIO()
    console = Console(file=shown, width=terminal.WIDTH, force_terminal=True, color_system="standard")
    console.print(Text(f"$ fa4verify {shlex.join(RUN)}"), soft_wrap=True)
    terminal.render(summary, files=[path], console=console)
    console.print(Text(terminal.next_step(summary, path)), soft_wrap=True)
    picture = Console(file=io.StringIO(), record=True, width=terminal.WIDTH, force_terminal=True)
    for line in Text.from_ansi(shown.getvalue()).split("\n", allow_blank=True):
        for start in range(0, max(len(line), 1), terminal.WIDTH):
            picture.print(line[start : start + terminal.WIDTH], soft_wrap=True)
    plain = re.sub(r"@font-face \{\{.*?\}\}\n?", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = picture.export_svg(title="fa4verify", theme=MONOKAI, code_format=plain, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def photographed(page: Path, picture: Path) -> None:
    """Photograph the top of a page."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto(page.as_uri())
        tab.screenshot(path=picture)
        browser.close()
    Image.open(picture).quantize(64).save(picture, optimize=True)  # a third of the bytes, no difference to be seen


def main() -> None:
    """Run, photograph, draw."""
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("mine.py").write_text(KERNEL)
        fa4verify([*RUN, "--workers", "1", "--quiet", "--html", "report.html"])
        (path,) = Path("runs").glob("*/*.jsonl")
        photographed(Path("report.html").resolve(), DOCS / "report.png")
        (DOCS / "terminal.svg").write_text(drawn(summarise(read(path)), path))


if __name__ == "__main__":
    main()
