"""CUDA C++ that kernels include: types, memory accesses, instructions. Holds no Python."""
