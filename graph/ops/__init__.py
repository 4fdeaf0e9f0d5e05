"""Operators as compute definitions, one family a file, by PyTorch's semantics. Importers call them."""
