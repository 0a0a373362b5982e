"""What needs a GPU: scripts for a machine that has one, and tests marked `gpu`."""
