"""Kernels under test: bits against recordings and an unlike model, features against float64."""
