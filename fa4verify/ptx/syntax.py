"""PTX text to a module: entries, their parameters, variables, registers and statements, names resolved.

Contract: the whole text is read, statements that cannot be (a register declared twice, a number that is none) are
collected as problems; a text whose structure fails is a PtxError at once. What the machine lacks is not judged here.
Scopes: a block `{ ... }` of inline assembly has registers and labels of its own; a label is looked for in the scopes
around the branch, innermost first. Grammar: PTX ISA 8.8, "Syntax" and "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from fa4verify.ptx.errors import Problem, PtxError, Unsupported
from fa4verify.ptx.operand import (
    BITS,
    Address,
    Ignored,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from fa4verify.ptx.tokens import Source, Token, integer, tokenize

LINE_DIRECTIVES = (".loc", ".file", ".version", ".target", ".address_size")  # end with their line
SPACES = (".shared", ".local", ".global", ".const")
PERFORMANCE = (".maxntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".noreturn")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter: its space, alignment and size in bytes; a size of 0 is `[]`, given at launch."""

    name: str
    space: str
    align: int
    size: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction; `target` is the index of the statement a branch goes to."""

    line: int
    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | Negated | None = None
    scope: int = 0
    target: int = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel as written. `block` is `.reqntid`, None where the kernel does not fix it."""

    name: str
    parameters: tuple[Variable, ...]
    block: tuple[int, int, int] | None
    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A text, its target and its entries; `variables` are those outside of entries."""

    source: Source
    target: str
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]


def parse(text: str) -> Module:
    """Read a whole PTX text.

    Raises
    ------
    PtxError
        Where the text's structure cannot be followed. Problems of single statements are in `Entry.problems`.
    """
    return _Parser(Source.of(text)).module()


@dataclass(slots=True)
class _Body:
    """What a reader of an entry's body has gathered."""

    registers: list[tuple[int, dict[str, Register]]] = field(default_factory=list)  # open scopes, innermost last
    parents: dict[int, int] = field(default_factory=dict)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def open(self) -> None:
        scope = len(self.parents)
        self.parents[scope] = self.registers[-1][0] if self.registers else -1
        self.registers.append((scope, {}))

    def find(self, name: str) -> Register | None:
        for _, declared in reversed(self.registers):
            if name in declared:
                return declared[name]
        return None

    def place(self, scope: int, label: str) -> int | None:
        while scope >= 0:
            if (scope, label) in self.labels:
                return self.labels[scope, label]
            scope = self.parents[scope]
        return None


