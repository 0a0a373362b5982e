"""Every `fa4verify` command of docs/ci.md is one that the command line takes, option by option."""

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from fa4verify.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "ci.md").read_text()
# In a fence: as a line of its own, or behind `run: `. What follows a redirection or `||` is the shell's.
COMMANDS = re.findall(r"^\s*(?:run: )?fa4verify ([^\n>|#]+)", PAGE, re.MULTILINE)


def parsed(command):
    given = re.sub(r"\$\{\w+:\+(.*?)\}", r"\1", command)  # the shell's "if it is set"
    words = shlex.split(given.replace("*", "x"))
    return app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_page_shows_commands():
    assert len(COMMANDS) >= 7
    assert {command.split()[0] for command in COMMANDS} == {"run", "diff", "baseline"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_taken(command):
    parsed(command)


def test_a_command_that_is_not_taken_is_seen():
    with pytest.raises(CycloptsError):
        parsed("run gate --basline x")


def test_blocks_are_indented_by_spaces_and_lead_with_no_foreign_text():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert "\t" not in block
        for line in re.findall(r"run: (?!\|)(.*)|^ {8,}(\S.*)$", block, re.MULTILINE):
            assert "${{ inputs" not in line[0], "substituted into a shell"
