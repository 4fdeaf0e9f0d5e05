"""The host CPU as a target of generated C.

    tile_permission  the system's permission to use tile registers
    host             instruction set, cores and caches of this CPU
    toolchain        the C compiler: its discovery, identity and flags
    math/            the prelude's functions, one file per family
    prelude          the types and functions that one source uses
    expressions      expressions as C
    interleaved_stores  vectors that fill memory together
    transposed_copies  squares of words whose rows become columns
    lane_tests       comparisons of consecutive indices, in 32 bits
    tile_assembly    register tiles as inline assembly
    tile_reader      the register tiles of a lowered kernel
    native_functions  functions that a CPU feature makes faster
    codegen          kernels as C
    compile          parallel compilation into few translation units, through the kernel store
    team             the threads that run parallel loops
    tile_model       a software model of tile registers
    launch           kernels launched one at a time from Python
    peaks            measured peak rates of this CPU
    openmp_threads   the number of OpenMP threads

Imports ``ir`` and ``backend``'s own store, library and expression base.
"""
