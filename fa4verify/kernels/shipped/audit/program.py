"""Which program an entry is: a digest of all of it but its names and such order as no result depends on.

Contract: a vertex for each statement that does more than compute a register (loads, stores, tensor cores, barriers,
branches, what is guarded), and for all that such a one is made of; an edge for each register that it reads (guard,
addresses, and accumulators in place included) to the statements whose writing may reach it. Literals, special
registers, and parameters by their rank, belong to its label. What does more than compute knows its block and the one
before it there; definitions that meet in one reader know their blocks. A block knows the condition it ends with, and
the blocks before and after it.

Equal digests: the same program, but for operands exchanged that have equal histories. Unlike digests: another sum,
another address or another compiler; which, they do not say. Where arithmetic stands in the text is not told.
"""

from __future__ import annotations

from itertools import pairwise
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
READ_IN_PLACE = ("wgmma.mma_async",)
# An operand is numbered with the place of its register in the statement that writes it; then come edges that are none.
_LANES = 1 << 12
_PLACE, _PREVIOUS, _LAST, _AFTER, _BEFORE = (at << 32 for at in range(1, 6))


def program_fact(entry: Entry, variables: Iterable[Variable] = ()) -> Fact:
    """Return the digest of an entry's program; `variables` are those outside of entries."""
    if entry.problems:
        return missing(f"a statement cannot be read: {entry.problems[0].text}")
    if given := [one.name for one in variables if one.space != "shared"]:
        return missing(f"the first value of variable {given[0]}")
    labels, edges = _graph(entry)
    wanted = [at for at, one in enumerate(entry.statements) if not is_arithmetic(one)]
    colours = refined(labels, edges, sorted(behind(wanted, edges)))
    return Fact(digest(colours, f"{entry.block} {[(one.space, one.align, one.size) for one in entry.variables]}"))


def _graph(entry: Entry) -> tuple[list[str], list[Edge]]:
    """Return labels and edges: statements first, then blocks."""
    statements = entry.statements
    paths = Paths(entry)
    definitions: dict[Register, dict[int, int]] = {}
    for at, statement in enumerate(statements):
        for lane, register in enumerate(written(statement)):
            definitions.setdefault(register, {})[at] = lane
    parameters = {one.name: f"parameter {at}" for at, one in enumerate(entry.parameters)}
    labels: list[str] = []
    edges: list[Edge] = []
    effects = [at for at, one in enumerate(statements) if not is_arithmetic(one)]
    placed = {*effects}
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
    edges += [(at, _PREVIOUS, one) for one, at in pairwise(effects) if paths.block(one) == paths.block(at)]
    for block, following in enumerate(paths.after):
        last = paths.ends[block] - 1
        if statements[last].opcode.startswith(LEAVING):
            edges.append((first + block, _LAST, last))
        for way, after in enumerate(following):
            if after >= 0:
                edges += [(first + block, _AFTER + way, first + after), (first + after, _BEFORE + way, first + block)]
    return labels, edges


def is_arithmetic(statement: Statement) -> bool:
    """Whether a statement does nothing but give its result, always."""
    return statement.guard is None and statement.opcode.split(".", 1)[0] in ARITHMETIC


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
