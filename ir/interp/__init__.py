"""The interpreter: what a kernel means, executed."""
