"""Calls of compiled graphs: a program bound to tensors, of whatever library.

Reading order:

    bound      a program with its constants and extern functions
    graph      one call: arguments checked, results allocated, native code run; common to all libraries
    memory     memory kept for large outputs and for constants
    prepared   constants computed once by a second program
    arrays     calls with numpy's arrays, without PyTorch
    profiling  kernels as ranges of torch.profiler

PyTorch's tensors are in `taskmap.compile`: `runtime`, `frozen`, `output_pool`, `constant_memory`.

It imports `ir`, `graph` and `backend`, and of taskmap `targets` and `util`.
"""
