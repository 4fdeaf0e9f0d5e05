"""Host C++ that kernels include in the simulator: the counterpart of backend/cuda/device. Holds no Python."""
