"""The text that reports show of the choices of instructions."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

from taskmap.ir import repeat, spatial
from taskmap.ir.lower.selections import selections
from taskmap.ir.script.read import barrier, dim, instruction, kernel, matmul, move, region, register, shared, thread
from taskmap.ir.target import cpu_target, cuda_target
from taskmap.ir.types import f16, f32

k = dim("k")


@kernel
def row(a: f32[1, k], b: f32[k, 24], c: f32[1, 24]):
    total = register(f32[1, 24], init=0)
    for kk in range(k):
        matmul(total, region(a, (0, kk), (1, 1)), region(b, (kk, 0), (1, 24)))
    move(c, total)


def test_a_row_of_a_cpu_kernel() -> None:
    (line,) = selections(row, cpu_target("avx512", 1))
    assert line.startswith("a row of 24 columns, f32 × f32 → f32: fma_f32x16, fma_f32x8: 8 issued; rules: ")
    assert "nodes, " in line
    assert "ms, 100% of products useful; second: fma_f32x4, 24 issued" in line


def test_a_product_of_a_warp() -> None:
    owner = repeat(1, 2) * instruction("mma_m16n8k16_f16_f32").owner_c

    @kernel(grid=(1,), threads=32)
    def product(a: f16[16, 16], b: f16[16, 16], c: f32[16, 16]):
        left, right = shared(f16[16, 16]), shared(f16[16, 16])
        move(left, a, by=(repeat(8, 1) * spatial(2, 16)).on(thread))
        move(right, b, by=(repeat(8, 1) * spatial(2, 16)).on(thread))
        barrier()
        total = register(f32[16, 16], init=0, owner=owner)
        matmul(total, left, right)
        move(c, total)

    assert selections(product, cuda_target("sm_80")) == (
        "16×16×16, f16 × f16 → f32: mma_m16n8k16_f16_f32; second: mma_m16n8k8_f16_f32",
    )
    (refused,) = selections(product, cuda_target("sm_80"), ())
    assert "no instruction (no instruction does f16 × f16 → f32.)" in refused


def test_a_kernel_without_products() -> None:
    @kernel
    def copy(a: f32[8], b: f32[8]):
        move(b, a)

    assert selections(copy, cpu_target("avx512", 1)) == ()
