"""Matrix products on a GPU, by mma.sync or by CUDA cores."""
