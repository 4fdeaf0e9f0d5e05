"""The operators that contain graphs or pass values on without computing: the reader handles them itself."""

CONTROL = frozenset({"If", "Loop", "Scan"})
