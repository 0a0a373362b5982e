"""Tests of room 1: what to verify."""
