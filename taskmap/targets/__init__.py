"""Targets: the CPU, a GPU and the simulated GPU behind one interface.

Reading order:

    platform        the interface: Platform and ProgramBuilder
    source_record   kernel sources as JSON
    choose          the target of a compilation, from the options and this machine
    devices         the device of a model's tensors
    torch_devices   PyTorch's devices
    cpu             the CPU
    cpu_passes      its graph passes
    gpu_base        common to every target with CUDA C++ kernels
    cuda            a GPU
    sim             the simulator
    gpu_options     what options decide of a GPU target: tf32, dependent launches
    torch_capturer  CUDA graphs recorded by PyTorch
    streams         a GPU's streams, and captures of CUDA graphs
    on_gpu          PyTorch's current device, and its out-of-memory errors
    threads         the number of threads of a call

It imports `ir`, `graph`, `schedules` and `backend`, and of taskmap `options`, `trust` and `util`.
"""
