"""Grids, groups of threads and vector widths."""
