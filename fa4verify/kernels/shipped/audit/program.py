"""Which program an entry is: a digest of all of it but its names and such order as no result depends on.

Contract: a vertex for each statement that matters to anybody outside of the thread's registers, or that such a one is
made of; an edge for each register that it reads (guard, addresses and accumulators in place included) to the statements
whose writing may reach it. Literals, special registers, and parameters by their rank, belong to its label. Where a
statement stands is told of all that is no arithmetic on registers, and of definitions that meet in one reader: its
block, which knows the condition it ends with, and the blocks before and after it. Blocks end at branches, labels, and
statements that order memory.

Equal digests: the same program, but for loads and stores exchanged between two barriers, and for operands exchanged
that have equal histories. Unlike digests: another sum, another address or another compiler; which, they do not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.colours import behind, digest, refined
from fa4verify.kernels.shipped.audit.facts import Fact, missing
from fa4verify.kernels.shipped.audit.paths import LEAVING, Paths
from fa4verify.kernels.shipped.audit.values import outputs, written
from fa4verify.ptx.operand import Address, Immediate, Negated, Pair, Register, Special, Symbol, Vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fa4verify.kernels.shipped.audit.colours import Edge
    from fa4verify.ptx.module import Entry, Statement, Variable
    from fa4verify.ptx.operand import Operand

# On registers alone, by the first part of the opcode: what they give depends on their operands only.
ARITHMETIC = frozenset(
    (
        *("abs", "add", "addc", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos"),
        *("cvt", "cvta", "div", "dp2a", "dp4a", "ex2", "fma", "fns", "lg2", "lop3", "mad", "mad24", "madc"),
        *("mapa", "max", "min", "mma", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "rem"),
        *("rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr", "sin", "slct", "sqrt", "sub", "subc"),
        *("szext", "tanh", "testp", "xor"),
    )
)
ORDERING = (
    *("bar.", "barrier.", "fence.", "membar.", "mbarrier.", "griddepcontrol", "clusterlaunchcontrol"),
    *("cp.async.wait", "cp.async.commit", "cp.async.bulk.wait", "cp.async.bulk.commit", "wgmma.fence", "wgmma.commit"),
    *("wgmma.wait", "tcgen05.fence", "tcgen05.commit", "tcgen05.wait", "tcgen05.alloc", "tcgen05.dealloc"),
)
READ_IN_PLACE = ("wgmma.mma_async",)
# An operand is numbered with the place of its register in the statement that writes it; then come edges that are none.
_LANES = 1 << 12
_PLACE, _LAST, _AFTER, _BEFORE = (at << 32 for at in (1, 2, 3, 4))


def program_fact(entry: Entry, variables: Iterable[Variable] = ()) -> Fact:
    """Return the digest of an entry's program; `variables` are those outside of entries."""
    if entry.problems:
        return missing(f"a statement cannot be read: {entry.problems[0].text}")
    if given := [one.name for one in variables if one.space != "shared"]:
        return missing(f"the first value of variable {given[0]}")
    labels, edges = _graph(entry)
    wanted = [at for at, one in enumerate(entry.statements) if not is_arithmetic(one)]
    colours = refined(labels, edges, sorted(behind(wanted, edges)))
    return Fact(digest(colours, str(entry.block)))


def _graph(entry: Entry) -> tuple[list[str], list[Edge]]:
    """Return labels and edges: statements first, then blocks."""
    statements = entry.statements
    paths = Paths(entry, {at for at, one in enumerate(statements) if one.opcode.startswith(ORDERING)})
    definitions: dict[Register, dict[int, int]] = {}
    for at, statement in enumerate(statements):
        for lane, register in enumerate(written(statement)):
            definitions.setdefault(register, {})[at] = lane
    parameters = {one.name: f"parameter {at}" for at, one in enumerate(entry.parameters)}
    labels: list[str] = []
    edges: list[Edge] = []
    placed = {at for at, one in enumerate(statements) if not is_arithmetic(one)}
    for at, statement in enumerate(statements):
        label, reads = _taken_apart(statement, parameters)
        labels.append(label)
        for position, register in enumerate(reads):
            defined = definitions.get(register, {})
            reaching = paths.reaching(at, register, defined) if len(defined) > 1 else tuple(defined)
            edges += [(at, position * _LANES + defined[one], one) for one in reaching]
            placed.update(reaching if len(reaching) > 1 else ())
    first = len(statements)
    labels += ["block"] * len(paths.starts)
    edges += [(at, _PLACE, first + paths.block(at)) for at in placed]
    for block, following in enumerate(paths.after):
        last = paths.ends[block] - 1
        if statements[last].opcode.startswith((*ORDERING, *LEAVING)):
            edges.append((first + block, _LAST, last))
        for way, after in enumerate(following):
            if after >= 0:
                edges += [(first + block, _AFTER + way, first + after), (first + after, _BEFORE + way, first + block)]
    return labels, edges


def is_arithmetic(statement: Statement) -> bool:
    """Whether a statement does nothing but give its result."""
    return statement.opcode.split(".", 1)[0] in ARITHMETIC


def _taken_apart(statement: Statement, parameters: Mapping[str, str]) -> tuple[str, list[Register]]:
    """Return a statement without names, and the registers that it reads, in order."""
    reads: list[Register] = []

    def shown(operand: Operand) -> str:
        match operand:
            case Register():
                reads.append(operand)
                return operand.kind
            case Negated(register):
                return f"!{shown(register)}"
            case Immediate(value, bits):
                return f"{value}:{bits}"
            case Vector(elements):
                return f"{{{','.join(map(shown, elements))}}}"
            case Pair(one, other):
                return f"{shown(one)}|{shown(other)}"
            case Address(base, offset, coordinates):
                return f"[{shown(base)}+{offset}{shown(coordinates) if coordinates else ''}]"
            case Special(name) | Symbol(name):
                return parameters.get(name, name)
        return "_"

    guard = f"@{shown(statement.guard)}" if statement.guard else ""
    if statement.target >= 0:
        return f"{guard} {statement.opcode}", reads
    parts = []
    for at, operand in enumerate(statement.operands):
        known = len(reads)
        parts.append(shown(operand))
        if at < outputs(statement) and not statement.opcode.startswith(READ_IN_PLACE):
            del reads[known:]
    return f"{guard} {statement.opcode} {', '.join(parts)}", reads
