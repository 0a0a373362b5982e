"""Error figures of a block of results, 16 at a time, as explicit LLVM vectors.

Contract: `accumulate` adds up relative errors, `outside` counts results off their tread and steps down, `place` sorts
errors in ulp between edges. Results lie in a float32 buffer behind BEFORE others, of which the last precedes the block.
The reference is a geometric progression: inputs of a block are evenly spaced, so that 2^x is one number times a table.
Known failure mode: a NaN result poisons the sums, on purpose; `statistics` then takes the block again one by one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fa4verify.exp2.lanes import (
    _DOUBLES,
    _FLOATS,
    _HALF,
    _I32,
    _I64,
    _INTS,
    BEFORE,
    LANES,
    _alloca,
    _Arguments,
    _at,
    _call,
    _fill_constant,
    _fma,
    _halves,
    _splat,
)

_F64 = ir.DoubleType()
_INFINITY = float("inf")


def _accumulate(
    _typing: Any, y: Any, vectors: Any, table: Any, scale: Any, sums: Any, extremes: Any
) -> tuple[Any, Any]:
    """Add errors y * (scale * table) - 1 to sums[:16], their squares to sums[16:]; write the extremes."""
    signature = types.void(y, vectors, table, scale, sums, extremes)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _Arguments(context, builder, signature, arguments, "y vectors table scale sums extremes")
        y, table, sums = given.data("y"), given.data("table"), given.data("sums")
        scale = _splat(builder, arguments[3], _HALF)
        initial = {"low": _fill_constant(_DOUBLES, _INFINITY), "high": _fill_constant(_DOUBLES, -_INFINITY)}
        slots = {}
        for half in range(2):
            for row, name in enumerate(("sum", "square", "low", "high")):
                slots[name, half] = _alloca(builder, _DOUBLES)
                place = _at(builder, sums, _I64(row % 2 * LANES + half * _HALF), _DOUBLES)
                builder.store(initial[name] if name in initial else builder.load(place, align=8), slots[name, half])
        one = _fill_constant(_DOUBLES, -1.0)
        with cgutils.for_range(builder, given.integer("vectors")) as loop:
            offset = builder.mul(loop.index, _I64(LANES))
            found = builder.load(_at(builder, y, builder.add(offset, _I64(BEFORE)), _FLOATS), align=4)
            for half, part in enumerate(_halves(builder, found)):
                values = builder.fpext(part, _DOUBLES)
                power = builder.load(_at(builder, table, builder.add(offset, _I64(half * _HALF)), _DOUBLES), align=8)
                error = _fma(builder, values, builder.fmul(power, scale), one)
                now = {name: builder.load(slots[name, half]) for name in ("sum", "square", "low", "high")}
                builder.store(builder.fadd(now["sum"], error), slots["sum", half])
                builder.store(_fma(builder, error, error, now["square"]), slots["square", half])
                lower = builder.fcmp_ordered("<", error, now["low"])
                builder.store(builder.select(lower, error, now["low"]), slots["low", half])
                higher = builder.fcmp_ordered(">", error, now["high"])
                builder.store(builder.select(higher, error, now["high"]), slots["high", half])
        for half in range(2):
            for row, name in enumerate(("sum", "square")):
                place = _at(builder, sums, _I64(row * LANES + half * _HALF), _DOUBLES)
                builder.store(builder.load(slots[name, half]), place, align=8)
        for row, (name, side, sign) in enumerate((("low", "fmin", "<"), ("high", "fmax", ">"))):
            first, second = (builder.load(slots[name, half]) for half in range(2))
            both = builder.select(builder.fcmp_ordered(sign, first, second), first, second)
            extreme = _call(builder, f"llvm.vector.reduce.{side}.v8f64", _F64, both)
            builder.store(extreme, builder.gep(given.data("extremes"), [_I64(row)]))
        return context.get_dummy_value()

    return signature, codegen


def _outside(_typing: Any, y: Any, vectors: Any, treads: Any, split: Any, falling: Any, counts: Any) -> tuple[Any, Any]:
    """Add to counts[0:3] the results off their tread, to counts[3] the steps down.

    `treads` (3 formats, 5) uint32: low, width, low and width from the element `position` on, position. Without `split`
    the first two hold for the whole block. `falling`: x falls from element to element.
    """
    signature = types.void(y, vectors, treads, split, falling, counts)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _Arguments(context, builder, signature, arguments, "y vectors treads split falling counts")
        y, treads, vectors = given.data("y"), given.data("treads"), given.integer("vectors")
        counts = given.data("counts")
        falling = builder.zext(given.integer("falling", types.boolean), _I64)
        above = builder.sub(_I64(BEFORE), falling)  # the element at the larger x of each pair
        below = builder.add(_I64(BEFORE - 1), falling)
        rows = [
            [_splat(builder, builder.load(builder.gep(treads, [_I64(5 * row + k)]))) for k in range(5)]
            for row in range(3)
        ]
        slots = [_alloca(builder, _INTS) for _ in range(4)]
        for slot in slots:
            builder.store(_fill_constant(_INTS, 0), slot)
        lane = ir.Constant(_INTS, list(range(LANES)))

        def body(loop: Any, two: bool) -> None:
            offset = builder.mul(loop.index, _I64(LANES))
            code = builder.load(_at(builder, y, builder.add(offset, _I64(BEFORE)), _INTS), align=4)
            where = builder.add(_splat(builder, builder.trunc(offset, _I32)), lane) if two else None
            marks = []
            for low, width, low_after, width_after, position in rows:
                if two:
                    before = builder.icmp_unsigned("<", where, position)
                    low = builder.select(before, low, low_after)
                    width = builder.select(before, width, width_after)
                marks.append(builder.icmp_unsigned(">", builder.sub(code, low), width))
            upper, lower = (
                builder.load(_at(builder, y, builder.add(offset, start), _FLOATS), align=4) for start in (above, below)
            )
            marks.append(builder.fcmp_unordered("<", upper, lower))
            for mark, slot in zip(marks, slots, strict=True):
                builder.store(builder.sub(builder.load(slot), builder.sext(mark, _INTS)), slot)

        with builder.if_else(given.integer("split", types.boolean)) as (then, otherwise):
            with then, cgutils.for_range(builder, vectors) as loop:
                body(loop, two=True)
            with otherwise, cgutils.for_range(builder, vectors) as loop:
                body(loop, two=False)
        for k, slot in enumerate(slots):
            total = _call(builder, "llvm.vector.reduce.add.v16i32", _I32, builder.load(slot))
            place = builder.gep(counts, [_I64(k)])
            builder.store(builder.add(builder.load(place), builder.zext(total, _I64)), place)
        return context.get_dummy_value()

    return signature, codegen


def _place(
    _typing: Any, y: Any, vectors: Any, table: Any, power: Any, scale: Any, room: Any, edges: Any, begin: Any, end: Any,
    at_least: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Count, for each edge in begin ... end - 1, the errors y * scale - power * table that are at least that edge."""
    signature = types.void(y, vectors, table, power, scale, room, edges, begin, end, at_least)
    names = "y vectors table power scale room edges begin end at_least"

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _Arguments(context, builder, signature, arguments, names)
        y, table, room, edges = (given.data(name) for name in ("y", "table", "room", "edges"))
        vectors, begin = given.integer("vectors"), given.integer("begin")
        minus_power = _splat(builder, builder.fneg(arguments[3]), _HALF)
        scale = _splat(builder, arguments[4], _HALF)
        with cgutils.for_range(builder, vectors) as loop:
            offset = builder.mul(loop.index, _I64(LANES))
            found = builder.load(_at(builder, y, builder.add(offset, _I64(BEFORE)), _FLOATS), align=4)
            for half, part in enumerate(_halves(builder, found)):
                place = builder.add(offset, _I64(half * _HALF))
                factor = builder.load(_at(builder, table, place, _DOUBLES), align=8)
                scaled = builder.fmul(builder.fpext(part, _DOUBLES), scale)
                builder.store(_fma(builder, minus_power, factor, scaled), _at(builder, room, place, _DOUBLES), align=8)
        longs = ir.VectorType(_I64, _HALF)
        slot = _alloca(builder, longs)
        with cgutils.for_range(builder, builder.sub(given.integer("end"), begin)) as edge:
            which = builder.add(begin, edge.index)
            limit = _splat(builder, builder.load(builder.gep(edges, [which])), _HALF)
            builder.store(_fill_constant(longs, 0), slot)
            with cgutils.for_range(builder, builder.mul(vectors, _I64(2))) as loop:
                place = _at(builder, room, builder.mul(loop.index, _I64(_HALF)), _DOUBLES)
                reached = builder.fcmp_ordered(">=", builder.load(place, align=8), limit)
                builder.store(builder.sub(builder.load(slot), builder.sext(reached, longs)), slot)
            total = _call(builder, "llvm.vector.reduce.add.v8i64", _I64, builder.load(slot))
            builder.store(total, builder.gep(given.data("at_least"), [which]))
        return context.get_dummy_value()

    return signature, codegen


