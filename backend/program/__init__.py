"""A program: a launch sequence, its buffers and the memory that they share.

    structure     buffers, launches, extern calls
    binding       ties a program's buffers to tensors or arrays, as data
    arrays        arrays as the tensors of a binding: types, memory, addresses, parts
    sizes         sizes as C and as Python functions
    memory_plan   one arena for all temporary buffers
    arena         reused arenas
    launch_c      the launch sequence as generated C
    sequence      the compiled launch sequence, called
    executable    a program, ready to be called: by its sequence, or step by step through a launcher
    host_launch   the launcher of a CPU
    pages, watch  memory watched for writes, by page or by hash
    intervals     sets of addresses

Imports ``ir`` and ``backend``'s own counters, library and store.
"""
