"""The algebra: task mappings say which worker does which tasks in which order, layouts say where an element lies.

Both are built from mixed-radix digits, so one normal form decides equality, inverse, division and coalescing. In
reading order:

    mapping         task mappings: repeat, spatial, replicate, from_function and their composition
    assignment      the data of a task mapping
    assignment      their data: a composition of parts, and the tasks of a worker
    radix           mixed-radix arithmetic on ints and on symbolic expressions
    digits          the normal form of compositions of repeat, spatial and replicate
    table           the form of a mapping given by a function
    inverse         from a task to its worker and slot
    quotient        division: the outer factor of a mapping around a given inner one
    fragments       the tiles of a mapping: their places in the registers of their workers
    loops           the tasks of one worker as a loop nest
    layout          layouts: row-major, padded, blocked, swizzled, composed
    modes           the digits of one dimension of a layout, each with its stride
    swizzle         xor of address bits
    shape_stride    CuTe's shape:stride notation
    thread_value    a mapping on a layout, in that notation
    thread_value    a task mapping on a layout in that notation (CuTe's thread-value layout)
    register_tile   a logical tile spread over the registers of many workers
    certify         proofs: coverage, bounds, bank conflicts, coalescing
    draw, grid_picture    pictures as text and SVG

May import: ``ir.errors`` and ``ir.util``.
"""
