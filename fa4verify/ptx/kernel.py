"""A kernel that has been read, and the door to running it.

Contract: `load` reads one entry of a text; a Kernel is its code and everything that a launch needs to know, and never
changes. Two kernels of the same text are equal in every array.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fa4verify.ptx import reading
from fa4verify.ptx.contraction import contract as contracted
from fa4verify.ptx.errors import Problem, PtxError
from fa4verify.ptx.lane import TRUE
from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operations import Column, Nop, Op
from fa4verify.ptx.program import columns
from fa4verify.ptx.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fa4verify.ptx.launch import Limits, Schedule, Statistics
    from fa4verify.ptx.program import Program


def load(text: str, *, entry: str | None = None, contract: bool = True) -> Kernel:
    """Read a kernel.

    Parameters
    ----------
    text : str
        PTX.
    entry : str, optional
        Name of the entry; needed where the text has several.
    contract : bool
        Merge products and sums into fused multiply-adds as ptxas does (`contraction.py`).

    Raises
    ------
    PtxError
        Lists every statement that the machine cannot run.
    """
    module = parse(text)
    names = [one.name for one in module.entries]
    if entry is None and len(names) != 1:
        raise PtxError((Problem(1, "", f"the text has {len(names)} entries, name one: {', '.join(names)}"),))
    if entry is not None and entry not in names:
        raise PtxError((Problem(1, "", f"no entry {entry}; the text has {', '.join(names)}"),))
    program = reading.read(module, module.entries[0 if entry is None else names.index(entry)])
    return Kernel(contracted(program) if contract else program)


def entries(text: str) -> tuple[str, ...]:
    """Names of the entries of a text."""
    return tuple(one.name for one in parse(text).entries)


class Kernel:
    """One entry, ready to run.

    Parameters
    ----------
    program : Program
        Its instructions, one a row of `code`.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {len(self.program.instructions)} rows, {self.threads} threads)"

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.program.name

    @property
    def target(self) -> str:
        """Architecture that the text is for, such as sm_90a."""
        return self.program.target

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA along x, y, z."""
        return self.program.block

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        x, y, z = self.program.block
        return x * y * z

    @property
    def parameters(self) -> tuple[tuple[str, int, int], ...]:
        """Name, offset and bytes of every parameter."""
        return tuple((one.name, one.offset, one.size) for one in self.program.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameter block."""
        return max((one.offset + one.size for one in self.program.parameters), default=0)

    @cached_property
    def code(self) -> npt.NDArray[np.int64]:
        """Rows of code, [rows, COLUMNS]; read-only."""
        code = self.program.code()
        code.setflags(write=False)
        return code

    @cached_property
    def pool(self) -> npt.NDArray[np.int32]:
        """Slots that rows list; read-only, never empty."""
        pool = np.array(self.program.pool or (-1,), np.int32)
        pool.setflags(write=False)
        return pool

    @cached_property
    def image(self) -> npt.NDArray[np.uint32]:
        """What a warp's slots hold at its start, [slots, 32]: constants and poison; read-only."""
        image = self.program.image()
        image.setflags(write=False)
        return image

    @property
    def specials(self) -> dict[str, int]:
        """Slot of every special register that the code reads: the launch fills those that `image` does not.

        `%shared_base` is ours: the CTA's rank in its cluster << RANK_SHIFT.
        """
        return dict(self.program.specials)

    @property
    def predicates(self) -> int:
        """Predicates a warp has; predicate 0 is false for ever."""
        return self.program.predicates

    @property
    def static_shared(self) -> int:
        """Bytes of static shared memory, from address 0; dynamic shared memory starts at SHARED_BASE."""
        return self.program.static_shared

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory a thread, from LOCAL_BASE."""
        return self.program.local_bytes

    def source_line(self, row: int) -> str:
        """Text of the PTX line that `row` comes from."""
        return self.program.source.text_of(self.program.instructions[row].line)

    def census(self) -> Counter[str]:
        """Count the opcodes of the code, after contraction; `(add.s64)` is a row that the text does not spell out."""
        return Counter(one.opcode for one in self.program.instructions)

    def without(self, row: int) -> Kernel:
        """Return the kernel with one instruction less.

        The row stays and does nothing, so that rows keep their numbers. A `try_wait` answers that the phase is over:
        otherwise the loop around it would never end.
        """
        instructions = list(self.program.instructions)
        dropped = instructions[row]
        if dropped.op == Op.MBARRIER_TRY_WAIT:
            opcode, named = LANES["mov.pred"].number, {Column.D: dropped.column(Column.D), Column.A: TRUE}
            nothing = replace(dropped, op=opcode, columns=columns(named), reads=())
        else:
            nothing = replace(
                dropped, op=Op.NOP, columns=columns({Column.F: Nop.DROPPED}), reads=(), writes=(), target=-1
            )
        instructions[row] = replace(nothing, opcode=f"(without {dropped.opcode})", immediate=0)
        return Kernel(replace(self.program, instructions=tuple(instructions)))

    def launch(
        self,
        *,
        grid: tuple[int, int, int],
        parameters: bytes,
        memory: Sequence[tuple[int, int]],
        cluster: int | tuple[int, int, int] = 1,
        shared_bytes: int = 0,
        schedule: Schedule | None = None,
        limits: Limits | None = None,
        workers: int = 1,
        constants: dict[str, int] | None = None,
    ) -> Statistics:
        """Run a grid; see `launch.launch`.

        Parameters
        ----------
        grid : tuple of int
            CTAs along x, y, z.
        parameters : bytes
            The parameter block, at least `parameter_bytes`.
        memory : sequence of (address, bytes)
            What the kernel may touch of this process' memory.
        cluster : int or tuple of int
            CTAs of a cluster.
        shared_bytes : int
            Dynamic shared memory.
        schedule, limits : Schedule, Limits, optional
            In which order warps run, and when to stop.
        workers : int
            Threads of the host.
        constants : dict, optional
            Special registers that the launch cannot know, such as `%nsmid`.

        Raises
        ------
        MachineFault
            Names line, CTA, warp, lane and reason.
        """
        from fa4verify.ptx.launch import launch

        options: dict[str, Any] = {"schedule": schedule, "limits": limits, "workers": workers, "constants": constants}
        return launch(
            self,
            grid=grid,
            parameters=parameters,
            memory=memory,
            cluster=cluster,
            shared_bytes=shared_bytes,
            **{name: value for name, value in options.items() if value is not None},
        )
