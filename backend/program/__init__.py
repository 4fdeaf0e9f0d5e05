"""A program: a launch sequence, its buffers and the memory that they share.

    structure     buffers, launches, extern calls
    binding       ties a program's buffers to tensors or arrays, as data
    sizes         sizes as C and as Python functions
    memory_plan   one arena for all temporary buffers
    arena         reused arenas
    launch_c      the launch sequence as generated C
    executable    a program on the CPU, ready to be called
    sequence      a program run step by step, for GPUs and the simulator
    host_launch   its launcher on the CPU
    pages, watch  memory watched for writes, by page or by hash

Imports ``ir`` and ``backend``'s own counters, library and store.
"""
