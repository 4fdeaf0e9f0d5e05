"""CUDA C++ that kernels stand on: types, memory accesses, instructions."""