class _Parser:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.at = 0
        self.body = _Body()

    # Tokens

    @property
    def text(self) -> str:
        return self.tokens[self.at][1]

    def next(self) -> Token:
        token = self.tokens[self.at]
        self.at += token[0] != "end"
        return token

    def accept(self, text: str) -> bool:
        found = self.text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Unsupported(f"expected {text!r}, found {self.text or 'the end'!r}")

    def word(self) -> str:
        kind, text, _ = self.next()
        if kind != "word":
            raise Unsupported(f"expected a name, found {text or 'the end'!r}")
        return text

    def number(self) -> int:
        negative = self.accept("-")
        kind, text, _ = self.next()
        if kind != "number" or re.match("0[fFdD]", text):
            raise Unsupported(f"expected an integer, found {text or 'the end'!r}")
        return -integer(text) if negative else integer(text)

    def line(self) -> int:
        return self.source.line(self.tokens[self.at][2])

    def skip_line(self) -> None:
        line = self.line()
        while self.line() == line and self.tokens[self.at][0] != "end":
            self.at += 1

    def skip_statement(self) -> None:
        while self.tokens[self.at][0] != "end" and not self.accept(";"):
            self.at += 1

    # Module

    def module(self) -> Module:
        target, variables, entries = "", [], []
        start = self.at
        try:
            while self.tokens[self.at][0] != "end":
                start = self.at
                word = self.word()
                if word in (".visible", ".weak", ".common"):
                    continue
                if word == ".target":
                    target = self.word()
                if word in LINE_DIRECTIVES:
                    self.at = start
                    self.skip_line()
                elif word == ".entry":
                    entries.append(self.entry())
                elif word == ".section":
                    self.skip_block()
                elif word in SPACES:
                    variables.append(self.variable(word))
                elif word != ".extern":
                    raise Unsupported(f"{word} outside of an entry")
        except Unsupported as error:
            line = self.line()
            text = self.source.excerpt(self.tokens[start][2], self.tokens[self.at][2])
            raise PtxError((Problem(line, text, str(error)),)) from None
        return Module(self.source, target, tuple(variables), tuple(entries))

    def skip_block(self) -> None:
        while not self.accept("{"):
            self.next()
        while not self.accept("}"):
            if self.next()[0] == "end":
                raise Unsupported("a section without its end")

    def variable(self, space: str) -> Variable:
        align = self.number() if self.accept(".align") else 0
        if (kind := self.word()[1:]) not in BITS:
            raise Unsupported(f"no type .{kind}")
        name, size = self.word(), BITS[kind] // 8
        align = align or size
        if self.accept("["):
            size = 0 if self.accept("]") else size * self.number()
            if size:
                self.expect("]")
        if space != ".param":
            self.skip_statement()  # an initial value; a variable of .global or .const is an error where it is used
        return Variable(name, space[1:], align, size)

    def entry(self) -> Entry:
        name, parameters, block = self.word(), [], None
        if self.accept("(") and not self.accept(")"):
            parameters.append(self.parameter())
            while self.accept(","):
                parameters.append(self.parameter())
            self.expect(")")
        while not self.accept("{"):
            directive = self.word()
            if directive == ".reqntid":
                sizes = (*self.numbers(), 1, 1)
                block = (sizes[0], sizes[1], sizes[2])
            elif directive in PERFORMANCE:
                if self.tokens[self.at][0] == "number":
                    self.numbers()
            elif directive == ".reqnctapercluster":
                self.numbers()  # the launch says the cluster's size
            elif directive not in (".explicitcluster", ".blocksareclusters"):
                raise Unsupported(f"directive {directive} of an entry")
        self.body = _Body()
        self.body.open()
        self.statements()
        return Entry(
            name, tuple(parameters), block, tuple(self.body.variables), self.linked(), tuple(self.body.problems)
        )

    def numbers(self) -> tuple[int, ...]:
        found = [self.number()]
        while self.accept(","):
            found.append(self.number())
        return tuple(found)

    def parameter(self) -> Variable:
        self.expect(".param")
        return self.variable(".param")

    # Body

    def statements(self) -> None:
        body = self.body
        while body.registers:
            start = self.at
            kind, text, offset = self.next()
            if kind == "end":
                raise Unsupported("an entry without its end")
            if text == "{":
                body.open()
            elif text == "}":
                body.registers.pop()
            elif text in LINE_DIRECTIVES:
                self.at = start
                self.skip_line()
            elif kind == "word" and self.text == ":":
                self.at += 1
                self.label(text, offset)
            elif text != ";":
                self.at = start
                self.statement()

    def label(self, name: str, offset: int) -> None:
        key = (self.body.registers[-1][0], name)
        if key in self.body.labels:
            self.body.problems.append(Problem(self.source.line(offset), f"{name}:", "the label exists already"))
        self.body.labels[key] = len(self.body.statements)

    def statement(self) -> None:
        start = self.at
        try:
            if self.text == ".reg":
                self.registers()
            elif self.text in SPACES:
                self.body.variables.append(self.variable(self.word()))
            elif self.text == ".pragma":
                self.skip_statement()
            else:
                self.instruction()
        except Unsupported as error:
            self.skip_statement()
            offset = self.tokens[start][2]
            text = self.source.excerpt(offset, self.tokens[self.at - 1][2])
            self.body.problems.append(Problem(self.source.line(offset), text, str(error)))

    def registers(self) -> None:
        self.expect(".reg")
        kind = self.word()[1:]
        if kind not in BITS:
            raise Unsupported(f"no register type .{kind}")
        scope, declared = self.body.registers[-1]
        while True:
            name = self.word()
            names = [name]
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.number())]
                self.expect(">")
            if twice := [one for one in names if one in declared]:
                raise Unsupported(f"{twice[0]} is declared twice")
            declared.update((one, Register(one, kind, scope)) for one in names)
            if not self.accept(","):
                break
        self.expect(";")

    def instruction(self) -> None:
        offset = self.tokens[self.at][2]
        guard: Register | Negated | None = None
        if self.accept("@"):
            found = self.operand()
            if not isinstance(found, Register | Negated):
                raise Unsupported("a guard is a predicate register")
            guard = found
        opcode = self.word()
        operands = []
        if not self.accept(";"):
            operands.append(self.operand())
            while self.accept(","):
                operands.append(self.operand())
            self.expect(";")
        text = self.source.excerpt(offset, self.tokens[self.at - 1][2])
        scope = self.body.registers[-1][0]
        self.body.statements.append(Statement(self.source.line(offset), text, opcode, tuple(operands), guard, scope))

    def operand(self) -> Operand:
        first = self.single()
        return Pair(first, self.single()) if self.accept("|") else first

    def single(self) -> Operand:
        kind, text, _ = self.tokens[self.at]
        if kind == "word":
            self.at += 1
            return self.named(text)
        if text == "{":
            return self.vector()
        if text == "[":
            return self.address()
        if self.accept("!"):
            if isinstance(register := self.named(self.word()), Register):
                return Negated(register)
            raise Unsupported("only a predicate register can be negated")
        if kind == "number" and (literal := re.fullmatch("0([fFdD])([0-9a-fA-F]+)", text)):
            self.at += 1
            return Immediate(int(literal[2], 16), 32 if literal[1] in "fF" else 64)
        return Immediate(self.number())

    def named(self, name: str) -> Register | Special | Symbol | Ignored:
        if name == "_":
            return Ignored()
        if (register := self.body.find(name)) is not None:
            return register
        return Special(name) if name[0] == "%" else Symbol(name)

    def vector(self) -> Vector:
        self.expect("{")
        elements = [self.single()]
        while self.accept(","):
            elements.append(self.single())
        self.expect("}")
        return Vector(tuple(elements))

    def address(self) -> Address:
        self.expect("[")
        base = self.single()
        if not isinstance(base, Register | Symbol | Immediate):
            raise Unsupported("an address starts with a register, a variable or a number")
        offset = self.number() if self.accept("+") or self.text == "-" else 0
        coordinates = self.vector() if self.accept(",") else None
        self.expect("]")
        return Address(base, offset, coordinates)

    def linked(self) -> tuple[Statement, ...]:
        """Statements with the targets of branches filled in."""
        body, linked = self.body, list(self.body.statements)
        for index, statement in enumerate(linked):
            if not statement.opcode.startswith("bra"):
                continue
            name = (
                statement.operands[0].name if statement.operands and isinstance(statement.operands[0], Symbol) else ""
            )
            target = body.place(statement.scope, name)
            if target is None:
                body.problems.append(Problem(statement.line, statement.text, f"no label {name!r} here"))
            else:
                linked[index] = replace(statement, target=target)
        return tuple(linked)
