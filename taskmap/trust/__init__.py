"""Every C compiler is tried before it is trusted: kernels of every kind and element type are compiled and compared
with the interpreter, once for each compiler, its flags and this version of taskmap.

Reading order:

    corpus     the kernels of the trial
    trial      compiling and running them
    child      the process that runs them and may die
    ladder     flags for a compiler that generates wrong code
    verdict    the stored result
    compiler   the compiler that the platforms ask for

It imports `ir`, `graph`, `schedules` and `backend`, and of taskmap only `util`.
"""
