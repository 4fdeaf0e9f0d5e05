"""Decompositions for the cores of a CPU that are refused, like those of ``refused``."""

from __future__ import annotations

from taskmap.decompose import BLOCK, CORE, LOCAL, REGISTER, THREAD, Compute, MatMul, Strategy, Task, dim, stage, tensor
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


def long_vectors_of_threads() -> None:
    element_wise().to(THREAD).done().vectorize(32)


def vectors_of_registers() -> None:
    element_wise().to(THREAD).move("x", REGISTER).done().vectorize(4)


def vectors_of_three() -> None:
    element_wise().to(CORE).done().vectorize(3)


def vectors_of_a_product() -> None:
    MatMul(M, N, K).tile(6, 32).to(CORE).accumulate_in(REGISTER).split(1).done().vectorize(16)


def product() -> Strategy:
    """The tile of a core."""
    return MatMul(M, N, K).tile(6, 32).to(CORE)


def sums_that_continue_nothing() -> None:
    product().split(512).accumulate_in(REGISTER, how="add")


def sums_that_continue_in_memory() -> None:
    product().accumulate_in(LOCAL).split(512).accumulate_in(LOCAL, how="add")


def sums_that_go_on_somehow() -> None:
    product().accumulate_in(LOCAL).split(512).accumulate_in(REGISTER, how="again")


def sums_in_memory_of_a_block() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).accumulate_in(LOCAL)


def sums_that_stay_in_memory() -> None:
    product().accumulate_in(LOCAL).split(1).done()


def operands_in_memory_along_two_axes() -> None:
    MatMul(M, N, (K, 3)).tile(6, 32).to(CORE).accumulate_in(REGISTER).split(1).split(1).done()
