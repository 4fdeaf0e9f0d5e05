"""Script: a Python function read into IR."""
