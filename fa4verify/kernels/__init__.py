"""Room 2: what is under test. Importing it loads no kernel."""

from fa4verify.kernels.call import run
from fa4verify.kernels.interface import ContractViolation, Kernel, UnknownKernel, Unsupported
from fa4verify.kernels.registry import availability, kernel, names

__all__ = [
    "ContractViolation",
    "Kernel",
    "UnknownKernel",
    "Unsupported",
    "availability",
    "kernel",
    "names",
    "run",
]
