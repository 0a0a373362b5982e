"""Room 2: what is under test. Importing it loads no kernel."""

from fa4verify.kernels.audited import audit
from fa4verify.kernels.call import run
from fa4verify.kernels.interface import ContractViolation, Kernel, NoDevice, UnknownKernel, Unsupported
from fa4verify.kernels.registry import (
    availability,
    compile_ahead,
    computes_where_its_tensors_are,
    kernel,
    names,
    needs_gpu,
)
from fa4verify.kernels.repeated import repeat, shuffled, twin_of

__all__ = [
    "ContractViolation",
    "Kernel",
    "NoDevice",
    "UnknownKernel",
    "Unsupported",
    "audit",
    "availability",
    "compile_ahead",
    "computes_where_its_tensors_are",
    "kernel",
    "names",
    "needs_gpu",
    "repeat",
    "run",
    "shuffled",
    "twin_of",
]
