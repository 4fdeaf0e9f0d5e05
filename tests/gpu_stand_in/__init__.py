"""A GPU for machines without one: a driver library that checks its callers (libcuda.c), the simulator behind it, and a
PyTorch that takes the CPU for a GPU. `python -m tests.gpu_stand_in.run MODULE ...` runs a module on it.
"""
