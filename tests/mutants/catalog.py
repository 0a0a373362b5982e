"""Every kernel that is wrong on purpose, by name, and its clean twins.

`sm100.NAME` is importable as a kernel: `--kernel tests.mutants.catalog:sm100.zeros`. Faults of the algorithm live in
flash.py (twin: `sm100.clean`); faults of a compile-time number are FA4's emulation with another value (twin: fa4-sm100
itself). `gradients.NAME` are the backwards of flash_backward.py, each with a sound forward (twin: `gradients.clean`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fa4verify
from fa4verify.arithmetic.exp2 import POLY_EX2

from .flash import FAULTS, Flash
from .flash_backward import FAULTS as BACKWARD_FAULTS
from .flash_backward import FlashBackward

if TYPE_CHECKING:
    from fa4verify.vocabulary import Output

P3_ULP = 2.0**-27  # one ulp of 0x1.3be13ap-4
C0, C1, C2, C3 = POLY_EX2[3]


@dataclass(frozen=True)
class Retuned:
    """fa4-sm100 with other compile-time numbers than FA4's."""

    name: str
    about: str
    options: dict[str, Any]
    exp2_options: dict[str, Any]

    def forward(self, q: Any, k: Any, v: Any, **options: Any) -> Output:
        """Run the emulation with this mutant's numbers, whatever the case asks for."""
        return fa4verify.kernel("fa4-sm100").forward(q, k, v, **{**options, **self.options})

    def exp2(self, x: Any, **options: Any) -> Output:
        """Evaluate the exponential this mutant is compiled with."""
        return fa4verify.kernel("fa4-sm100").exp2(x, **{**options, **self.exp2_options})


def _polynomial(name: str, about: str, **options: Any) -> Retuned:
    return Retuned(name, about, options, options)


RETUNED = [
    _polynomial("degree-2", "the polynomial is FA4's degree 2", degree=2),
    _polynomial("p3-8-ulp", "p3 is 8 ulp too large", coefficients=(C0, C1, C2, C3 + 8 * P3_ULP)),
    _polynomial("p0-below-1", "p0 is 1 - 2^-24: masked scores become NaN", coefficients=(1 - 2**-24, C1, C2, C3)),
    Retuned("emulated-everywhere", "all 128 columns are emulated", {"emulated_columns": "all"}, {}),
    Retuned("tau-16", "the rescale threshold is 16", {"rescale_threshold": 16.0}, {}),
]


def attribute(name: str) -> str:
    """Return the name under which a mutant hangs on `sm100`."""
    return name.replace("-", "_").replace("^", "")


ABOUT = FAULTS | {mutant.name: mutant.about for mutant in RETUNED}
sm100 = SimpleNamespace(
    clean=Flash(),
    **{attribute(fault): Flash(fault) for fault in FAULTS},
    **{attribute(mutant.name): mutant for mutant in RETUNED},
)


ABOUT_BACKWARD = BACKWARD_FAULTS
gradients = SimpleNamespace(
    clean=FlashBackward(), **{attribute(fault): FlashBackward(fault) for fault in ABOUT_BACKWARD}
)


def kernel_name(mutant: str) -> str:
    """Return the import string of a mutant of the forward, or of its clean twin ("clean")."""
    return f"{__name__}:sm100.{attribute(mutant)}"


def backward_kernel_name(mutant: str) -> str:
    """Return the import string of a mutant of the backward, or of its clean twin ("clean")."""
    return f"{__name__}:gradients.{attribute(mutant)}"
