"""Single kernels: built, called, simulated."""
