"""A sweep over architectures that nobody tuned for, against the engines people have: ``python -m benchmarks sweep``.

    entry      an architecture: module, inputs of a batch
    library    architectures of transformers
    networks/  the others
    entries    all of them
    measure    errors, times and the kernels furthest from their roofline, of one architecture
    apart      a measurement in a process of its own, which may crash or hang
    __main__   the benchmark

May import: ``benchmarks.models``, ``benchmarks.support``, ``taskmap``.
"""
