"""GPU kernels: on the CPU as far as they go there, on a device where there is one (marker `gpu`)."""
