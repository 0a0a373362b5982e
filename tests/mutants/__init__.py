"""Kernels wrong on purpose: the gate must fail each and pass its clean twin."""
