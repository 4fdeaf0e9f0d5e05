"""Facts about nodes, read off their definitions."""
