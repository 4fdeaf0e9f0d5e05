"""Host C++ that kernels include in the simulator: what backend/cuda/device is on a GPU."""
