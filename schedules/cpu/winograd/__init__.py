"""Convolution of 3×3 by Winograd's minimal filtering on a CPU, F(2×2) and F(4×4).

    geometry    the convolution of transformed weights that anchors a task
    transform   a small constant matrix times a vector of expressions, in few operations
    config      configurations: sizes of blocks, and their working set
    cost        the cost model, in the units of the direct convolution's
    template    the kernel
    weights     the kernel that transforms weights
    choice      the fastest form of a convolution, or direct convolution, with the reason

Imports ``ir``, ``schedules.common``, ``schedules.cpu.support``, the microkernel of ``schedules.cpu.matmul``, and the
input tile and the cost model of ``schedules.cpu.convolution``.
"""
