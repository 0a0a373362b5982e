"""CPU models of kernels, bit for bit."""
