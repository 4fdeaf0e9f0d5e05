"""Helpers that no package owns: atomic writes, lazy imports, numbers in words."""
