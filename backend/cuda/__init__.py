"""NVIDIA GPUs: CUDA C++ from tensor IR, the toolchain, launching."""
