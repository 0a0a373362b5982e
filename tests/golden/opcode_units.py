"""Short PTX sequences that settle what single lane instructions cannot: contraction, atomics, matrices, tensor cores.

Contract: as opcode_list.OPCODES, and run by the same kernel; each thread's last operand lies at [%base], which is where
atomics and bulk reductions work, and a block is one warpgroup of 128 threads with `cell`, SHARED bytes of dynamic
shared memory (opcode_program). The kernel's own registers %thread and %lane hold the thread's index in the block and
in its warp.
Loads that follow an atomic or a bulk reduction acquire, since a plain one may find what was in the L1 cache before.
"""

from __future__ import annotations

from itertools import product

from .opcode_list import Opcode

CELL = "{{ .reg .b32 %s, %t, %u; .reg .b64 %q; .reg .pred %first; "
MINE = "mov.u32 %s, cell; mad.lo.s32 %t, %thread, 4, %s; "


def _contraction() -> list[Opcode]:
    """Ask which pairs of mul and add the assembler fuses."""
    out = []
    pairs = {
        "mul add": "mul.f32 %t, {a0}, {a1}; add.f32 {d0}, %t, {a2};",
        "mul add swapped": "mul.f32 %t, {a0}, {a1}; add.f32 {d0}, {a2}, %t;",
        "mul sub": "mul.f32 %t, {a0}, {a1}; sub.f32 {d0}, %t, {a2};",
        "mul sub swapped": "mul.f32 %t, {a0}, {a1}; sub.f32 {d0}, {a2}, %t;",
        "mul.rn add": "mul.rn.f32 %t, {a0}, {a1}; add.f32 {d0}, %t, {a2};",
        "mul add.rn": "mul.f32 %t, {a0}, {a1}; add.rn.f32 {d0}, %t, {a2};",
        "mul neg add": "mul.f32 %t, {a0}, {a1}; neg.f32 %t, %t; add.f32 {d0}, %t, {a2};",
        "mul.ftz add.ftz": "mul.ftz.f32 %t, {a0}, {a1}; add.ftz.f32 {d0}, %t, {a2};",
    }
    for label, text in pairs.items():
        form = "{{ .reg .b32 %t; " + text + " }}"
        out.append(Opcode("contraction", ("f32",), ("f32", "f32", "f32"), form, label=label))
    twice = {
        "mul add add": "mul.f32 %t, {a0}, {a1}; add.f32 {d0}, %t, {a2}; add.f32 {d1}, %t, {a0};",
        "mul add and kept": "mul.f32 {d1}, {a0}, {a1}; add.f32 {d0}, {d1}, {a2};",
        "mul mul add": "mul.f32 %t, {a0}, {a1}; mul.f32 {d1}, {a1}, {a2}; add.f32 {d0}, %t, {d1}; mov.b32 {d1}, {d0};",
        "mul square add": "mul.f32 %t, {a0}, {a1}; add.f32 {d0}, %t, %t; mov.b32 {d1}, {d0};",
    }
    for label, text in twice.items():
        form = "{{ .reg .b32 %t; " + text + " }}"
        out.append(Opcode("contraction", ("f32", "f32"), ("f32", "f32", "f32"), form, label=label))
    return out


ATOMICS = {
    "add.f32": "f32", "add.u32": "u32", "add.s32": "s32", "add.u64": "u64", "min.s32": "s32", "max.s32": "s32",
    "min.u32": "u32", "max.u32": "u32", "and.b32": "b32", "or.b32": "b32", "xor.b32": "b32", "exch.b32": "b32",
    "exch.b64": "b64", "inc.u32": "u32", "dec.u32": "u32", "add.noftz.f16x2": "f16x2", "add.noftz.bf16x2": "bf16x2",
    "min.s64": "s64", "max.u64": "u64",
}  # fmt: skip


def _atomics() -> list[Opcode]:
    out = []
    for operation, kind in ATOMICS.items():
        size = 64 if kind.endswith("64") else 32
        work = f"atom.global.{operation} {{d0}}, [%base], {{a0}}; ld.global.acquire.gpu.b{size} {{d1}}, [%base];"
        out.append(Opcode(f"atom.global.{operation}", (kind, kind), (kind, kind), work))
        where = "mov.u32 %s, cell; mad.lo.s32 %t, %thread, 8, %s; "
        work = f"st.shared.b{size} [%t], {{a1}}; atom.shared.{operation} {{d0}}, [%t], {{a0}}; "
        work = CELL + where + work + f"ld.shared.b{size} {{d1}}, [%t]; }}}}"
        out.append(Opcode(f"atom.shared.{operation}", (kind, kind), (kind, kind), work))
        if not operation.startswith("exch"):
            work = f"red.global.{operation} [%base], {{a0}}; ld.global.acquire.gpu.b{size} {{d0}}, [%base];"
            out.append(Opcode(f"red.global.{operation}", (kind,), (kind, kind), work))
    for size in (32, 64):
        kind = f"b{size}"
        work = f"atom.global.cas.{kind} {{d0}}, [%base], {{a0}}, {{a1}}; ld.global.acquire.gpu.{kind} {{d1}}, [%base];"
        out.append(Opcode(f"atom.global.cas.{kind}", (kind, kind), (kind, kind, kind), work))
    return out


