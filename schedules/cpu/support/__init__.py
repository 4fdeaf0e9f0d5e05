"""Support for CPU templates.

    rates     cycle rates of current processors, beyond what ``CpuTarget`` holds
    balance   the load of the busiest core
    kernels   the finished kernel

Imports ``ir`` only.
"""
