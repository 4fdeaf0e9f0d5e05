"""PyTorch: FX graphs of ATen operators become graphs."""
