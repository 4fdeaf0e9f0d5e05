"""Micro-kernels: leaves that a user writes.

In reading order:

    definition   the parts that its author gives, and the conditions on them
    kernel       ``micro_kernel``: a script function, or C, CUDA C++ or PTX text, with the spec that it performs
    twin         the statements of a script function, on the regions of a call
    executed     the spec itself as statements, for text without a twin
    call         the call in a kernel: operands, and the strides of those in memory

A micro-kernel is an instruction like those of the table (``ir.isa``), with a twin in tensor IR. ``ir.lower.twins`` puts
script functions in place; code generators write text as a function. May import: the specs of ``ir.decompose``.
"""
