"""The interpreter: the meaning of a definition, an instruction and a kernel, executed in numpy.

It checks on every access what a processor would not: bounds, initialisation, ownership, races, barriers. In reading
order:

    definitions         compute definitions over all indices at once
    run                 kernels, lowered or not: the entry point ``interpret``
    memory              storage with checks on every access
    expressions         expressions compiled to Python functions
    scheduler           the threads of a block, interleaved
    dispatch, operands  invoked instructions: their effect, and one thread's operands
    thread_ops          instructions of one thread
    warp_ops            instructions with a value, shuffles and votes among them
    collectives         instructions that several threads execute together
    wgmma               operands in shared memory behind descriptors
    instructions        the reference semantics of every instruction, from its spec and owners
    warp_instructions   that of shuffles, votes, warp reductions and atomics
    approximations      that of approximate functions
    dot_products        the rounding of vdpbf16ps
    terms               terms of instruction selection, the reference for its rules

May import: the nodes, the printer and the visitors of ``ir``, ``ir.algebra``, ``ir.isa``, ``ir.lower`` (addresses and
fragments), ``ir.errors``, ``ir.util``.
"""
