"""C++ of the host that kernels stand on in the simulator: what backend/cuda/device is on a GPU."""
