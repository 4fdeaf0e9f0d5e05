"""The prelude of generated C: one file per family of functions."""
