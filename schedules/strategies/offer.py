"""A strategy that a user offers for the groups of a model, and the reason why it does not fit one.

The strategy is a finished tree, whose symbolic sizes take those of a group's anchor, or a function from sizes and types
to one: ``def s(m, n, k, batch=(), a=f32, b=f32, c=f32)``, of whose arguments those after k may be left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from taskmap.ir.construct import index, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_on, specialised
from taskmap.ir.decompose.specs import Init, MatMul
from taskmap.ir.decompose.stage_spec import StageSpec
from taskmap.ir.decompose.steps import AccumulateStep, MoveStep, Step, TileStep, Tree
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.errors import InputError, ScheduleError, StrategyMisfitError, TaskmapError
from taskmap.ir.nodes import (
    Buffer,
    Dim,
    Expr,
    Invoke,
    Kernel,
    Move,
    Var,
)
from taskmap.ir.nodes import (
    MatMul as MultiplyStmt,
)
from taskmap.ir.printer import print_dim
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.visit import loads_in, walk_stmts
from taskmap.schedules.common.scheduled import Choice, ScheduledKernel
from taskmap.schedules.strategies.fusion import Fusion
from taskmap.schedules.strategies.product import Product, find_product
from taskmap.schedules.strategies.stages import StageAnchor, find_stages
from taskmap.schedules.strategies.views import computed_buffer, view_of

_SIZES = ("m", "n", "k")


@dataclass(frozen=True, slots=True, eq=False)
class OfferedStrategy:
    """A strategy under the name that reports show."""

    name: str
    given: Strategy | Callable[..., Strategy]

    @property
    def note(self) -> str:
        """The schedule of its kernels, for people."""
        return f"strategy {self.name}"

    @property
    def choice(self) -> Choice:
        """The choice of this strategy, as a kernel of it has it."""
        return Choice("strategy", self.name)

    def why_no_strategy(self) -> str:
        """The reason why the given value is not a strategy for groups; "" if it is."""
        if isinstance(self.given, Strategy):
            if not isinstance(self.given.root, (MatMul, StageSpec)):
                return f"its spec, {self.given.root}, is neither a product nor a stage"
            return "" if self.given.is_done else f"the tree is not finished: {self.given.spec} is left"
        if not callable(self.given):
            return f"it is of type {type(self.given).__name__}"
        try:
            known = inspect.signature(self.given).parameters
        except (TypeError, ValueError):
            return "its arguments are not known"
        lacking = [n for n in _SIZES if n not in known]
        if lacking:
            return f"it takes no argument {', '.join(lacking)}"
        extra = [n for n, a in known.items() if n not in (*_SIZES, "batch", "a", "b", "c") and a.default is a.empty]
        extra = [
            n for n in extra if known[n].kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        ]
        return f"it needs the argument {extra[0]}, which nobody gives" if extra else ""

    def scheduled(self, task: Task, target: Target) -> ScheduledKernel:
        """The kernel of a task with the choice of this strategy. Raises ScheduleError."""
        return ScheduledKernel(self.kernel(task, target), self.choice.template, self.choice.config)

    def kernel(self, task: Task, target: Target) -> Kernel:
        """The kernel of a task, its anchor as the strategy says. Raises ScheduleError with the reason if it does not
        fit."""
        tree, anchor = self.fitted(task, target)
        return replace(_on_operands(tree, anchor, target), note=self.note)

    def marked(self, task: Task, target: Target) -> tuple[Tree, Kernel]:
        """The tree for a task, and its kernel, whose statements are marked with rows of the printed tree."""
        tree, anchor = self.fitted(task, target)
        return tree, replace(_on_operands(tree, anchor, target, marked=True), note=self.note)

    def fitted(self, task: Task, target: Target) -> tuple[Tree, Product | StageAnchor]:
        """The tree for a task, and the anchor that it computes."""
        anchor: Product | StageAnchor
        if (spec := self.stage_spec) is not None:
            assert isinstance(self.given, Strategy)
            found = find_stages(task, spec)
            if not isinstance(found, StageAnchor):
                raise self.refused(found or "its stages are not those of the group.")
            tree, anchor, why = specialised(self.given, found.sizes), found, ""
        else:
            product = find_product(task)
            if isinstance(product, str):
                raise self.refused(f"{product}.")
            tree, anchor = self.tree(product), product
            why = _why_not(tree, product)
        why = why or _why_no_target(tree, target)
        if why:
            raise self.refused(why)
        return tree, anchor

    @property
    def stage_spec(self) -> StageSpec | None:
        """The spec of a tree that computes a stage of a task, not a product."""
        root = self.given.root if isinstance(self.given, Strategy) else None
        return root if isinstance(root, StageSpec) else None

    def concerns(self, task: Task) -> bool:
        """True if the task has an anchor of the strategy's kind, whether it fits or not."""
        spec = self.stage_spec
        return not isinstance(find_product(task), str) if spec is None else find_stages(task, spec) is not None

    def tree(self, p: Product) -> Tree:
        """The tree for a product. Raises ScheduleError if the strategy refuses its sizes or types."""
        if isinstance(self.given, Strategy):
            return _with_sizes(self, self.given, p)
        known = inspect.signature(self.given).parameters
        given: dict[str, Any] = dict(zip(_SIZES, (_plain(n) for n in p.sizes), strict=True))
        if p.batch and "batch" not in known:
            raise self.refused("it has no argument batch, and the product is one of many.")
        types = {"a": p.a.expr.dtype, "b": p.b.expr.dtype, "c": p.total}
        optional = {"batch": tuple(map(_plain, p.batch)), **types}
        given |= {n: v for n, v in optional.items() if n in known}
        try:
            made = self.given(**given)
        except TaskmapError:
            raise
        except Exception as error:
            shown = ", ".join(f"{n}={v}" for n, v in given.items())
            raise InputError(
                f"strategy {self.name} failed", why=f"{self.name}({shown}): {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, Strategy):
            raise self.refused(f"it returns {made!r}, not a strategy.")
        return made

    def refused(self, why: str) -> StrategyMisfitError:
        """The error for a task that the strategy does not fit."""
        return StrategyMisfitError(f"strategy {self.name} does not fit", why=why)


def _with_sizes(offer: OfferedStrategy, tree: Strategy, p: Product) -> Tree:
    """A tree with the sizes of a product in place of its symbolic ones."""
    wanted = (*p.batch, *p.sizes)
    if len(tree.root.extents) != len(wanted) or tree.root.kind != "matmul":
        raise offer.refused(f"its spec is {tree.root}, and the product has {len(p.batch)} axes of a batch.")
    values: dict[Var, Expr] = {}
    for (axis, own), n in zip(tree.root.extents, wanted, strict=True):
        if isinstance(own, Var) and values.setdefault(own, index(n)) == index(n):
            continue
        if isinstance(own, Var) or static_size(own) is None or static_size(own) != static_size(n):
            raise offer.refused(f"its {axis} is {print_dim(own)}, and the product's is {print_dim(n)}.")
    return specialised(tree, values)


def _plain(n: Dim) -> Dim:
    known = static_size(n)
    return n if known is None else known


def _why_not(tree: Tree, p: Product) -> str:
    """The reason why a tree does not compute a product."""
    root = tree.root
    if not isinstance(root, MatMul):
        return f"its spec is {root}, and the group's is a matrix product."
    if not tree.is_done:
        return f"the tree is not finished: {tree.spec} is left."
    mine, wanted = tuple(o.dtype for o in root.operands), (p.a.expr.dtype, p.b.expr.dtype, p.total)
    if mine != wanted:
        of = "{} × {}, summed in {}"
        return f"it multiplies {of.format(*mine)}; the product is {of.format(*wanted)}."
    if any(o.strides is not None for o in root.operands):
        return "its operands have strides of their own."
    sizes = [_plain(n) for n in (*p.batch, *p.sizes)]
    if [_plain(n) for _, n in root.extents] != sizes:
        return f"it multiplies {root.sizes('×')}; the product is {'×'.join(map(print_dim, sizes))}."
    return ""


def _why_no_target(tree: Tree, target: Target) -> str:
    """The reason why a tree does not compute its spec on a target."""
    on_gpu = any(isinstance(s, TileStep) and s.level in (Level.BLOCK, Level.THREAD) for s in tree.steps)
    if on_gpu != (target.kind == "cuda"):
        return f"it is for {'blocks of threads' if on_gpu else 'cores'}, and the target is {target}."
    if not all(_begins_neutral(s) for s in tree.steps):
        return "its sums do not begin with 0, or with the neutral element."
    return ""


def _begins_neutral(step: Step) -> bool:
    if isinstance(step, MoveStep):
        return all(map(_begins_neutral, step.how.steps))
    first = step.init.root if isinstance(step, AccumulateStep) else None
    return first is None or (isinstance(first, Init) and first.value == step.before.initial)


def _on_operands(tree: Tree, p: Product | StageAnchor, target: Target, *, marked: bool = False) -> Kernel:
    """The kernel of a tree on the operands of an anchor. An operand that lies in memory unchanged is read there, unless
    the epilogue or another operand reads the same memory in another way."""
    task, result = p.task, p.result
    in_memory = {f.name: found for f in p.operands if (found := view_of(task, f)) is not None}
    if len({memory for memory, _ in in_memory.values()}) < len(in_memory):
        in_memory.clear()
    while True:
        buffers: Mapping[str, Buffer] = {
            f.name: in_memory[f.name][1] if f.name in in_memory else computed_buffer(task, f) for f in p.operands
        }
        computed = {f.name for f in p.operands} - in_memory.keys()
        kernel = kernel_on(tree, task.name, {**buffers, result.name: result}, {*computed, result.name}, marked=marked)
        reads = {buffers[f.name]: f.element for f in p.operands if f.name in computed}
        kernel = Fusion(task, target, reads, {result: p.store}).apply(kernel)
        read = _read(kernel)
        if read & {result, *reads}:
            raise ScheduleError(f"the strategy reads an operand of {task.name!r} that is computed as if it were memory")
        twice = [name for name, (memory, _) in in_memory.items() if memory in read]
        if not twice:
            break
        for name in twice:
            del in_memory[name]
    views = dict(in_memory.values())
    parameters = tuple(views.get(b, b) for b in (*task.inputs, *task.outputs))
    return replace(kernel, buffers=parameters, outputs=task.outputs, dims=task.dims)


def _read(kernel: Kernel) -> set[Buffer]:
    """The buffers that a kernel reads."""
    found = {e.buffer for e in loads_in(kernel.body)} | {
        m.buffer for m in (kernel.launch.maps if kernel.launch else ())
    }
    for s in walk_stmts(kernel.body):
        if isinstance(s, Move):
            found |= {s.src.buffer, s.dst.buffer}
        elif isinstance(s, MultiplyStmt):
            found |= {s.a.buffer, s.b.buffer, s.c.buffer}
        elif isinstance(s, Invoke):
            found |= {r.buffer for r in s.regions}
    return found
