"""One tensor-core step on ROWS x LANES elements at once, as explicit LLVM vectors.

Contract: `step_lanes` replaces C[r, j] of every lane whose exponents lie in the window below by the step's result, in
the same bits as `mma.step_element`; the lanes outside it keep their c and come back as a bit mask for `step_element`.

Why vectors by hand: numba's loop vectoriser gave 1.4 GFLOP/s (alias checks and a scalar fallback), this 12 to 17 on one
core of an AVX-512 Xeon; generic LLVM vectors, so AVX2 and NEON take the same code in two or four pieces.

How: operands of the left side are prescaled by a power of two per row and step (largest below 1), so that a product of
two operands is exact in fp32 (8 + 8 or 11 + 11 significant bits) unless it underflows. Times 2^(F - e) it is in units
of the cut, and the conversion to int32 is the truncation. Even and odd k are summed apart: at most 16 products of
3.52 units (fp8) or 8 of 4 units (16 bit), and c, of 2^25 units each, stay below 2^31. The sum of both is exact in
float64, and truncating toward zero there is clearing low bits.

The window (e = largest exponent of the step, m = the same for products alone, in units of the row's scale):
- e <= 127: 2^(e - F) and 2^(F - e) are normal, and the last, exact multiplication overflows from 2^128 on, as it must;
- e >= -100: results are multiples of 2^(-100 - 25), so never subnormal, and exponent_floor (-132, -133) is far;
- m >= LOWEST_PRODUCT + max(0, largest exponent of b): a product or prescaled operand that underflowed fp32 is off by
  no more than 2^-126 (times b), and 2^(25 - m) of that is below 1, the cut, as is the true product.
An infinite or NaN c has the exponent 128, such operands have SPECIAL: they fall out above. Zeros have ZERO and are
never the largest.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
ROWS = 4  # rows a call shares the loads of b: 1 row reaches 12 GFLOP/s, 2 rows 16, 4 rows 17 in the same run
UNROLL = 4  # terms a loop iteration; divides every k_step. 8 with 4 rows: 14 GFLOP/s

ZERO = -100_000
SPECIAL = 1_000_000  # above -ZERO, so that inf * 0 is seen
NO_TERM = -50_000  # below it every term is zero
HIGHEST = 127
LOWEST = -100
LOWEST_PRODUCT = -99

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INTS, _LONGS = ir.VectorType(_I32, LANES), ir.VectorType(_I64, LANES)
_FLOATS, _DOUBLES = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)


_alloca: Any = cgutils.alloca_once  # untyped


def _fill(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * LANES)


def _splat(builder: Any, scalar: Any) -> Any:
    kind = ir.VectorType(scalar.type, LANES)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, _fill(_INTS, 0))


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def _smaller(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _power_of_two(builder: Any, exponent: Any) -> Any:
    """2^exponent as floats, for exponents of normal numbers."""
    biased = builder.add(exponent, _fill(_INTS, 127))
    return builder.bitcast(builder.shl(biased, _fill(_INTS, 23)), _FLOATS)


class _Rows:
    """Addresses of ROWS rows of a and c, one panel of b and one step's first k."""

    def __init__(self, builder: Any, pointers: Any, offsets: Any) -> None:
        self.builder = builder
        self.a_values, self.a_exponents, self.a_scales, self.b_values, self.b_exponents, self.c = pointers
        self.a_offset, self.a_stride, self.scale_offset, self.scale_stride, self.b_offset, self.c_offset = offsets

    def _at(self, offset: Any, row: int, stride: Any) -> Any:
        return self.builder.add(offset, self.builder.mul(stride, _I64(row)))

    def _vector(self, base: Any, offset: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [offset]), kind.as_pointer())

    def a(self, base: Any, row: int, k: Any) -> Any:
        offset = self.builder.add(self._at(self.a_offset, row, self.a_stride), k)
        return _splat(self.builder, self.builder.load(self.builder.gep(base, [offset])))

    def scale(self, row: int) -> Any:
        offset = self._at(self.scale_offset, row, self.scale_stride)
        return _splat(self.builder, self.builder.load(self.builder.gep(self.a_scales, [offset])))

    def b(self, base: Any, k: Any, kind: Any) -> Any:
        offset = self.builder.add(self.b_offset, self.builder.mul(k, _I64(LANES)))
        return self.builder.load(self._vector(base, offset, kind), align=4)

    def c_address(self, row: int) -> Any:
        return self._vector(self.c, self.builder.add(self.c_offset, _I64(row * LANES)), _FLOATS)


