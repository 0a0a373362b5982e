"""Tests mirror the package; tests/README.md says where a new one goes."""
