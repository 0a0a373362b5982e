"""Tests of the floor: formats and device arithmetic."""