def _largest_exponents(builder: Any, rows: _Rows, k_step: Any) -> list[Any]:
    """Largest exponent among the products of each lane, relative to the row's scale."""
    slots = [_alloca(builder, _INTS) for _ in range(ROWS)]
    for slot in slots:
        builder.store(_fill(_INTS, ZERO), slot)
    with cgutils.for_range(builder, builder.udiv(k_step, _I64(UNROLL))) as loop:
        largest = [builder.load(slot) for slot in slots]
        for u in range(UNROLL):
            k = builder.add(builder.mul(loop.index, _I64(UNROLL)), _I64(u))
            b = rows.b(rows.b_exponents, k, _INTS)
            for r in range(ROWS):
                largest[r] = _larger(builder, builder.add(rows.a(rows.a_exponents, r, k), b), largest[r])
        for slot, value in zip(slots, largest, strict=True):
            builder.store(value, slot)
    return [builder.load(slot) for slot in slots]


def _align(builder: Any, products: Any, scale: Any, c: Any, lowest: Any, fraction_bits: Any) -> tuple[Any, ...]:
    """Lanes outside the window, 2^(F - e) for products and for c, and 2^(e - F)."""
    field = builder.and_(builder.lshr(builder.bitcast(c, _INTS), _fill(_INTS, 23)), _fill(_INTS, 255))
    exponent = _larger(builder, builder.sub(field, _fill(_INTS, 127)), _fill(_INTS, -126))
    magnitude = builder.shl(builder.bitcast(c, _INTS), _fill(_INTS, 1))
    exponent = builder.select(builder.icmp_signed("==", magnitude, _fill(_INTS, 0)), _fill(_INTS, ZERO), exponent)
    exponent = _larger(builder, builder.add(products, scale), exponent)

    some = builder.icmp_signed(">", exponent, _fill(_INTS, NO_TERM))
    small = builder.and_(builder.icmp_signed("<", exponent, _fill(_INTS, LOWEST)), some)
    some_product = builder.icmp_signed(">", products, _fill(_INTS, NO_TERM))
    deep = builder.and_(builder.icmp_signed("<", products, lowest), some_product)
    large = builder.icmp_signed(">", exponent, _fill(_INTS, HIGHEST))
    outside = builder.or_(builder.or_(small, large), deep)

    exponent = _larger(builder, exponent, _fill(_INTS, LOWEST))  # for lanes without any term: 0 * anything
    shift = builder.sub(fraction_bits, exponent)
    # Clamped below: c so much larger that every product is cut away. Above: no product differs from zero.
    product_shift = _larger(builder, builder.add(shift, scale), _fill(_INTS, -126))
    product_shift = _smaller(builder, product_shift, _fill(_INTS, 127))
    back = builder.sub(_fill(_INTS, 0), shift)
    return outside, *(_power_of_two(builder, x) for x in (product_shift, shift, back))


def _sum_products(builder: Any, rows: _Rows, k_step: Any, factors: list[Any], first: list[Any]) -> list[Any]:
    """Sum the truncated products of each row, over even k (from `first` on) and over odd k."""
    slots = [[_alloca(builder, _INTS) for _ in range(2)] for _ in range(ROWS)]
    for row, start in zip(slots, first, strict=True):
        builder.store(start, row[0])
        builder.store(_fill(_INTS, 0), row[1])
    with cgutils.for_range(builder, builder.udiv(k_step, _I64(UNROLL))) as loop:
        sums = [[builder.load(slot) for slot in row] for row in slots]
        for u in range(UNROLL):
            k = builder.add(builder.mul(loop.index, _I64(UNROLL)), _I64(u))
            b = rows.b(rows.b_values, k, _FLOATS)
            for r in range(ROWS):
                product = builder.fmul(builder.fmul(rows.a(rows.a_values, r, k), b), factors[r])
                sums[r][u % 2] = builder.add(sums[r][u % 2], builder.fptosi(product, _INTS))
        for row, values in zip(slots, sums, strict=True):
            for slot, value in zip(row, values, strict=True):
                builder.store(value, slot)
    return [[builder.load(slot) for slot in row] for row in slots]


