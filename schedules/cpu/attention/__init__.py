"""Attention on a CPU: one pass over keys and values per block of queries."""
