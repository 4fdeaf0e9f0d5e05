"""Matrix products on a CPU."""