def _step(builder: Any, rows: _Rows, k_step: Any, fraction_bits: Any, output_bits: Any, lowest: Any) -> Any:
    """Take one step of ROWS rows; the mask of the lanes not done."""
    fraction_bits = _splat(builder, builder.trunc(fraction_bits, _I32))
    lowest = _splat(builder, builder.trunc(lowest, _I32))
    dropped = builder.sub(_I64(52), output_bits)  # a sum has no more bits than a double keeps
    kept = _splat(builder, builder.shl(_I64(-1), dropped))

    largest = _largest_exponents(builder, rows, k_step)
    old = [builder.load(rows.c_address(r), align=4) for r in range(ROWS)]
    aligned = [_align(builder, largest[r], rows.scale(r), old[r], lowest, fraction_bits) for r in range(ROWS)]
    first = [
        builder.fptosi(builder.fmul(c_row, to_c), _INTS) for c_row, (_, _, to_c, _) in zip(old, aligned, strict=True)
    ]
    sums = _sum_products(builder, rows, k_step, [to_product for _, to_product, _, _ in aligned], first)

    mask = ir.Constant(_I64, 0)
    for r, (outside, _, _, back) in enumerate(aligned):
        even, odd = (builder.sitofp(total, _DOUBLES) for total in sums[r])
        exact = builder.bitcast(builder.fadd(even, odd), _LONGS)
        truncated = builder.bitcast(builder.and_(exact, kept), _DOUBLES)
        new = builder.fmul(builder.fptrunc(truncated, _FLOATS), back)
        builder.store(builder.select(outside, old[r], new), rows.c_address(r), align=4)
        bits = builder.zext(builder.bitcast(outside, ir.IntType(LANES)), _I64)
        mask = builder.or_(mask, builder.shl(bits, _I64(r * LANES)))
    return mask


def _step_lanes(
    _typing_context: Any, a: Any, b: Any, c: Any, m: Any, panel: Any, k: Any, lowest: Any, step: Any
) -> tuple[Any, Any]:
    """Take one step of rows m ... m + ROWS - 1 of c (rows, LANES); bit r * LANES + j of the result: lane not done."""
    signature = types.uint64(a, b, c, m, panel, k, lowest, step)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = dict(zip(("a", "b", "c", "m", "panel", "k", "lowest", "step"), signature.args, strict=True))
        values = dict(zip(kinds, arguments, strict=True))

        def member(name: str, attribute: str) -> tuple[Any, Any]:
            index = kinds[name].fields.index(attribute)
            return kinds[name][index], builder.extract_value(values[name], index)

        def array(kind: Any, value: Any) -> Any:
            return context.make_array(kind)(context, builder, value)

        def integer(attribute: str) -> Any:
            kind, value = member("step", attribute)
            return context.cast(builder, value, kind, types.int64)

        m, panel, k, lowest = (
            context.cast(builder, values[name], kinds[name], types.int64) for name in ("m", "panel", "k", "lowest")
        )
        a_values, a_exponents, a_scales = (array(*member("a", x)) for x in ("values", "exponents", "scales"))
        b_values, b_exponents = (array(*member("b", x)) for x in ("values", "exponents"))
        c = array(kinds["c"], values["c"])
        k_step = integer("k_step")
        length = builder.extract_value(a_values.shape, 1)
        steps = builder.udiv(length, k_step)
        rows = _Rows(
            builder,
            [x.data for x in (a_values, a_exponents, a_scales, b_values, b_exponents, c)],
            [
                builder.add(builder.mul(m, length), k),
                length,
                builder.add(builder.mul(m, steps), builder.udiv(k, k_step)),
                steps,
                builder.mul(builder.add(builder.mul(panel, length), k), _I64(LANES)),
                builder.mul(m, _I64(LANES)),
            ],
        )
        return _step(builder, rows, k_step, integer("fraction_bits"), integer("output_bits"), lowest)

    return signature, codegen


def _step_at(
    _typing_context: Any, a_values: Any, a_exponents: Any, a_scales: Any, b_values: Any, b_exponents: Any, c: Any,
    a_stride: Any, scale_stride: Any, k_step: Any, fraction_bits: Any, output_bits: Any, lowest: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """As `step_lanes`, by the addresses of what the step takes first; strides in elements."""
    signature = types.uint64(
        a_values, a_exponents, a_scales, b_values, b_exponents, c, a_stride, scale_stride, k_step, fraction_bits,
        output_bits, lowest,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *addresses, a_stride, scale_stride, k_step, fraction_bits, output_bits, lowest = (
            context.cast(builder, value, kind, types.int64)
            for value, kind in zip(arguments, signature.args, strict=True)
        )
        elements = (ir.FloatType(), _I32, _I32, ir.FloatType(), _I32, ir.FloatType())
        pointers = [
            builder.inttoptr(address, element.as_pointer())
            for address, element in zip(addresses, elements, strict=True)
        ]
        zero = _I64(0)
        rows = _Rows(builder, pointers, [zero, a_stride, zero, scale_stride, zero, zero])
        return _step(builder, rows, k_step, fraction_bits, output_bits, lowest)

    return signature, codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
step_lanes: Any = intrinsic(_step_lanes)
step_at: Any = intrinsic(_step_at)
