"""Codes of matrix operands, as memory and registers hold them, made ready for `mma.accumulate_panel`, as LLVM vectors.

Contract: `decode_right` and `prepare_left` write what `mma.prepare_b` and `mma.prepare_a` would for the decoded values,
to addresses that the caller owns (no bound is checked, no alignment needed); dtypes are the `Code`s. Decoding is exact
and holds when the processor flushes subnormals to zero, but for bf16, whose subnormals are those of fp32.
Why not the functions of mma.py: a warp of wgmma brings 16 x N codes of B for 16 rows of A; element by element their
decoding cost as much as the multiplication (N = 128: 4 us), here a tenth.
Numbers: formats.py names the sources of the formats.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fa4verify.arithmetic.formats import BF16, E4M3, E5M2, FP16, Format
from fa4verify.arithmetic.mma_lanes import LANES, SPECIAL, ZERO

NO_NUMBER = -1000  # below every exponent of a number
_CHUNK = 8  # codes of a row of A taken at once; divides every k_step
_I16, _I32, _I64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


class Code(IntEnum):
    """Types of codes; numbered as the PTX engine does."""

    BF16 = 0
    F16 = 1
    E4M3 = 2
    E5M2 = 3


FORMAT_OF = {Code.BF16: BF16, Code.F16: FP16, Code.E4M3: E4M3, Code.E5M2: E5M2}


class _Vectors:
    """Vectors of a number of lanes, and what is done with them."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.ints = ir.VectorType(_I32, lanes)
        self.floats = ir.VectorType(_FLOAT, lanes)
        self.lanes = lanes

    def ints_of(self, value: int) -> Any:
        return ir.Constant(self.ints, [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, _I32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.ints, [0] * self.lanes))

    def load(self, address: Any, element: Any, lanes: int | None = None) -> Any:
        kind = ir.VectorType(element, lanes or self.lanes)
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=1)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=1)

    def larger(self, x: Any, y: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed(">", x, y), x, y)

    def decode(self, codes: Any, fmt: Format) -> Any:
        """Values, as floats, of codes in the low bits of 32-bit lanes; higher bits are zero."""
        builder = self.builder
        fraction = fmt.precision - 1
        magnitude = builder.and_(codes, self.ints_of((1 << (fmt.width - 1)) - 1))
        sign = builder.shl(builder.and_(codes, self.ints_of(1 << (fmt.width - 1))), self.ints_of(32 - fmt.width))
        wide = builder.shl(magnitude, self.ints_of(23 - fraction))
        if fmt.emin == -126:  # bf16: the upper half of an fp32 number
            return builder.bitcast(builder.or_(wide, sign), self.floats)
        normal = builder.add(wide, self.ints_of((fmt.emin + 126) << 23))
        steps = builder.sitofp(magnitude, self.floats)  # of a subnormal: its value in units of the smallest
        unit = ir.Constant(self.floats, [fmt.min_subnormal] * self.lanes)
        subnormal = builder.bitcast(builder.fmul(steps, unit), self.ints)
        is_subnormal = builder.icmp_signed("<", magnitude, self.ints_of(1 << fraction))
        bits = builder.select(is_subnormal, subnormal, normal)
        top = (1 << (fmt.width - 1)) - 1
        first_special = top + 1 - (1 << fraction) if fmt.has_infinity else top
        special = builder.icmp_signed(">=", magnitude, self.ints_of(first_special))
        bits = builder.select(special, builder.or_(wide, self.ints_of(255 << 23)), bits)
        return builder.bitcast(builder.or_(bits, sign), self.floats)

    def exponents(self, values: Any, fmt: Format) -> Any:
        """Unnormalised exponents, ZERO, SPECIAL: what `mma` holds of an operand."""
        builder = self.builder
        bits = builder.and_(builder.bitcast(values, self.ints), self.ints_of(0x7FFFFFFF))
        field = builder.lshr(bits, self.ints_of(23))
        exponent = self.larger(builder.sub(field, self.ints_of(127)), self.ints_of(fmt.emin))
        special = builder.icmp_signed("==", field, self.ints_of(255))
        exponent = builder.select(special, self.ints_of(SPECIAL), exponent)
        return builder.select(builder.icmp_signed("==", bits, self.ints_of(0)), self.ints_of(ZERO), exponent)

    def numbers(self, exponents: Any) -> Any:
        """Exponents, NO_NUMBER in place of SPECIAL."""
        special = self.builder.icmp_signed("==", exponents, self.ints_of(SPECIAL))
        return self.builder.select(special, self.ints_of(NO_NUMBER), exponents)

    def largest(self, values: Any) -> Any:
        """Largest element."""
        while values.type.count > 1:
            half = values.type.count // 2
            low, high = (
                self.builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(_I32, half), list(part)))
                for part in (range(half), range(half, 2 * half))
            )
            values = self.larger(low, high)
        return self.builder.extract_element(values, _I32(0))


