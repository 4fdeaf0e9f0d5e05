"""Fusion: which nodes become one kernel, in which order, and where each value lies."""
