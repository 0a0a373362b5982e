"""PTX texts around the statements that a test is about."""

from __future__ import annotations

HEAD = """.version 8.8
.target sm_90a
.address_size 64
"""
REGISTERS = """.reg .pred %p<10>;
.reg .b16 %rs<40>;
.reg .b32 %r<80>;
.reg .b64 %rd<40>;
.reg .b128 %rq<2>;
"""


def entry(body: str, parameters: str = ".param .u64 k_param_0, .param .f32 k_param_1", name: str = "k") -> str:
    """Return one entry of 128 threads; `body` starts on a line of its own: line 16 of `text`."""
    return f""".visible .entry {name}(
{parameters}
)
.reqntid 128, 1, 1
{{
{REGISTERS}
{body}
}}
"""


def text(body: str, **options: str) -> str:
    """Return a whole text with one entry."""
    return HEAD + ".extern .shared .align 1024 .b8 dynamic[];\n" + entry(body, **options)


def line_of(whole: str, part: str) -> int:
    """Line, from 1, on which `part` stands first."""
    return whole[: whole.index(part)].count("\n") + 1
