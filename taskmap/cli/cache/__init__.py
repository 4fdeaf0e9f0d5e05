"""`taskmap cache`: the tuning cache and the kernel store."""