def _tally(_typing: Any, y: Any, vectors: Any, limits: Any, counts: Any) -> tuple[Any, Any]:
    """Add to counts[k] how many results have bits, as unsigned numbers, above limits[k], k = 0 ... 3."""
    signature = types.void(y, vectors, limits, counts)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _Arguments(context, builder, signature, arguments, "y vectors limits counts")
        rows = [_splat(builder, builder.load(builder.gep(given.data("limits"), [_I64(k)]))) for k in range(4)]
        slots = [_alloca(builder, _INTS) for _ in rows]
        for slot in slots:
            builder.store(_fill_constant(_INTS, 0), slot)
        with cgutils.for_range(builder, given.integer("vectors")) as loop:
            offset = builder.add(builder.mul(loop.index, _I64(LANES)), _I64(BEFORE))
            code = builder.load(_at(builder, given.data("y"), offset, _INTS), align=4)
            for limit, slot in zip(rows, slots, strict=True):
                mark = builder.icmp_unsigned(">", code, limit)
                builder.store(builder.sub(builder.load(slot), builder.sext(mark, _INTS)), slot)
        for k, slot in enumerate(slots):
            total = _call(builder, "llvm.vector.reduce.add.v16i32", _I32, builder.load(slot))
            place = builder.gep(given.data("counts"), [_I64(k)])
            builder.store(builder.add(builder.load(place), builder.zext(total, _I64)), place)
        return context.get_dummy_value()

    return signature, codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
accumulate: Any = intrinsic(_accumulate)
outside: Any = intrinsic(_outside)
place: Any = intrinsic(_place)
tally: Any = intrinsic(_tally)
