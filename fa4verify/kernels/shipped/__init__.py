"""FlashAttention-4's own kernels, run on a CPU: its Python interface, host code and PTX as shipped.

Only the CUDA runtime (runtime.py) and the streaming multiprocessor (`fa4verify.ptx`) are ours. docs/shipped.md says
what is executed, what is assumed, and which private interfaces of FA4 and the CuTe DSL this rests on.
"""
