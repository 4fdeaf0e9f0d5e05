"""NVIDIA GPUs: CUDA C++ from tensor IR, the toolchain, launching.

    device/        CUDA C++ that kernels include: types, memory accesses, instructions
    products       device functions generated from the instruction table: wmma and wgmma
    own_functions  device functions that users write: micro-kernels
    cuda_source    the source of one kernel, and the device code that it needs
    expressions    expressions as CUDA C++
    codegen        kernels as CUDA C++
    tensor_map     the tensor maps that a kernel takes
    resources      registers and spills, from the assembler's report
    nvrtc          NVRTC, the compiler as a library
    toolchain      NVRTC or nvcc, for one architecture
    compile        parallel compilation to CUBINs, through the kernel store
    driver         the CUDA driver, every call checked
    encoded_map    tensor maps encoded by the driver
    memory         GPU memory for processes without PyTorch
    own_memory     memory private to a launch
    launch         launches on the caller's stream

Imports ``ir`` and ``backend``'s own store, program and expression base.
"""
