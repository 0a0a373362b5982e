"""Write docs/distributions.md from the docstrings.

`python -m fa4verify.cases.distributions.document > docs/distributions.md`

Contract: every distribution and argument appears, with type and default; a test holds the page equal to this output.
"""

import inspect
import sys

from fa4verify.cases.distributions.table import ATTENTION, GRADIENTS, TABLE, type_name

HEAD = """# Distributions

Written by `python -m fa4verify.cases.distributions.document` from the docstrings; a test keeps it current.

A distribution fills the inputs of a case. In a suite it is a name, or a table with arguments:
`distribution = "normal"`, `distribution = { name = "max_staircase", delta = 8.1 }`. The inputs depend on the case
without its kernel: two kernels get the same bits. A backward gets dout (and dlse, with `lse_gradient`) from N(0, 1)
unless the distribution says otherwise. Each entry says what it detects and, under "Check", the closed form or the
invariance that the tests hold it to."""


def document() -> str:
    """Return the page."""
    blocks = [HEAD]
    for operations, title in (
        (ATTENTION, "Inputs of attention"),
        (GRADIENTS, "Inputs of a backward"),
        (("exp2",), "Arguments of exp2"),
        (("audit",), "An audit"),
    ):
        blocks.append(f"## {title}")
        blocks += [_entry(name) for name, entry in TABLE.items() if entry.operations == operations]
    return "\n\n".join(blocks) + "\n"


def _entry(name: str) -> str:
    """Return one section: the docstring, its parameter list as a Markdown list with types and defaults."""
    entry = TABLE[name]
    text = inspect.cleandoc(entry.generate.__doc__ or "")
    before, _, rest = text.partition("Parameters\n----------\n")
    listed, _, check = rest.rpartition("\n\nCheck")
    paragraphs = [before.rstrip(), *(["Check" + check] if rest else [])]
    described = _arguments(listed)
    lines = []
    for argument, (hint, default) in entry.parameters().items():
        initial = "required" if default is inspect.Parameter.empty else f"default `{_toml(default)}`"
        lines.append(f"- `{argument}` ({type_name(hint)}, {initial}): {described[argument]}")
    parts = [f"### {name}", paragraphs[0], *(["\n".join(lines)] if lines else []), *paragraphs[1:]]
    return "\n\n".join(parts)


def _arguments(listed: str) -> dict[str, str]:
    """Return the description of each argument; one heading may name several."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in listed.splitlines():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(",")]
            found.update(dict.fromkeys(names, ""))
        elif line:
            found.update({name: f"{found[name]} {line.strip()}".strip() for name in names})
    return found


def _toml(value: object) -> str:
    """Return a default as TOML writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        full = value == tuple(range(len(value))) and len(value) > 4
        return f"[0, 1, ..., {value[-1]}]" if full else str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    sys.stdout.write(document())