def _bulk() -> list[Opcode]:
    out = []
    kinds = {
        "add.f32": "f32",
        "add.noftz.bf16": "bf16x2",
        "add.noftz.f16": "f16x2",
        "add.u32": "u32",
        "min.s32": "s32",
        "max.s32": "s32",
    }
    for operation, kind in kinds.items():
        text = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}"
        form = CELL + MINE + "st.shared.b32 [%t], {a0}; fence.proxy.async.shared::cta; bar.sync 0; "
        form += f"setp.ne.b32 %first, %thread, 0; @%first bra after; {text} [%base], [%s], 512; "
        form += "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; after: bar.sync 0; "
        out.append(Opcode(text, (kind,), (kind, kind), form + "ld.global.acquire.gpu.b32 {d0}, [%base]; }}"))
    return out


def _matrices() -> list[Opcode]:
    out = []
    for count, trans in product((1, 2, 4), ("", ".trans")):
        registers = "{{" + ", ".join(f"{{d{i}}}" for i in range(count)) + "}}"
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        form = CELL + MINE + "st.shared.b32 [%t], {a0}; bar.sync 0; and.b32 %u, {a1}, 31; mad.lo.s32 %t, %u, 16, %s; "
        out.append(
            Opcode(text, ("b32",) * count, ("b32", "b32"), form + f"{text} {registers}, [%t]; }}}}", only=("random",))
        )
        registers = "{{" + ", ".join(f"{{a{i}}}" for i in range(count)) + "}}"
        text = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        form = CELL + "mov.u32 %s, cell; mad.lo.s32 %t, %thread, 16, %s; "
        form += "mov.b32 %u, 0; st.shared.v4.b32 [%t], {{%u, %u, %u, %u}}; "
        form += "xor.b32 %u, %thread, 13; mad.lo.s32 %u, %u, 16, %s; bar.sync 0; "
        form += (
            f"{text} [%u], {registers}; bar.sync 0; ld.shared.v4.b32 {{{{{{d0}}, {{d1}}, {{d2}}, {{d3}}}}}}, [%t]; }}}}"
        )
        out.append(Opcode(text, ("b32",) * 4, ("b32",) * count, form, only=("random",)))
    return out


def _tensor_cores() -> list[Opcode]:
    """Dot products with few special values among ordinary ones, so that not every one of them is a NaN."""
    out = []
    d = "{{" + ", ".join(f"{{d{i}}}" for i in range(4)) + "}}"
    a = "{{" + ", ".join(f"{{a{i}}}" for i in range(4)) + "}}"
    for kind in ("bf16", "f16"):
        sparse = f"sparse_{kind}x2"
        text = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
        form = f"{text} {d}, {a}, {{{{{{a4}}, {{a5}}}}}}, {{{{{{a6}}, {{a7}}, {{a8}}, {{a9}}}}}};"
        operands = (sparse,) * 6 + ("sparse_f32",) * 4
        out.append(Opcode(text, ("f32",) * 4, operands, form, only=("random", "moderate")))
    # B: two core matrices of 8 columns x 16 bytes along K, 128 bytes apart; both offsets of the descriptor say so
    for kind, depth in (("bf16", 16), ("f16", 16), ("e4m3", 32), ("e5m2", 32)):
        sparse = f"sparse_{kind}x{depth // 8}"
        text = f"wgmma.mma_async.sync.aligned.m64n8k{depth}.f32.{kind}.{kind}"
        form = CELL + MINE + "st.shared.b32 [%t], {a4}; fence.proxy.async.shared::cta; bar.sync 0; "
        form += "shr.u32 %u, %s, 4; or.b32 %u, %u, 0x80000; mov.b32 %t, 8; mov.b64 %q, {{%u, %t}}; "
        form += "setp.eq.b32 %first, 0, 0; "
        form += " ".join(f"mov.b32 {{d{i}}}, {{a{5 + i}}};" for i in range(4))
        form += f" wgmma.fence.sync.aligned; {text} {d}, {a}, %q, %first, 1, 1{', 0' if depth == 16 else ''}; "
        form += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }}"
        operands = (sparse,) * 5 + ("sparse_f32",) * 4
        out.append(Opcode(text, ("f32",) * 4, operands, form, only=("random", "moderate")))
    return out


UNITS = {
    "contraction": _contraction(),
    "atomics": _atomics(),
    "bulk": _bulk(),
    "matrices": _matrices(),
    "tensor_cores": _tensor_cores(),
}
