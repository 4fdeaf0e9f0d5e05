"""Two helpers that no package owns."""
