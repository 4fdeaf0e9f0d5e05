"""Direct convolution on a CPU."""
