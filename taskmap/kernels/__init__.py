"""Single kernels: built, called and simulated by hand, without a graph.

Reading order:

    build        taskmap.build: lowers, compiles and loads a kernel
    build_gpu    the same for a GPU, as a program of one launch
    function     taskmap.kernel: kernels that are called on tensors, and allocate their outputs
    signature    the sizes that a kernel's tensors share
    parameter    param: numbers with choices, which tuning chooses
    tuned        the choices that the tuning cache has, or that are measured now
    instructions    the instructions that a kernel names, checked against a target's
    arguments    checks the arguments of a call
    operands     torch tensors and numpy arrays as address, type, shape and strides
    micro_kernels    the test of a micro-kernel against its spec
    simulate     taskmap.simulate: runs a GPU kernel with every access checked and counted

It imports `ir` and `backend`, and of taskmap `options`, `targets`, `trust`, `tuning` and `util`.
"""
