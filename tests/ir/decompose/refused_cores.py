"""Decompositions for the cores of a CPU that are refused, like those of ``refused``."""

from __future__ import annotations

from taskmap.decompose import BLOCK, CORE, REGISTER, Compute, MatMul, Strategy, Task, dim, stage, tensor
from taskmap.ir.types import f32

M, N, K = dim("m"), dim("n"), dim("k")
X = tensor("x", f32[M, N])


def element_wise() -> Strategy:
    """Element-wise work."""
    return Compute(Task.of("more", stage("y", (M, N), lambda i, j: X[i, j] + 1))).tile(4, 32)


def blocks_in_parallel() -> None:
    element_wise().to(BLOCK).parallel(1000)


def parallel_from_no_size() -> None:
    element_wise().to(CORE).parallel(-1)


def parallel_in_no_tasks() -> None:
    element_wise().to(CORE).parallel(1000, tasks=0)


def vectors_before_the_leaf() -> None:
    element_wise().to(CORE).vectorize(16)


def vectors_of_threads() -> None:
    element_wise().to(BLOCK).done().vectorize(4)


def vectors_of_three() -> None:
    element_wise().to(CORE).done().vectorize(3)


def vectors_of_a_product() -> None:
    MatMul(M, N, K).tile(6, 32).to(CORE).accumulate_in(REGISTER).split(1).done().vectorize(16)


def vectors_of_registers() -> None:
    element_wise().to(CORE).move("x", REGISTER, lambda copy: copy.done().vectorize(16)).done()
