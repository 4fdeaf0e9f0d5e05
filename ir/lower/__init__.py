"""Lowering: passes that turn a scheduled kernel into one that a code generator can print.

In reading order:

    pipeline, gpu     the two lists of passes, for CPUs and for GPUs
    conditions        the checks that passes require and ensure
    twins             micro-kernels of users as statements
    provenance        mappings recorded in the kernel's note
    specs_gpu         Move and MatMul across threads become instructions
    clip              copies that read 0 beyond the end of a tensor
    opaque            copies of opaque fragments
    specs_cpu         the other Move and MatMul become loops around instructions
    vector_widths     the vectors that a row of registers is divided into
    selections        the instructions chosen for a kernel, as text for reports
    instructions      operands of invoked instructions become this thread's addresses
    registers         the register buffers of a CPU: their widths, and those that move to memory
    mapped_loops      task-mapped loops and distributed registers become plain ones
    flatten           indices become addresses
    tidy              simplification and unrolling
    sides, peel       vector loops specialised for one side of a choice, and for the interior
    vectorize         vector loops become vector code
    collapse          nests of unrolled loops become one loop
    copy_offsets      addresses of asynchronous copies: a row's part, and a loop iteration's
    common_indices    index arithmetic in terms of the names around it

May import: the nodes, the builder, the visitors and the printer of ``ir``, ``ir.passes``, ``ir.target``,
``ir.algebra``, ``ir.analysis``, ``ir.isa``, ``ir.select``, ``ir.errors``, ``ir.util``.
"""
