"""The operators that hold graphs or move values without computing: the reader handles them itself."""

CONTROL = frozenset({"If", "Loop", "Scan"})
