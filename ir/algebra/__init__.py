"""The algebra: who does which work in which order (mappings), and where an element lies (layouts)."""
