"""The simulator: CUDA C++ built for the host and run there, with every access checked, or without checks.

    device/      the host's versions of the device code: what backend/cuda/device is on a GPU
    engine/      the simulator itself, in C++: threads, memory, reports
    unit         the text that is compiled
    toolchain    the C++ compiler
    structs      structures shared with the engine
    building     kernels and engine, from the store or compiled
    tensor_map   tensor maps in the simulator's form
    run          a checked run on arrays
    problems     the problems that it finds
    lines        source lines of code addresses
    roofline     a bound on the GPU's time, from the counters
    launch       unchecked runs of a program's kernels

Imports ``ir`` and ``backend``'s own cuda sources, program and store.
"""
