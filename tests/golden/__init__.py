"""Recordings of real devices, the scripts that made them, and their replay."""
