"""The host CPU as a target of generated C: what it is (host) and how C is compiled for it (toolchain)."""
