"""The laboratory of FA4's software exponential: check a coefficient set on every float32, fit a better one, compare.

Contract: everything stands on the device arithmetic of `fa4verify.arithmetic`, bit for bit; no room of the verifier
imports the laboratory, only the command line does. docs/exp2.md is the guide.
"""
