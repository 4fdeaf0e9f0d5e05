"""Instructions as data: each is one entry with a spec, operand owners, targets and the text that calls it.

In reading order:

    specs               the operation of an instruction, without notation or data placement
    entry               the form of an entry: Instruction, Parameter, and the targets that have it
    table               the table with its look-ups, and the entries for CPUs
    dots                dot products of bf16, i16 and bytes on CPUs
    amx                 products of tiles on CPUs, with their loads and stores, and the software model's
    gpu                 all entries for GPUs
    mma, wmma, hopper   tensor cores: mma.sync and dp4a, WMMA, TMA with wgmma
    memory              ldmatrix, cp.async, cached accesses, atomics
    sync, warp          barriers, mbarriers, fences, clusters; shuffles, votes, warp reductions
    approximate         fast approximations of functions
    float_rounding      rounding to tf32 and to 8-bit floats, in numpy
    tma_box             the semantics of a TMA copy, in numpy
    wgmma_descriptor    descriptors of wgmma operands, and the swizzle of their addresses

May import: ``ir.types``, ``ir.features``, ``ir.target``, ``ir.errors``, ``ir.algebra``, ``ir.util``.
"""
