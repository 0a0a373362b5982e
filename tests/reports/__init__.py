"""Tests of room 5; `make` builds the Records."""
