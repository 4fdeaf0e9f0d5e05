"""Products on Hopper as trees: one warpgroup fetches stages, the others multiply from them.

    c[i, j] = sum over s of a[i, s] * b[s, j]
    MatMul(m, n, k).tile(128, 256).to(BLOCK).group(8).specialize(WARPGROUP, "fetch").persistent()
        .accumulate_in(REGISTER, store=by_tma).split(64)
        .move("a", SHARED).prefetch(4)                                                         TMA
        .move("b", SHARED, lambda copy: copy.tile(16, 256).done(by=...)).prefetch(4)           threads, 16 lines a turn
        .tile(64, 256).to(WARPGROUP).split(16).unroll().tile(64, 256).done()                   wgmma_m64n256k16

Operands that lie in aligned lines of memory are views, which TMA copies. Others are computed where threads copy them:
asynchronously if each chunk lies in memory or is 0, as of the windows of a convolution; else by way of registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.specs import MatMul
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Allocate, Buffer, Dim, Expr, Invoke, Kernel, Load, Scope, TensorMap
from taskmap.ir.target import GpuTarget
from taskmap.ir.visit import map_body, walk_exprs, walk_stmts
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.cuda.hopper.load_plan import LoadPath, LoadPlan
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, HopperConfig
from taskmap.schedules.cuda.hopper.tma_descriptor import TmaDescriptor, output_boxes
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.matmul.problem_view import Gemm
from taskmap.schedules.cuda.support.launch import WARP
from taskmap.schedules.strategies.fusion import Fusion, KeptTile
from taskmap.schedules.strategies.product import ProductOperand, positions

Plans = tuple[LoadPlan, LoadPlan]

_WARPS = 4  # of a warpgroup


def strategy_of(p: Gemm, c: HopperConfig, plans: Plans, *, aligned: bool = True) -> Strategy:
    """The decomposition of a product. aligned: TMA can store its lines."""
    through_shared = partial(_by_tma if aligned else _by_lines, c)
    a, b = (f.expr.dtype for f in (p.left, p.right))
    tree = MatMul(p.m, p.n, p.k, a=a, b=b, c=p.accumulate, batch=p.batch).tile(c.block_m, c.block_n).to(Level.BLOCK)
    tree = tree.group(1 if static_size(ceil_div(p.m, c.block_m)) == 1 else c.group)
    tree = tree.specialize(Level.WARPGROUP, "fetch")
    tree = tree.persistent() if c.persistent else tree
    tree = tree.split_sum(c.split) if c.split > 1 else tree
    tree = tree.accumulate_in(Scope.REGISTER, store=through_shared if c.boxed else None).split(c.block_k)
    for name, f, plan in zip("ab", (p.left, p.right), plans, strict=True):
        tree = _fetched(tree, name, f, plan, c)
    tree = tree.tile(c.rows, c.block_n).to(Level.WARPGROUP).split(c.spec.k).unroll()
    return (tree.tile(ROWS, c.block_n) if c.rows > ROWS else tree).done()


def _by_tma(c: HopperConfig, copy: Strategy) -> Strategy:
    """Results as lines in shared memory, which TMA stores."""
    return copy.move("src", Scope.SHARED).tile(c.rows, c.block_n).to(Level.WARPGROUP).done().asynchronous()


def _by_lines(c: HopperConfig, copy: Strategy) -> Strategy:
    """Results in shared memory, from where the threads of a warp store neighbours."""
    by = repeat(c.rows // _WARPS, c.block_n // WARP) * spatial(_WARPS, WARP)
    return copy.move("src", Scope.SHARED).tile(c.rows, c.block_n).to(Level.WARPGROUP).done(by=by)


def _fetched(tree: Strategy, name: str, f: Operand, plan: LoadPlan, c: HopperConfig) -> Strategy:
    """The stages of an operand."""
    kind = c.spec.a if name == "a" else c.spec.b
    dtype = None if f.expr.dtype == kind else kind  # to the nearest; the instruction would truncate
    if plan.path is LoadPath.TMA:
        tree = tree.move(name, Scope.SHARED)
    else:
        tree = tree.move(name, Scope.SHARED, lambda copy: _by_threads(copy, name == "a", f, plan), dtype=dtype)
    tree = tree.storage("column") if plan.along_k == (name == "b") else tree
    tree = tree.prefetch(c.stages)
    return tree.asynchronous() if plan.path is LoadPath.CP_ASYNC else tree


def _by_threads(copy: Strategy, is_left: bool, f: Operand, plan: LoadPlan) -> Strategy:
    """A copy in turns that need few registers; in each, neighbouring threads take neighbours in memory."""
    share = plan.partition
    assert share is not None
    turned = f.along_k != is_left
    order, turn = ((1, 0), -1) if turned else (None, 1)
    if plan.parts > 1:
        lines = share.rows, share.chunks * f.lanes
        copy = copy.tile(*lines[::turn])
    return copy.done(by=repeat(*share.repeats[::turn], order=order) * spatial(*share.spread[::turn], order=order))


@dataclass(frozen=True, slots=True)
class _Memory:
    """An operand as the tree sees it: a buffer, and the element that is computed in its place; None if it is a view of
    memory."""

    buffer: Buffer
    operand: ProductOperand | None

    @staticmethod
    def of(p: Gemm, name: str, f: Operand, plan: LoadPlan) -> _Memory:
        batch = tuple((pair,) for pair in p.c.batch)
        inner = (f.mn, f.k) if name == "a" else (f.k, f.mn)
        operand = ProductOperand(name, f.expr, (*batch, *inner))
        if plan.boxes is None:
            return _Memory(operand.buffer(len(batch) + (f.along_k == (name == "a"))), operand)
        kinds = (*range(len(batch)), *(("mn", "k") if name == "a" else ("k", "mn")))
        return _Memory(view_of(name, plan.boxes, kinds, operand.shape), None)


def view_of(name: str, boxes: TmaDescriptor, kinds: Sequence[int | str], shape: tuple[Dim, ...]) -> Buffer:
    """The memory that TMA copies as a tensor of ``shape``, whose dimensions are of these kinds."""
    steps = dict(zip(boxes.kinds, boxes.view.strides or (), strict=True))
    strides = tuple(steps.get(kind, 0) for kind in kinds)
    return Buffer(name, boxes.view.dtype, shape, strides=strides, offset=boxes.view.offset)


def schedule_strategy(p: Gemm, c: HopperConfig, target: GpuTarget, plans: Plans) -> Kernel:
    """The kernel of a product."""
    task, batch = p.task, tuple((pair,) for pair in p.c.batch)
    a, b = (_Memory.of(p, *rest) for rest in zip("ab", (p.left, p.right), plans, strict=True))
    boxes = output_boxes(p, c.block_n) if c.boxed else None
    memory = {x.buffer: plan.boxes.buffer for x, plan in zip((a, b), plans, strict=True) if plan.boxes}
    shape = (*p.batch, p.m, p.n)
    if isinstance(boxes, TmaDescriptor):
        result = view_of("c", boxes, (*range(len(batch)), "mn", "k"), shape)
        memory[result] = boxes.buffer
    else:
        result = Buffer("c", task.outputs[0].dtype if c.boxed else p.accumulate, shape)

    def store(
        where: Sequence[Expr], total: Expr, b: Builder, values: Inliner, keep: Callable[[Expr], None] | None = None
    ) -> None:
        at = positions((*batch, p.c.m, p.c.n), where, values)
        into = None if keep is None else (lambda out, place, value: keep(value))  # pyright: ignore[reportOptionalCall]
        Epilogue(task, p.stage, p.c.reduce, b, into).element(values, total, p.position(at))

    def store_kept(where: Sequence[Expr], value: Expr, b: Builder, values: Inliner) -> None:
        (out,) = task.outputs
        position = p.position(positions((*batch, p.c.m, p.c.n), where, values))
        b.store(out, positions_in(out, p.stage.out, [position[v] for v in p.stage.axes]), value)

    computed = [name for name, x in (("a", a), ("b", b)) if x.operand is not None]
    copied = [name for name, x in zip("ab", plans, strict=True) if x.path is LoadPath.CP_ASYNC]
    operands = {"a": a.buffer, "b": b.buffer, "c": result}
    tree = strategy_of(p, c, plans, aligned=isinstance(boxes, TmaDescriptor))
    kernel = kernel_on(tree, task.name, operands, [*computed, "c"], copied=copied)
    reads = {x.buffer: x.operand.element for x in (a, b) if x.operand is not None}
    tiles = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.name == "c_shared"]
    kept = {result: KeptTile(tiles[0], store, store_kept, _reads_memory(p))} if tiles else {}
    kernel = _on(Fusion(task, target, reads, {result: store}, kept=kept).apply(kernel), memory)
    buffers = (*task.inputs, *task.outputs)
    kernel = replace(kernel, buffers=buffers, outputs=task.outputs, dims=task.dims, note=f"cuda.hopper({c})")
    return kernel.launched(min_blocks=1)


def _reads_memory(p: Gemm) -> bool:
    """True if the epilogue reads memory, so that it has no elements beyond the end."""
    after = p.task.stages[p.task.stages.index(p.stage) + 1 :]
    return any(e.buffer in p.task.inputs for s in after for e in walk_exprs(s.body) if isinstance(e, Load))


def _on(kernel: Kernel, memory: dict[Buffer, Buffer]) -> Kernel:
    """The kernel with the maps of views as maps of the buffers in ``memory`` that they are views of."""
    assert kernel.launch is not None
    maps = {m: replace(m, buffer=memory[m.buffer], tensor=m.seen) for m in kernel.launch.maps}

    def invoked(s: object) -> tuple[Invoke, ...] | None:
        if not isinstance(s, Invoke) or not any(isinstance(o, TensorMap) for o in s.operands):
            return None
        return (replace(s, operands=tuple(maps[o] if isinstance(o, TensorMap) else o for o in s.operands)),)

    return replace(kernel, body=map_body(kernel.body, invoked)).launched(maps=tuple(maps.values()))
