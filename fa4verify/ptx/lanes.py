"""All lane operations: their names, and one instruction of the machine that runs any of them.

Contract: `LANES` maps an opcode of PTX to its `Lane`; numbers below FIRST_FUNCTION are vector code, one case each of
the `switch` that `run_lane` emits (any other number does nothing: `launch` has looked); those from there on belong to
`lane_functions.apply`. Numbers are no format: they may change with every release.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fa4verify.ptx import lane_floats, lane_functions, lane_integers, lane_moves
from fa4verify.ptx.lane import OPERAND_COLUMNS, RESULT_COLUMNS, Lane
from fa4verify.ptx.lane_ir import I32, I64, Lanes, Slots
from fa4verify.ptx.operations import FIRST_UNIT

FIRST_FUNCTION = 768
_INLINE = [*lane_integers.ENTRIES, *lane_moves.ENTRIES, *lane_floats.ENTRIES]
LANES: dict[str, Lane] = {}


def _number() -> None:
    """Fill LANES; an opcode that two entries claim is a defect of the tables."""
    functions = ((FIRST_FUNCTION + i, *entry) for i, entry in enumerate(lane_functions.ENTRIES))
    for number, names, results, operands in (
        *((i, names, results, operands) for i, (names, results, operands, _) in enumerate(_INLINE)),
        *functions,
    ):
        for name in names:
            if name in LANES:
                raise AssertionError(f"two lane operations are called {name}")
            LANES[name] = Lane(number, results, operands)


_number()
if len(_INLINE) > FIRST_FUNCTION or FIRST_FUNCTION + len(lane_functions.ENTRIES) > FIRST_UNIT:
    raise AssertionError("too many lane operations for their range of numbers")


def _emit_case(slots: Slots, row: Any, mask: Any, entry: Any) -> tuple[Any, Any] | None:
    """Emit one operation; return its first result as stored, unless everything has been written already."""
    lanes = slots.lanes
    _, results, operands, emit = entry

    def column(index: int) -> Any:
        address = lanes.add(row, I64(8 * index))
        return lanes.load(lanes.inttoptr(address, I64.as_pointer()))

    values = [slots.read(kind, column(place)) for kind, place in zip(operands, OPERAND_COLUMNS, strict=False)]
    produced = emit(lanes, *values)
    if len(results) == 1:
        return slots.stored(results[0], produced), column(RESULT_COLUMNS[0])
    stored = [slots.stored(kind, value) for kind, value in zip(results, produced, strict=True)]
    for value, place in zip(stored, RESULT_COLUMNS, strict=False):
        slots.write(column(place), value, mask)
    return None


def _run_lane(
    _typing_context: Any, operation: Any, row: Any, registers: Any, predicates: Any, mask: Any
) -> tuple[Any, Any]:
    """Run one lane operation: its number, addresses of the row, the registers and predicates of a warp, the lanes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, at, base, flags, word = (
            context.cast(builder, value, kind, types.int64)
            for value, kind in zip(arguments, signature.args, strict=True)
        )
        word = builder.trunc(word, I32)
        slots = Slots(Lanes(builder), base, flags)
        done = builder.append_basic_block("lane.done")
        switch = builder.switch(number, done)
        ends: dict[str, list[tuple[Any, Any, Any]]] = {}
        for i, entry in enumerate(_INLINE):
            block = builder.append_basic_block(f"lane.{entry[0][0]}")
            switch.add_case(I64(i), block)
            builder.position_at_end(block)
            result = _emit_case(slots, at, word, entry)
            if result is None:
                builder.branch(done)
            else:
                value, column = result
                ends.setdefault(str(value.type), []).append((value, column, builder.block))
        # One store for each shape of result: a phi takes the value, so that 300 cases share its code.
        for incoming in ends.values():
            store = builder.append_basic_block("lane.store")
            for _, _, block in incoming:
                builder.position_at_end(block)
                builder.branch(store)
            builder.position_at_end(store)
            value = builder.phi(incoming[0][0].type)
            column = builder.phi(I64)
            for produced, place, block in incoming:
                value.add_incoming(produced, block)
                column.add_incoming(place, block)
            slots.write(column, value, word)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(operation, row, registers, predicates, mask), codegen


# Not as a decorator: numba types an intrinsic as taking the typing context, which its callers do not pass.
run_lane: Any = intrinsic(_run_lane)
