"""A parsed entry to a Program.

Contract: every statement becomes rows, or a problem; all problems are reported together. The code ends with an exit,
also where the text does not. Parameters lie one after another, each aligned as declared (PTX ISA, "Kernel Function
Parameters"); static shared variables lie below `SHARED_BASE`, in order; an `.extern` array starts there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fa4verify.ptx import forms
from fa4verify.ptx.builder import Builder, Place
from fa4verify.ptx.errors import Problem, PtxError, Unsupported
from fa4verify.ptx.operations import SHARED_BASE, Op
from fa4verify.ptx.program import Instruction, Parameter, Program, columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fa4verify.ptx.operand import Register
    from fa4verify.ptx.syntax import Entry, Module, Variable


def read(module: Module, entry: Entry) -> Program:
    """Read `entry`.

    Raises
    ------
    PtxError
        With every statement that the machine cannot run.
    """
    problems = list(entry.problems)
    parameters = _placed(entry.parameters, "param")
    variables = (*module.variables, *entry.variables)
    shared = _placed((one for one in variables if one.space == "shared" and one.size), "shared")
    local = _placed((one for one in variables if one.space == "local"), "local")
    dynamic = {one.name: Place("shared", SHARED_BASE, 0) for one in variables if one.space == "shared" and not one.size}
    static = _end(shared)
    if static > SHARED_BASE:
        problems.append(Problem(1, entry.name, f"{static} bytes of static shared memory, at most {SHARED_BASE}"))
    if entry.block is None:
        problems.append(Problem(1, entry.name, "without .reqntid the machine does not know the block's size"))
    builder = Builder({**parameters, **shared, **dynamic, **local})
    starts = []  # of each statement, the row where it begins
    for statement in entry.statements:
        starts.append(len(builder.instructions))
        try:
            forms.read(builder, statement)
        except Unsupported as error:
            problems.append(Problem(statement.line, statement.text, str(error)))
    problems += builder.problems()
    if problems:
        raise PtxError(tuple(sorted(problems, key=lambda one: one.line)), entry.name)
    starts.append(len(builder.instructions))
    rows = [replace(one, target=starts[one.target]) if one.target >= 0 else one for one in builder.instructions]
    last = entry.statements[-1].line if entry.statements else 1
    rows.append(Instruction("(exit)", Op.EXIT, columns({}), last))
    assert entry.block is not None
    return Program(
        name=entry.name,
        target=module.target,
        block=entry.block,
        parameters=tuple(Parameter(name, place.offset, place.size) for name, place in parameters.items()),
        instructions=tuple(rows),
        pool=tuple(builder.pool),
        slots=builder.slots,
        constants={slot: (value, wide) for (value, wide), slot in builder.constants.items()},
        specials=dict(builder.specials),
        names=_names(builder),
        predicates=len(builder.predicates),
        static_shared=static,
        local_bytes=_end(local),
        source=module.source,
    )


def _placed(variables: Iterable[Variable], space: str) -> dict[str, Place]:
    """Give each variable its offset."""
    places, offset = {}, 0
    for one in variables:
        offset = -(-offset // one.align) * one.align
        places[one.name] = Place(space, offset, one.size)
        offset += one.size
    return places


def _end(places: dict[str, Place]) -> int:
    return max((one.offset + one.size for one in places.values()), default=0)


def _names(builder: Builder) -> dict[int, str]:
    def name(key: Register | str) -> str:
        if isinstance(key, str):
            return f"<{key}>"
        return key.name if key.scope == 0 else f"{key.name}@{key.scope}"

    return {
        **{slot: name(key) for key, slot in builder.registers.items()},
        **{~index: name(key) for key, index in builder.predicates.items()},
        **{slot: special for special, slot in builder.specials.items()},
        **{slot: f"{value:#x}" for (value, _), slot in builder.constants.items()},
    }
