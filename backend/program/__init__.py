"""A program: a launch sequence, its buffers and the memory they share."""
