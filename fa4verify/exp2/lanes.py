"""FA4's exp2 and its error statistics on 16 inputs at once, as explicit LLVM vectors.

Contract: `fill` gives the bits of `arithmetic.exp2.ex2_emulation` for inputs whose bit patterns are evenly spaced;
`accumulate`, `count` and `place` take their figures of such a block. Blocks are whole multiples of LANES.

Why vectors by hand: the loop vectoriser refuses the scalar recipe (the rounding toward minus infinity goes through
float64 and a branch) and numba's uint32 arithmetic widens to 64 bits. An AVX-512 processor rounds an addition down in
one instruction; elsewhere TwoSum says on which side the nearest sum lies (a sum is positive here, so one step of the
bits is one step down).
Known failure mode: none of the loops looks at its bounds; `evaluate` and `statistics` are the callers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
BEFORE = 16  # results kept in front of a block: its first step is from the last result before it
_HALF = LANES // 2
_DOWN_QUIETLY = 9  # operand of vaddps: toward minus infinity, no exceptions

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), _HALF)

_alloca: Any = cgutils.alloca_once  # untyped
_declared: Any = cgutils.get_or_insert_function


def _fill_constant(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _splat(builder: Any, scalar: Any, count: int = LANES) -> Any:
    kind = ir.VectorType(scalar.type, count)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, count), [0] * count))


def _at(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())


def _halves(builder: Any, vector: Any) -> list[Any]:
    undefined = ir.Constant(vector.type, ir.Undefined)
    index = ir.VectorType(_I32, _HALF)
    return [
        builder.shuffle_vector(vector, undefined, ir.Constant(index, list(range(start, start + _HALF))))
        for start in (0, _HALF)
    ]


def _call(builder: Any, name: str, result: Any, *operands: Any) -> Any:
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(_declared(builder.module, kind, name), operands)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    name = "llvm.fma.v16f32" if a.type == _FLOATS else "llvm.fma.v8f64"
    return _call(builder, name, a.type, a, b, c)


def _add_down(builder: Any, y: Any, magic: Any, features: str) -> Any:
    """Return y + magic rounded toward minus infinity."""
    if "+avx512f" in features:
        return _call(builder, "llvm.x86.avx512.add.ps.512", _FLOATS, y, magic, _I32(_DOWN_QUIETLY))
    total = builder.fadd(y, magic)
    shadow = builder.fsub(total, y)
    error = builder.fadd(builder.fsub(y, builder.fsub(total, shadow)), builder.fsub(magic, shadow))
    above = builder.fcmp_ordered("<", error, _fill_constant(_FLOATS, 0.0))
    return builder.bitcast(builder.add(builder.bitcast(total, _INTS), builder.sext(above, _INTS)), _FLOATS)


def _exp2(builder: Any, x: Any, coefficients: list[Any], nearest: bool, features: str) -> Any:
    """Return the result's bits."""
    lowest, magic = _fill_constant(_FLOATS, -127.0), _fill_constant(_FLOATS, 2.0**23 + 2.0**22)
    y = builder.select(builder.fcmp_ordered(">", x, lowest), x, lowest)  # PTX max drops a NaN
    shifted = builder.fadd(y, magic) if nearest else _add_down(builder, y, magic, features)
    fraction = builder.fsub(y, builder.fsub(shifted, magic))
    p = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        p = _fma(builder, p, fraction, coefficient)
    exponent = builder.shl(builder.bitcast(shifted, _INTS), _fill_constant(_INTS, 23))
    return builder.add(exponent, builder.bitcast(p, _INTS))


class _Arguments:
    """The typed arguments of an intrinsic by name."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, names: str) -> None:
        self._context, self._builder = context, builder
        self._kinds = dict(zip(names.split(), signature.args, strict=True))
        self._values = dict(zip(names.split(), arguments, strict=True))

    def data(self, name: str) -> Any:
        array = self._context.make_array(self._kinds[name])
        return array(self._context, self._builder, self._values[name]).data

    def integer(self, name: str, kind: Any = types.int64) -> Any:
        return self._context.cast(self._builder, self._values[name], self._kinds[name], kind)


def _fill(
    _typing: Any,
    out: Any,
    offset: Any,
    first: Any,
    stride: Any,
    vectors: Any,
    coefficients: Any,
    degree: Any,
    nearest: Any,
) -> tuple[Any, Any]:
    """Write the results for the inputs with the bits first, first + stride, ... to out[offset:]."""
    signature = types.void(out, offset, first, stride, vectors, coefficients, degree, nearest)
    names = "out offset first stride vectors coefficients degree nearest"

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _Arguments(context, builder, signature, arguments, names)
        features = context.codegen().magic_tuple()[2]
        out, offset, vectors = given.data("out"), given.integer("offset"), given.integer("vectors")
        first, stride = (builder.trunc(given.integer(name), _I32) for name in ("first", "stride"))
        lane = ir.Constant(_INTS, list(range(LANES)))
        start = builder.add(_splat(builder, first), builder.mul(_splat(builder, stride), lane))
        advance = _splat(builder, builder.mul(stride, _I32(LANES)))
        source = given.data("coefficients")
        slot = _alloca(builder, _INTS)
        done = builder.append_basic_block("done")
        which = builder.add(
            builder.mul(given.integer("degree"), _I64(2)), builder.zext(given.integer("nearest", types.boolean), _I64)
        )
        switch = builder.switch(which, done)
        for degree in range(8):
            for nearest in (False, True):
                block = builder.append_basic_block(f"degree{degree}{'nearest' if nearest else 'floor'}")
                switch.add_case(_I64(2 * degree + nearest), block)
                builder.position_at_end(block)
                values = [_splat(builder, builder.load(builder.gep(source, [_I64(k)]))) for k in range(degree + 1)]
                builder.store(start, slot)
                with cgutils.for_range(builder, vectors) as loop:
                    code = builder.load(slot)
                    bits = _exp2(builder, builder.bitcast(code, _FLOATS), values, nearest, features)
                    place = builder.add(offset, builder.mul(loop.index, _I64(LANES)))
                    builder.store(bits, _at(builder, out, place, _INTS), align=4)
                    builder.store(builder.add(code, advance), slot)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
fill: Any = intrinsic(_fill)
