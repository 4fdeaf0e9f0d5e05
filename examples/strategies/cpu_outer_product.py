"""Products in f32 on a CPU: each core keeps a tile of the result in vector registers, and adds an outer product of a
column and a row for each k (Goto and van de Geijn, ACM TOMS 34, 2008)."""

from taskmap.decompose import CORE, REGISTER, MatMul, Strategy
from taskmap.ir.nodes import Dim


def cpu_outer_product(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b in f32."""
    return (
        MatMul(m, n, k, batch=batch)
        .tile(6, 32).to(CORE)
        .accumulate_in(REGISTER)
        .split(1)
        .done()
    )  # fmt: skip
