"""The simulator: CUDA C++ built for the host and run there, with every access checked, or only run."""
