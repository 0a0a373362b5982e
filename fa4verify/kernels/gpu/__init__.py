"""Real kernels on a real GPU: FlashAttention-4, torch's own, attention in 16 bits, single exponentials.

Contract: each computes where its tensors are; `fa4verify.kernels.run` puts them on the device of the run (docs/gpu.md).
What needs CUDA says so with NoDevice on other tensors, which is SKIPPED; the others run on the CPU too, which is how
they are tested where there is no GPU.
"""
