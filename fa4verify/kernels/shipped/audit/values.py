"""Who computes what from what: the scalar values of one entry, half by half.

Contract: a `Graph` has one `Node` for each scalar result of a statement. A packed operation (`.f32x2`) is two nodes,
the halves of a 64-bit register are two values, and copies (`mov`, packing and unpacking a pair) are looked through in
both directions. Where a register has several definitions, those that reach the reading statement on some path are its
origins (a loop, both sides of a branch); which path a thread takes is not followed. Memory is not followed either: what
a load returns starts a value. Nothing here knows attention, and nothing is looked up by a register's name or by the
place of a line.

Fails first where a statement writes more than its first operand: tests/kernels/shipped/audit/test_values.py.
Source: PTX ISA 8.8, "Instructions": which operand is the destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fa4verify.kernels.shipped.audit.paths import Paths
from fa4verify.ptx.operand import Address, Immediate, Negated, Pair, Register, Vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fa4verify.ptx.module import Entry, Statement
    from fa4verify.ptx.operand import Operand

Value = tuple[Register, int, int]  # a register, which half of it, and the statement that reads it
WITHOUT_RESULT = (
    *("st.", "red.", "bar.", "barrier.", "bra", "exit", "ret", "trap", "fence", "membar", "cp.", "discard", "prefetch"),
    *("mbarrier.init", "mbarrier.inval", "mbarrier.expect_tx", "mbarrier.complete_tx", "stmatrix", "applypriority"),
    *("tcgen05.st", "tcgen05.mma", "tcgen05.cp", "tcgen05.commit", "tcgen05.wait", "tcgen05.alloc", "tcgen05.dealloc"),
    *("tcgen05.relin", "tcgen05.fence", "wgmma.fence", "wgmma.commit", "wgmma.wait", "griddepcontrol", "setmaxnreg"),
    *("nanosleep", "clusterlaunchcontrol.try_cancel"),
)
ACCUMULATORS = ("tcgen05.ld", "wgmma.mma_async", "mma.sync")


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal operand: the 32 bits of a float, or an integer."""

    bits: int
    is_float: bool


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One scalar result: what computed it (`opcode` as written), from what, which element of the statement's result.

    `pair` tells a packed operation; its `opcode` ends in f32x2.
    """

    opcode: str
    operands: tuple[Value | Constant, ...]
    statement: Statement
    index: int
    lane: int
    pair: bool = False

    @property
    def line(self) -> int:
        """Line of the PTX text."""
        return self.statement.line

    def is_a(self, *stems: str) -> bool:
        """Whether the operation is one of these: `add`, `ex2` ..."""
        return self.opcode.split(".", 1)[0] in stems


class Graph:
    """Definitions and uses of every scalar value of an entry.

    Parameters
    ----------
    entry : Entry
        As parsed; statements that the machine could not run are no hindrance.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.nodes: list[Node] = []
        self._definitions: dict[tuple[Register, int], dict[int, Node | Value | Constant]] = {}
        self._origins: dict[Value, tuple[Node | Constant, ...]] = {}
        self._paths = Paths(entry)
        for index, statement in enumerate(entry.statements):
            self._enter(index, statement)

    # Building

    def _enter(self, index: int, statement: Statement) -> None:
        opcode, operands = statement.opcode, statement.operands
        if not operands or opcode.startswith(WITHOUT_RESULT):
            return
        if opcode.startswith("mov.") and self._copied(index, operands):
            return
        results = written(statement)
        taken = [one for one in _flat(operands[1:] if results else operands) if one not in results[1:]]
        if opcode.endswith("f32x2") and results:
            for half in (0, 1):
                of_half = tuple(_value(one, half, index) for one in taken if not isinstance(one, Address))
                self._node(Node(opcode, of_half, statement, index, half, pair=True), results[0], (half,))
            return
        if opcode == "selp.b64" and results:
            for half in (0, 1):
                chosen = tuple(_value(one, half if at < 2 else 0, index) for at, one in enumerate(taken))
                self._node(Node(opcode, chosen, statement, index, half), results[0], (half,))
            return
        values = read(taken, index)
        for lane, register in enumerate(results):
            self._node(Node(opcode, values, statement, index, lane), register, _halves(register))

    def _node(self, node: Node, register: Register, halves: tuple[int, ...]) -> None:
        self.nodes.append(node)
        for half in halves:
            self._define(node.index, register, half, node)

    def _define(self, index: int, register: Register, half: int, by: Node | Value | Constant) -> None:
        self._definitions.setdefault((register, half), {})[index] = by

    def _copied(self, index: int, operands: tuple[Operand, ...]) -> bool:
        """Enter a `mov` that only moves; False where it computes (a special register, 16-bit parts)."""
        into, source = operands
        if isinstance(source, Vector) and isinstance(into, Register) and into.bits == 64 and len(source.elements) == 2:
            for half, one in enumerate(source.elements):
                self._define(index, into, half, _value(one, 0, index))
            return True
        if isinstance(into, Vector) and isinstance(source, Register) and source.bits == 64 and len(into.elements) == 2:
            for half, one in enumerate(into.elements):
                if isinstance(one, Register):
                    self._define(index, one, 0, (source, half, index))
            return True
        if isinstance(into, Register) and isinstance(source, Register | Immediate):
            for half in _halves(into):
                self._define(index, into, half, _value(source, half, index))
            return True
        return False

    # Asking

    def origins(self, value: Value | Constant) -> tuple[Node | Constant, ...]:
        """Return what computes a value, copies looked through; several where several paths meet."""
        if isinstance(value, Constant):
            return (value,)
        if value not in self._origins:
            found: list[Node | Constant] = []
            waiting, seen = [value], {value}
            while waiting:
                for by in self._reaching(waiting.pop()):
                    if isinstance(by, Node | Constant):
                        if by not in found:
                            found.append(by)
                    elif by not in seen:
                        seen.add(by)
                        waiting.append(by)
            self._origins[value] = tuple(found)
        return self._origins[value]

    def _reaching(self, value: Value) -> list[Node | Value | Constant]:
        register, half, at = value
        defined = self._definitions.get((register, half), {})
        if len(defined) < 2:
            return list(defined.values())
        return [defined[index] for index in self._paths.reaching(at, register, defined)]

    def operand(self, node: Node, position: int) -> tuple[Node | Constant, ...]:
        """Return the origins of one operand."""
        return self.origins(node.operands[position]) if position < len(node.operands) else ()

    def only(self, node: Node, position: int) -> Node | Constant | None:
        """Return the origin of an operand where there is exactly one."""
        found = self.operand(node, position)
        return found[0] if len(found) == 1 else None

    def constant(self, node: Node, position: int) -> Constant | None:
        """Return the operand where it is one literal, written out or moved into a register before."""
        found = self.only(node, position)
        return found if isinstance(found, Constant) else None

    @cached_property
    def _users(self) -> dict[int, list[tuple[Node, int]]]:
        users: dict[int, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for position in range(len(node.operands)):
                for origin in self.operand(node, position):
                    users.setdefault(id(origin), []).append((node, position))
        return users

    def users(self, node: Node) -> list[tuple[Node, int]]:
        """Return the nodes that take this one, and as which operand."""
        return self._users.get(id(node), [])

    def takers(self, node: Node) -> list[tuple[Node, int]]:
        """Return the users of a node, choices (`selp`) looked through: what may take it in the end."""
        found: list[tuple[Node, int]] = []
        waiting, seen = [node], {node}
        while waiting:
            for user, position in self.users(waiting.pop()):
                if not user.is_a("selp") or position == 2:
                    found.append((user, position))
                elif user not in seen:
                    seen.add(user)
                    waiting.append(user)
        return found

    def behind(self, node: Node, through: Callable[[Node], bool]) -> set[Node]:
        """Return the nodes that a value is made of, walking back through those that `through` allows.

        What it does not allow is in the result, but nothing behind it.
        """
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one in found:
                continue
            found.add(one)
            if through(one):
                waiting += [
                    origin
                    for position in range(len(one.operands))
                    for origin in self.operand(one, position)
                    if isinstance(origin, Node)
                ]
        return found

    def address(self, register: Register, at: int) -> tuple[frozenset[int], int]:
        """Return an address that statement `at` reads as what it is relative to, and an integer.

        A literal is split off where it is added, or joined by `or` to bits that are known to be zero.
        """
        value: Value | Constant = (register, 0, at)
        offset = 0
        while True:
            found = self.origins(value)
            node = found[0] if len(found) == 1 else None
            if not isinstance(node, Node):
                return frozenset(id(one) for one in found) or frozenset({hash(value)}), offset
            literal = next((at for at in range(len(node.operands)) if self.constant(node, at) is not None), None)
            if literal is None or len(node.operands) != 2 or not node.is_a("add", "or"):
                return frozenset({id(node)}), offset
            bits = self.constant(node, literal)
            assert bits is not None
            value = node.operands[1 - literal]
            if node.is_a("or") and bits.bits & self.possible(value):
                return frozenset({id(node)}), offset
            offset += bits.bits

    def possible(self, value: Value | Constant, depth: int = 8) -> int:
        """Return the bits of a 32-bit integer that may be set."""
        every = 0xFFFFFFFF
        if isinstance(value, Constant):
            return value.bits & every
        found = self.origins(value)
        if not found or depth == 0:
            return every
        result = 0
        for node in found:
            if isinstance(node, Constant):
                result |= node.bits & every
                continue
            literal = self.constant(node, 1)
            if node.is_a("and"):
                result |= self.possible(node.operands[0], depth - 1) & self.possible(node.operands[1], depth - 1)
            elif node.is_a("or", "xor") or node.is_a("selp"):
                result |= self.possible(node.operands[0], depth - 1) | self.possible(node.operands[1], depth - 1)
            elif node.is_a("shl") and literal is not None:
                result |= self.possible(node.operands[0], depth - 1) << literal.bits & every
            else:
                return every
        return result


def outputs(statement: Statement) -> int:
    """Return how many of a statement's operands, from the first on, it writes."""
    opcode, operands = statement.opcode, statement.operands
    if not operands or opcode.startswith(WITHOUT_RESULT) or not isinstance(operands[0], Register | Pair | Vector):
        return 0
    return 2 if opcode.startswith("tcgen05.ld.red") and isinstance(operands[1], Register) else 1


def written(statement: Statement) -> tuple[Register, ...]:
    """Return the registers that a statement writes, in order."""
    return tuple(one for one in _flat(statement.operands[: outputs(statement)]) if isinstance(one, Register))


def read(operands: Iterable[Operand], at: int) -> tuple[Value | Constant, ...]:
    """Return the values that statement `at` reads by these operands, addresses left out."""
    return tuple(_value(one, half, at) for one in _flat(operands) for half in _halves(one))


def _flat(operands: Iterable[Operand]) -> list[Operand]:
    found: list[Operand] = []
    for one in operands:
        if isinstance(one, Vector):
            found += _flat(one.elements)
        elif isinstance(one, Pair):
            found += _flat((one.first, one.second))
        else:
            found.append(one)
    return found


def _halves(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, Register):
        return (0, 1) if operand.bits == 64 else (0,)
    return (0,) if isinstance(operand, Immediate | Negated) else ()


def _value(operand: Operand, half: int, at: int) -> Value | Constant:
    if isinstance(operand, Register):
        return operand, half, at
    if isinstance(operand, Negated):
        return operand.register, 0, at
    if isinstance(operand, Immediate):
        bits = operand.value if operand.bits != 64 else operand.value >> (32 * half) & 0xFFFFFFFF
        return Constant(bits, operand.bits != 0)
    return Constant(0, False)  # a symbol or special register in a packed operation: none is known