def _offset(builder: Any, address: Any, count: Any, size: int) -> Any:
    return builder.add(address, builder.mul(count, _I64(size)))


def _integers(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    return [
        context.cast(builder, value, kind, types.int64) for value, kind in zip(arguments, signature.args, strict=True)
    ]


def _right_rows(builder: Any, words: Any, values: Any, exponents: Any, rows: Any, transposed: Any, fmt: Format) -> Any:
    """Decode rows of LANES operands; the largest exponent of a number among them."""
    lanes = _Vectors(builder, LANES)
    parts = 32 // fmt.width
    element = ir.IntType(fmt.width)
    largest = cgutils.alloca_once(builder, lanes.ints)  # type: ignore[no-untyped-call]
    builder.store(lanes.ints_of(NO_NUMBER), largest)

    def keep(codes: Any, row: Any) -> None:
        decoded = lanes.decode(codes, fmt)
        exponent = lanes.exponents(decoded, fmt)
        lanes.store(decoded, _offset(builder, values, row, 4 * LANES))
        lanes.store(exponent, _offset(builder, exponents, row, 4 * LANES))
        builder.store(lanes.larger(builder.load(largest), lanes.numbers(exponent)), largest)

    with builder.if_else(builder.icmp_signed("!=", transposed, _I64(0))) as (along_n, along_k):
        with along_n, cgutils.for_range(builder, rows) as loop:
            codes = lanes.load(_offset(builder, words, loop.index, fmt.width // 8 * LANES), element)
            keep(builder.zext(codes, lanes.ints), loop.index)
        with along_k, cgutils.for_range(builder, builder.udiv(rows, _I64(parts))) as loop:
            word = lanes.load(_offset(builder, words, loop.index, 4 * LANES), _I32)
            for part in range(parts):
                codes = builder.lshr(word, lanes.ints_of(part * fmt.width))
                codes = builder.and_(codes, lanes.ints_of((1 << fmt.width) - 1))
                keep(codes, builder.add(builder.mul(loop.index, _I64(parts)), _I64(part)))
    return lanes.largest(builder.load(largest))


def _for_each_code(builder: Any, dtype: Any, body: Any) -> None:
    """Emit `body(format)` for every Code behind a test of `dtype`."""
    for code, fmt in FORMAT_OF.items():
        with builder.if_then(builder.icmp_signed("==", dtype, _I64(int(code)))):
            body(fmt)


def _decode_right(
    _typing_context: Any, words: Any, values: Any, exponents: Any, rows: Any, transposed: Any, dtype: Any
) -> tuple[Any, Any]:
    """Decode `rows` rows (k) of one panel; returns the largest exponent of a number, at least NO_NUMBER.

    words: address. transposed: rows of LANES codes, one a k. Else rows of LANES words, each with the codes of 2 (16
    bits) or 4 (8 bits) successive k, the first in the low bits. values, exponents: addresses of (rows, LANES).
    """
    signature = types.int64(words, values, exponents, rows, transposed, dtype)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, values, exponents, rows, transposed, dtype = _integers(context, builder, signature, arguments)
        answer = cgutils.alloca_once_value(builder, _I64(NO_NUMBER))  # type: ignore[no-untyped-call]

        def body(fmt: Format) -> None:
            largest = _right_rows(builder, words, values, exponents, rows, transposed, fmt)
            builder.store(builder.sext(largest, _I64), answer)

        _for_each_code(builder, dtype, body)
        return builder.load(answer)

    return signature, codegen


def _scale(builder: Any, top: Any) -> Any:
    """Scale of a row and step from its largest exponent; mma.prepare_a says why 126."""
    one_more = builder.add(top, _I32(1))
    capped = builder.select(builder.icmp_signed("<", one_more, _I32(126)), one_more, _I32(126))
    return builder.select(builder.icmp_signed(">", top, _I32(NO_NUMBER)), capped, _I32(0))


def _left_step(builder: Any, codes: Any, source: Any, values: Any, exponents: Any, k_step: Any, fmt: Format) -> Any:
    """Decode and scale k_step operands of a row; returns the scale."""
    lanes = _Vectors(builder, _CHUNK)
    chunks = builder.udiv(k_step, _I64(_CHUNK))
    largest = cgutils.alloca_once(builder, lanes.ints)  # type: ignore[no-untyped-call]
    builder.store(lanes.ints_of(NO_NUMBER), largest)
    with cgutils.for_range(builder, chunks) as loop:
        code = lanes.load(_offset(builder, codes, loop.index, fmt.width // 8 * _CHUNK), ir.IntType(fmt.width))
        decoded = lanes.decode(builder.zext(code, lanes.ints), fmt)
        exponent = lanes.exponents(decoded, fmt)
        lanes.store(decoded, _offset(builder, source, loop.index, 4 * _CHUNK))
        lanes.store(exponent, _offset(builder, exponents, loop.index, 4 * _CHUNK))
        builder.store(lanes.larger(builder.load(largest), lanes.numbers(exponent)), largest)
    scale = _scale(builder, lanes.largest(builder.load(largest)))
    factor = builder.bitcast(builder.shl(builder.sub(_I32(127), scale), _I32(23)), _FLOAT)
    with cgutils.for_range(builder, chunks) as loop:
        at = [_offset(builder, base, loop.index, 4 * _CHUNK) for base in (source, values, exponents)]
        lanes.store(builder.fmul(lanes.load(at[0], _FLOAT), lanes.splat(factor)), at[1])
        lanes.store(builder.sub(lanes.load(at[2], _I32), lanes.splat(scale)), at[2])
    return scale


def _prepare_left(
    _typing_context: Any, codes: Any, source: Any, values: Any, exponents: Any, scales: Any, steps: Any, k_step: Any,
    dtype: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Decode and scale `steps` times k_step codes that follow each other, row by row: all rows of A at once.

    codes, source, values, exponents: addresses of (M, K); scales: address of (M, K // k_step); steps: M * K // k_step.
    """
    signature = types.void(codes, source, values, exponents, scales, steps, k_step, dtype)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, source, values, exponents, scales, steps, k_step, dtype = _integers(
            context, builder, signature, arguments
        )

        def body(fmt: Format) -> None:
            with cgutils.for_range(builder, steps) as loop:
                first = builder.mul(loop.index, k_step)
                code = _offset(builder, codes, first, fmt.width // 8)
                a, b, c = (_offset(builder, base, first, 4) for base in (source, values, exponents))
                scale = _left_step(builder, code, a, b, c, k_step, fmt)
                at = _offset(builder, scales, loop.index, 4)
                builder.store(scale, builder.inttoptr(at, _I32.as_pointer()), align=1)

        _for_each_code(builder, dtype, body)
        return context.get_dummy_value()

    return signature, codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
decode_right: Any = intrinsic(_decode_right)
prepare_left: Any = intrinsic(_prepare_left)
