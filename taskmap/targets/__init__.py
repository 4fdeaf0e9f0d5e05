"""Targets: the CPU, a GPU and the simulated GPU behind one interface."""
