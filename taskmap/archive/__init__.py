"""Archives: a compiled model in one file."""
