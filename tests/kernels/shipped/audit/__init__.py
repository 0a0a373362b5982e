"""Tests of FA4's own kernels, executed."""
