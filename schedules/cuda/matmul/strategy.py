"""Products as trees: by CUDA cores, every thread with a part of the tile in registers, or by an mma instruction.

    c[i, j] = sum over s of a[i, s] * b[s, j]
    MatMul(m, n, k).tile(128, 128).to(BLOCK).group(8).accumulate_in(REGISTER).split(...)
        .move("a", SHARED, by=...).move("b", SHARED, by=...), with lines padded or swizzled, and prefetch(stages)

    CUDA cores     .split(1).unroll(8).move("a", REGISTER).move("b", REGISTER)
                   .tile(32, 64).to(WARP).tile((4, 16), (4, 32)).to(THREAD)              pieces of 4×4 elements
                   .tile(4, 4).tile(1, 1).done()
    tensor cores   .tile(64, 32).to(WARP).split(16).unroll()
                   .move("a", REGISTER).move("b", REGISTER).tile(16, 8).done()           mma_m16n8k16

The operands are computed where they are copied, and the epilogue where the sums are stored; operands that lie in memory
unchanged are copied asynchronously. Owners come from the instruction, so one strategy serves every mma instruction.
Method: the matrix multiplication of Hidet (Ding et al., ASPLOS 2023, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.specs import MatMul
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Buffer, Expr, Kernel, Scope
from taskmap.ir.target import GpuTarget
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.config import MatmulConfig, spec_of
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.matmul.problem_view import Gemm
from taskmap.schedules.cuda.matmul.shared_tile import PAD_BYTES, swizzle_of
from taskmap.schedules.strategies.fusion import Fusion
from taskmap.schedules.strategies.product import ProductOperand, positions

_WIDEST = 4
"""Neighbours that a thread reads from shared memory at once."""
_UNROLLED = 8


def strategy_of(p: Gemm, c: MatmulConfig, *, asynchronous: bool = False) -> Strategy:
    """The decomposition of a product."""
    a, b = (f.expr.dtype for f in (p.left, p.right))
    tree = MatMul(p.m, p.n, p.k, a=a, b=b, c=p.accumulate, batch=p.batch).tile(c.block_m, c.block_n).to(Level.BLOCK)
    tree = tree.group(1 if static_size(ceil_div(p.m, c.block_m)) == 1 else c.group)
    tree = (tree.split_sum(c.split) if c.split > 1 else tree).accumulate_in(Scope.REGISTER).split(c.block_k)
    for name, f, extent in (("a", p.left, c.block_m), ("b", p.right, c.block_n)):
        tree = _arranged(tree.move(name, Scope.SHARED, by=_chunks(p, c, f, extent)), p, c, f, extent)
        tree = tree.prefetch(c.stages)
        tree = tree.asynchronous() if asynchronous else tree
    return tree.apply(_by_threads if c.multiplier == "simt" else _by_tensor_cores, c)


def _arranged(tree: Strategy, p: Gemm, c: MatmulConfig, f: Operand, extent: int) -> Strategy:
    """The layout of an operand in shared memory."""
    along_k = f.tile_along_k(c.multiplier)
    tree = tree.storage("column") if along_k != (f is p.left) else tree
    swizzle = None if c.multiplier == "simt" else swizzle_of(f.expr.dtype, c.block_k if along_k else extent)
    return tree.swizzle(*swizzle) if swizzle else tree.pad(PAD_BYTES // f.expr.dtype.bytes)


def _by_threads(tree: Strategy, c: MatmulConfig) -> Strategy:
    """Products in shared memory by the threads of a block."""
    tree = tree.split(1).unroll(_UNROLLED).move("a", Scope.REGISTER).move("b", Scope.REGISTER)
    wide = [math.gcd(n, _WIDEST) for n in c.thread_tile]
    apart = [w * n // held for w, n, held in zip(wide, (c.warp_m, c.warp_n), c.thread_tile, strict=True)]
    pieces = tree.tile(c.warp_m, c.warp_n).to(Level.WARP).tile(*zip(wide, apart, strict=True)).to(Level.THREAD)
    return pieces.tile(*wide).tile(1, 1).done()


def _by_tensor_cores(tree: Strategy, c: MatmulConfig) -> Strategy:
    """Products in shared memory by the tensor cores of a block's warps."""
    spec = spec_of(c.multiplier)
    rounded = any(o.dtype != t for o, t in zip(tree.spec.operands, (spec.a, spec.b), strict=False))
    tree = tree.tile(c.warp_m, c.warp_n).to(Level.WARP).split(spec.k)
    # Rounding holds fragments twice, and interleaved steps would spill.
    tree = (tree.unroll(2) if rounded else tree.unroll()).move("a", Scope.REGISTER).move("b", Scope.REGISTER)
    if rounded:  # to the nearest; the instruction would truncate
        tree = tree.move("a", Scope.REGISTER, dtype=spec.a).move("b", Scope.REGISTER, dtype=spec.b)
    return tree.tile(spec.m, spec.n).done()


def _chunks(p: Gemm, c: MatmulConfig, f: Operand, extent: int) -> TaskMapping:
    """The mapping of an operand's chunks to threads: neighbouring threads take neighbours in memory."""
    share, turned = f.shared_out(extent, c.block_k, c.threads), f.along_k != (f is p.left)
    assert not isinstance(share, str)
    order, turn = ((1, 0), -1) if turned else (None, 1)
    return repeat(*share.repeats[::turn], order=order) * spatial(*share.spread[::turn], order=order)


def schedule_strategy(p: Gemm, c: MatmulConfig, target: GpuTarget, *, asynchronous: bool) -> Kernel:
    """The kernel of a product."""
    task, batch = p.task, tuple((pair,) for pair in p.c.batch)
    a = ProductOperand("a", p.left.expr, (*batch, p.left.mn, p.left.k))
    b = ProductOperand("b", p.right.expr, (*batch, p.right.k, p.right.mn))
    left, right = a.buffer(len(batch) + p.left.along_k), b.buffer(len(batch) + (not p.right.along_k))
    result = Buffer("c", p.accumulate, (*p.batch, p.m, p.n))

    def store(where: Sequence[Expr], total: Expr, b: Builder, values: Inliner) -> None:
        at = positions((*batch, p.c.m, p.c.n), where, values)
        Epilogue(task, p.stage, p.c.reduce, b).element(values, total, p.position(at))

    tree, copied = strategy_of(p, c, asynchronous=asynchronous), "ab" if asynchronous else ""
    kernel = kernel_on(tree, task.name, {"a": left, "b": right, "c": result}, "abc", copied=copied)
    kernel = Fusion(task, target, {left: a.element, right: b.element}, {result: store}).apply(kernel)
    buffers = (*task.inputs, *task.outputs)
    kernel = replace(kernel, buffers=buffers, outputs=task.outputs, dims=task.dims, note=f"cuda.matmul({c})")
    return kernel.launched(min_blocks=1)
