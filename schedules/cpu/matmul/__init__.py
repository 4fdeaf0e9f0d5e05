"""Matrix products on a CPU.

    microkernel   sizes of the register-blocked product of a tile, shared by all templates of the CPU
    register_tile the product itself: the strategy of a core
    column_copies panels of columns that are not packed, each copied once for many rows
    group_copies  the same in groups of neighbours along the sum, for dot products
    ahead         prefetches of packed weights: the next panel
    summed_loops  loops over the axes of a sum
    term_loops    loops over a sum in which the addresses of A grow by the same steps
    dot_tile      the same on dot products of neighbours, for bf16
    code_tile     the same on weights with codes of four bits, looked up as bf16
    amx_tile      the microkernel on tile registers, for bf16 and bytes
    amx_operands  the operands of its products, and where their tiles lie
    amx_copies    copies of operands as tiles
    amx_blocking  block sizes of its products
    amx_template  the parallel loops around it
    template      the parallel loops around it, with prologue and epilogue
    config        configurations: validity, default, space
    cost          their cost model
    problem       a matrix product as tuning sees it

Imports ``ir`` and ``schedules.common``.
"""
