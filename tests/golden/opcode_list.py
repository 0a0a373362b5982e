"""PTX instructions that act on one lane, or exchange values inside a warp: operands, results, and which GPU has them.

Contract: every lane instruction that FA4's kernels contain on any architecture, and its close relatives, which a
release may bring. `sm` is the first architecture that has it; the recording of an H200 (sm_90) skips what is newer.
Operands and forms from the PTX ISA 8.8; `python -m tests.golden.record_opcodes --check` assembles them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Opcode:
    """One instruction: `results` and `operands` are kinds of opcode_inputs (or pred); `form` its text where unusual."""

    text: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    form: str = ""
    sm: int = 90
    extra: tuple[str, ...] = ()
    exchange: bool = False  # all lanes of the warp take part
    label: str = ""  # where one text has several operands or forms
    only: tuple[str, ...] = ()  # the families, where the usual ones do not suit

    @property
    def name(self) -> str:
        """Unique in OPCODES."""
        return self.text + (f" {self.label}" if self.label else "")

    @property
    def statement(self) -> str:
        """PTX with {d0}, {a0} ... for the registers."""
        if self.form:
            return self.form
        results = "|".join(f"{{d{i}}}" for i in range(len(self.results)))
        operands = ", ".join(f"{{a{i}}}" for i in range(len(self.operands)))
        return f"{self.text} {results}, {operands};"


def _many(texts: list[str], results: str, operands: str, **options: object) -> list[Opcode]:
    return [Opcode(text, tuple(results.split()), tuple(operands.split()), **options) for text in texts]  # type: ignore[arg-type]


FTZ = ("", ".ftz")
ROUNDINGS = (".rn", ".rz", ".rm", ".rp")
SIZES = (16, 32, 64)


def _f32() -> list[Opcode]:
    out = []
    for ftz in FTZ:
        for operation in ("add", "sub", "mul"):
            out += _many([f"{operation}{rn}{ftz}.f32" for rn in ("", *ROUNDINGS)], "f32", "f32 f32")
            out += _many([f"{operation}.rn{ftz}.sat.f32"], "f32", "f32 f32")
        out += _many([f"fma{rn}{ftz}.f32" for rn in ROUNDINGS], "f32", "f32 f32 f32")
        out += _many([f"fma.rn{ftz}.sat.f32"], "f32", "f32 f32 f32")
        for operation in ("min", "max"):
            out += _many(
                [f"{operation}{ftz}{nan}{xor}.f32" for nan, xor in product(("", ".NaN"), ("", ".xorsign.abs"))],
                "f32", "f32 f32",
            )  # fmt: skip
            out += _many(
                [f"{operation}{ftz}{nan}.f32" for nan in ("", ".NaN")], "f32", "f32 f32 f32", sm=100, label="3"
            )
        out += _many([f"{operation}{ftz}.f32" for operation in ("abs", "neg")], "f32", "f32", extra=("codes",))
        out += _many([f"div{rn}{ftz}.f32" for rn in ROUNDINGS], "f32", "f32 f32")
        out += _many([f"div.{how}{ftz}.f32" for how in ("full", "approx")], "f32", "f32 f32")
        for operation in ("rcp", "sqrt"):
            out += _many([f"{operation}{rn}{ftz}.f32" for rn in ROUNDINGS], "f32", "f32", extra=("codes",))
        for operation in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"):
            out += _many([f"{operation}.approx{ftz}.f32"], "f32", "f32", extra=("codes",))
        comparisons = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
        out += _many([f"setp.{c}{ftz}.f32" for c in comparisons], "pred", "f32 f32")
        out += _many([f"cvt{r}{ftz}.f32.f32" for r in (".rni", ".rzi", ".rmi", ".rpi")], "f32", "f32", extra=("codes",))
        out += _many([f"cvt{ftz}.sat.f32.f32"], "f32", "f32")
        for to, rounding in product(("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"), "nzmp"):
            out += _many([f"cvt.r{rounding}i{ftz}.{to}.f32"], to, "f32", extra=("codes",) if to == "s32" else ())
    out += _many(["tanh.approx.f32"], "f32", "f32", extra=("codes",))
    out += _many(["copysign.f32"], "f32", "f32 f32")
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    out += _many([f"testp.{test}.f32" for test in tests], "pred", "f32")
    out += _many(["selp.f32"], "f32", "f32 f32 pred")
    out += _many(["mov.f32"], "f32", "f32")
    out += _many(["slct.f32.s32"], "f32", "f32 f32 s32")
    out += _many(["setp.lt.and.f32", "setp.geu.or.f32", "setp.ne.xor.f32"], "pred", "f32 f32 pred")
    out += [Opcode("setp.le.f32", ("pred", "pred"), ("f32", "f32"), label="p|q")]
    return out


def _packed_f32() -> list[Opcode]:
    out = []
    for operation, count in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        for rounding, ftz in product((("",) if count == 2 else ()) + ROUNDINGS, FTZ):
            out.append(
                Opcode(
                    f"{operation}{rounding}{ftz}.f32x2", ("f32", "f32"), ("f32", "f32") * count, sm=100,
                    form="{{ .reg .b64 %t<4>; "
                    + " ".join(f"mov.b64 %t{i}, {{{{{{a{2 * i}}}, {{a{2 * i + 1}}}}}}};" for i in range(count))
                    + f" {operation}{rounding}{ftz}.f32x2 %t3, " + ", ".join(f"%t{i}" for i in range(count)) + ";"
                    + " mov.b64 {{{d0}, {d1}}}, %t3; }}",
                )
            )  # fmt: skip
    return out


def _half() -> list[Opcode]:
    """Arithmetic on fp16 and bf16, single and packed."""
    out = []
    for kind in ("f16", "f16x2", "bf16", "bf16x2"):
        ftzs = FTZ if kind.startswith("f") else ("",)
        for ftz in ftzs:
            for operation in ("add", "sub", "mul"):
                out += _many([f"{operation}{rn}{ftz}.{kind}" for rn in ("", ".rn")], kind, f"{kind} {kind}")
            out += _many([f"fma.rn{ftz}{relu}.{kind}" for relu in ("", ".relu")], kind, f"{kind} {kind} {kind}")
            for operation in ("min", "max"):
                out += _many([f"{operation}{ftz}{nan}.{kind}" for nan in ("", ".NaN")], kind, f"{kind} {kind}")
        out += _many([f"{operation}.{kind}" for operation in ("abs", "neg")], kind, kind)
    out += _many(["ex2.approx.f16", "tanh.approx.f16"], "f16", "f16")
    out += _many(["ex2.approx.ftz.bf16", "tanh.approx.bf16"], "bf16", "bf16")
    for kind, ftz in (("f16", ""), ("bf16", "")):
        out += _many([f"setp.{c}{ftz}.{kind}" for c in ("eq", "lt", "geu", "nan")], "pred", f"{kind} {kind}")
        for rounding in ROUNDINGS:
            out += _many([f"fma{rounding}.f32.{kind}"], "f32", f"{kind} {kind} f32", sm=100)
            out += _many([f"add{rounding}.f32.{kind}", f"sub{rounding}.f32.{kind}"], "f32", f"{kind} f32", sm=100)
    return out


def _holds(to: str, source: str) -> bool:
    """Say whether every value of the integer type `source` is one of `to`."""
    if to[0] == source[0]:
        return int(to[1:]) >= int(source[1:])
    return to[0] == "s" and int(to[1:]) > int(source[1:])


def _cvt() -> list[Opcode]:
    out = []
    integers = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
    for to, source in product(integers, integers):
        out += _many([f"cvt.{to}.{source}"], to, source)
        if not _holds(to, source):  # else ptxas calls .sat illegal
            out += _many([f"cvt.sat.{to}.{source}"], to, source)
    for source, rounding in product(integers, ROUNDINGS):
        out += _many([f"cvt{rounding}.f32.{source}"], "f32", source)
    for source, kind in product(("s32", "u32", "s16"), ("f16", "bf16")):
        out += _many([f"cvt.rn.{kind}.{source}"], kind, source)
    out += _many(["cvt.f32.f16", "cvt.ftz.f32.f16"], "f32", "f16")
    out += _many(["cvt.f32.bf16"], "f32", "bf16")
    for rounding, to in product("nz", ("s32", "u32", "s16")):
        out += _many([f"cvt.r{rounding}i.{to}.{kind}" for kind in ("f16",)], to, "f16")
    out += _many([f"cvt{rn}.f16.f32" for rn in ROUNDINGS], "f16", "f32", extra=("halves",))
    out += _many(["cvt.rn.ftz.f16.f32", "cvt.rn.sat.f16.f32"], "f16", "f32", extra=("halves",))
    out += _many([f"cvt{rn}.bf16.f32" for rn in ROUNDINGS], "bf16", "f32", extra=("codes",))
    for rn, how in product((".rn", ".rz"), ("", ".relu", ".satfinite", ".relu.satfinite")):
        if how:
            out += _many([f"cvt{rn}{how}.bf16.f32"], "bf16", "f32", extra=("codes",))
            out += _many([f"cvt{rn}{how}.f16.f32"], "f16", "f32", extra=("halves",))
        out += _many([f"cvt{rn}{how}.bf16x2.f32"], "bf16x2", "f32 f32", extra=("codes",))
        out += _many([f"cvt{rn}{how}.f16x2.f32"], "f16x2", "f32 f32", extra=("halves",))
    for relu in ("", ".relu"):
        for kind in ("e4m3x2", "e5m2x2"):
            out += _many([f"cvt.rn.satfinite{relu}.{kind}.f32"], kind, "f32 f32", extra=("codes",))
            out += _many([f"cvt.rn.satfinite{relu}.{kind}.f16x2"], kind, "f16x2")
            out += _many([f"cvt.rn{relu}.f16x2.{kind}"], "f16x2", kind)
    out += _many([f"cvt.{how}.tf32.f32" for how in ("rna", "rn", "rz", "rn.relu")], "b32", "f32", extra=("codes",))
    return out


def _integer() -> list[Opcode]:
    out = []
    for sign, size in product("su", SIZES):
        kind = f"{sign}{size}"
        two, divisor = f"{kind} {kind}", f"{kind} divisor_{kind}"
        out += _many(
            [f"{operation}.{kind}" for operation in ("add", "sub", "mul.lo", "mul.hi", "min", "max")], kind, two
        )
        out += _many([f"{operation}.{kind}" for operation in ("div", "rem")], kind, divisor)
        out += _many([f"mad.{half}.{kind}" for half in ("lo", "hi")], kind, f"{two} {kind}")
        out += _many([f"shr.{kind}"], kind, f"{kind} shift")
        out += _many([f"sad.{kind}"], kind, f"{two} {kind}")
        comparisons = ("eq", "ne", "lt", "le", "gt", "ge", *(("lo", "ls", "hi", "hs") if sign == "u" else ()))
        out += _many([f"setp.{c}.{kind}" for c in comparisons], "pred", two)
        out += _many([f"selp.{kind}"], kind, f"{two} pred")
        if size < 64:
            out += _many([f"mul.wide.{kind}"], f"{sign}{2 * size}", two)
            out += _many([f"mad.wide.{kind}"], f"{sign}{2 * size}", f"{two} {sign}{2 * size}")
        if size > 16:
            out += _many([f"bfe.{kind}"], kind, f"{kind} shift shift")
            out += _many([f"bfind.{kind}", f"bfind.shiftamt.{kind}"], "u32", kind)
        if sign == "s":
            out += _many([f"abs.{kind}", f"neg.{kind}"], kind, kind)
    out += _many(["add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32"], "s32", "s32 s32")
    out += _many(["mad.hi.sat.s32"], "s32", "s32 s32 s32")
    for kind in ("s16x2", "u16x2"):
        out += _many([f"{operation}.{kind}" for operation in ("add", "min", "max")], "b32", "b32 b32")
    out += _many(["min.relu.s16x2", "max.relu.s16x2"], "b32", "b32 b32")
    out += _many(["setp.lt.and.s32", "setp.ge.or.u32", "setp.ne.xor.b32"], "pred", "b32 b32 pred")
    out += [Opcode("setp.gt.s32", ("pred", "pred"), ("s32", "s32"), label="p|q")]
    signs = list(product("us", "us"))
    out += _many([f"dp4a.{a}32.{b}32" for a, b in signs], "b32", "b32 b32 b32")
    out += _many([f"dp2a.{half}.{a}32.{b}32" for half in ("lo", "hi") for a, b in signs], "b32", "b32 b32 b32")
    return out


def _bits() -> list[Opcode]:
    out = []
    for size in SIZES:
        kind = f"b{size}"
        out += _many([f"{operation}.{kind}" for operation in ("and", "or", "xor")], kind, f"{kind} {kind}")
        out += _many([f"{operation}.{kind}" for operation in ("not", "cnot", "mov")], kind, kind)
        out += _many([f"shl.{kind}", f"shr.{kind}"], kind, f"{kind} shift")
        out += _many([f"setp.{c}.{kind}" for c in ("eq", "ne")], "pred", f"{kind} {kind}")
        out += _many([f"selp.{kind}"], kind, f"{kind} {kind} pred")
        if size > 16:
            out += _many([f"{operation}.{kind}" for operation in ("popc", "clz")], "u32", kind)
            out += _many([f"brev.{kind}"], kind, kind)
            out += _many([f"bfi.{kind}"], kind, f"{kind} {kind} shift shift")
            out += _many([f"slct.{kind}.s32"], kind, f"{kind} {kind} s32")
    out += _many(["mov.u32", "mov.s32"], "b32", "b32")
    out += _many(["mov.u64", "mov.s64"], "b64", "b64")
    out += _many(["mov.u16", "mov.s16"], "b16", "b16")
    out += _many([f"{operation}.pred" for operation in ("and", "or", "xor")], "pred", "pred pred")
    out += _many([f"{operation}.pred" for operation in ("not", "mov")], "pred", "pred")
    for lut in (0x00, 0x01, 0x1B, 0x80, 0x96, 0xCA, 0xE8, 0xF8, 0xFE, 0xFF):
        form = f"lop3.b32 {{d0}}, {{a0}}, {{a1}}, {{a2}}, {lut:#x};"
        out.append(Opcode("lop3.b32", ("b32",), ("b32", "b32", "b32"), form, label=f"{lut:#x}"))
    out += _many([f"shf.{side}.{mode}.b32" for side in "lr" for mode in ("wrap", "clamp")], "b32", "b32 b32 shift")
    out += _many(
        [f"prmt.b32{mode}" for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")], "b32", "b32 b32 b32"
    )
    out += _many(["bmsk.clamp.b32", "bmsk.wrap.b32"], "b32", "shift shift")
    out += _many([f"szext.{mode}.{kind}" for mode in ("clamp", "wrap") for kind in ("s32", "u32")], "b32", "b32 shift")
    pack = (
        ("mov.b32 {d0}, {{{a0}, {a1}}};", "b32", "b16 b16"),
        ("mov.b64 {d0}, {{{a0}, {a1}}};", "b64", "b32 b32"),
        ("mov.b64 {d0}, {{{a0}, {a1}, {a2}, {a3}}};", "b64", "b16 b16 b16 b16"),
        ("mov.b32 {{{d0}, {d1}}}, {a0};", "b16 b16", "b32"),
        ("mov.b64 {{{d0}, {d1}}}, {a0};", "b32 b32", "b64"),
        ("mov.b64 {{{d0}, {d1}, {d2}, {d3}}}, {a0};", "b16 b16 b16 b16", "b64"),
        ("mov.b64 {{_, {d0}}}, {a0};", "b32", "b64"),
        ("mov.b64 {{{d0}, _}}, {a0};", "b32", "b64"),
    )
    for i, (form, results, operands) in enumerate(pack):
        out.append(Opcode(form.split()[0], tuple(results.split()), tuple(operands.split()), form, label=f"vector {i}"))
    return out


def _exchanges() -> list[Opcode]:
    """Let whole warps exchange; {m} is the mask of the lanes that take part, the others keep what they had."""
    out = []
    for mode in ("idx", "up", "down", "bfly"):
        text = f"shfl.sync.{mode}.b32"
        form = f"{text} {{d0}}|{{d1}}, {{a0}}, {{a1}}, {{a2}}, -1;"
        out.append(Opcode(text, ("b32", "pred"), ("b32", "lane", "clamp"), form, extra=("uniform",)))
    for mode in ("all", "any", "uni"):
        text = f"vote.sync.{mode}.pred"
        out.append(Opcode(text, ("pred",), ("pred",), f"@{{take}} {text} {{d0}}, {{a0}}, {{m}};"))
    text = "vote.sync.ballot.b32"
    out.append(Opcode(text, ("b32",), ("pred",), f"@{{take}} {text} {{d0}}, {{a0}}, {{m}};"))
    out.append(Opcode(text, ("b32",), ("pred",), f"@{{take}} {text} {{d0}}, !{{a0}}, {{m}};", label="not"))
    for size in (32, 64):
        text = f"match.any.sync.b{size}"
        out.append(Opcode(text, ("b32",), (f"b{size}",), f"@{{take}} {text} {{d0}}, {{a0}}, {{m}};"))
        text = f"match.all.sync.b{size}"
        out.append(Opcode(text, ("b32", "pred"), (f"b{size}",), f"@{{take}} {text} {{d0}}|{{d1}}, {{a0}}, {{m}};"))
    arithmetic = [f"redux.sync.{operation}.{kind}" for operation in ("add", "min", "max") for kind in ("u32", "s32")]
    for text in (*arithmetic, *(f"redux.sync.{operation}.b32" for operation in ("and", "or", "xor"))):
        out.append(Opcode(text, ("b32",), ("b32",), f"@{{take}} {text} {{d0}}, {{a0}}, {{m}};"))
    out.append(Opcode("elect.sync", ("b32", "pred"), ("b32",), "@{take} elect.sync {d0}|{d1}, {m};"))
    out.append(Opcode("activemask.b32", ("b32",), ("b32",), "@{take} activemask.b32 {d0};"))
    return [Opcode(**{**o.__dict__, "exchange": True}) for o in out]


OPCODES = [*_f32(), *_packed_f32(), *_half(), *_cvt(), *_integer(), *_bits(), *_exchanges()]
