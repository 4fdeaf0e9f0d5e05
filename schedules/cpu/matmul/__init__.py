"""Matrix products on a CPU.

    microkernel   the register-blocked product of a tile, shared by all templates of the CPU
    dot_tile      the same on dot products of neighbours, for bf16
    template      the parallel loops around it, with prologue and epilogue
    config        configurations: validity, default, space
    cost          their cost model
    problem       a matrix product as tuning sees it

Imports ``ir`` and ``schedules.common``.
"""
