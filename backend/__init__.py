"""Making it run: code generation, toolchains, the simulator, the kernel store, memory and launching.

    c_expressions   expressions as text: the common base of C and CUDA C++
    cpu/            C for the host CPU: code generation, prelude, compiler, thread team
    cuda/           CUDA C++ for NVIDIA GPUs: code generation, NVRTC or nvcc, driver, launching
    sim/            the simulator: CUDA C++ compiled for the host and checked
    program/        a program: a launch sequence, its buffers, and the memory that they share
    store/          the kernel store: compiled kernels kept between processes
    library         loading shared objects, and the process's OpenMP runtime
    image           loading a shared object from memory
    children        compiler processes that can be ended together
    compilers       facts shared by the compilers of all targets
    compile_pool    kernels found in a store or compiled in parallel, for every target
    counters        the cost of building kernels

Imports ``ir`` only.
"""
