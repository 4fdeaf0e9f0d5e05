"""The rule for reductions along rows and element-wise work on the rows: softmax, norms, sums, extrema, losses.

    pass0[block, row, part] = a fold of elements()                 over the vectors, of up to 16 bytes, of the row
    pass1[block, row, part] = a fold of elements(pass0[...])       ...

    Reduce(passes).tile(1, 4, 1).to(BLOCK)                         4 rows to a block, a warp to each
        .move("pass0", REGISTER, walk).accumulate_in(REGISTER)...  one pass after another, each by the same
    walk: .split(8 * 32).done(by=repeat(8) * spatial(4, 32))       whose threads hold the row in registers

A thread group takes a row; it is read once, however many reductions follow each other. Rows too long for registers, or
of symbolic length, are walked again in every pass, ``.split(team).unroll(4)``, and long sums in chains. If there are
too few rows to fill the GPU, several blocks share a row: if one walk is enough, the last of them to arrive combines the
parts (``support/last_block.py``); else they form a cluster, each of whose blocks holds its part and gets the results of
all (``support/cluster_reduction.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.construct import ceil_div, product
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.stages import Reduce
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Call, Dim, Kernel, Scope, Var
from taskmap.ir.nodes import Reduce as Sum
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.row_domain import RowDomain, Rows
from taskmap.schedules.cuda.row_reciprocal import with_reciprocals
from taskmap.schedules.cuda.rows.config import CHAIN, RowConfig, RowProblem, one_walk
from taskmap.schedules.cuda.rows.passes import RowPass, RowState, passes_of

_IN_FLIGHT = 4
"""Vectors that a thread requests from memory before it uses the first."""


def schedule_rows(task: Task, rows: Rows, target: GpuTarget, config: RowConfig | None = None) -> Kernel:
    """A kernel for a row task, as the module's docstring describes. Raises ScheduleError if a value is read across
    rows."""
    task = with_reciprocals(task)
    full, frame = rows.full, RowDomain(task, rows)
    for out in task.outputs:
        if not frame.is_full(out):
            require_count(task, [out], [full.shape[d] for d in rows.kept])
    axes = frame.axes()
    walks = frame.walks(axes)
    runs = frame.runs(walks)
    extents = [product([full.shape[a] for a in run]) for run in runs]
    problem = RowProblem(frame, axes, walks, runs, extents, product([full.shape[d] for d in frame.kept()]))
    c = config or problem.choose(target)
    if c.parts > 1 and not c.cluster and not one_walk(frame):
        raise ScheduleError(
            f"{task.name!r} cannot be shared by {c.parts} blocks",
            why="a second walk along the row needs the result of the first, which only the last block has.",
        )
    state = RowState(problem, c, frame.depths())
    folds = passes_of(state)
    shape = (ceil_div(problem.rows, c.teams), c.teams, c.parts)
    tree = row_strategy(shape, problem.length(c), c, folds)
    size = "x".join(print_dim(full.shape[d]) for d in rows.reduced)
    held = "registers" if c.slots else "memory" if c.parts == 1 or c.cluster else f"parts={c.parts}"
    held = f"{held}, cluster={c.parts}" if c.cluster else held
    passes = max(state.level.values()) + 1
    note = f"cuda.rows(row={size}, passes={passes}, team={c.team}, lanes={c.lanes}, slots={c.slots}, {held})"
    result = Buffer(tree.root.written, f32, shape)
    made = kernel_on(tree, task.name, {result.name: result}).launched(min_blocks=1)
    made = made.launched(cluster=(c.parts,)) if c.cluster else made
    made = replace(made, buffers=(*task.inputs, *task.outputs), outputs=task.outputs, dims=task.dims, note=note)
    return made if state.shared is None else state.shared.kernel(made)


def row_strategy(shape: Sequence[Dim], length: Dim, c: RowConfig, folds: Sequence[RowPass]) -> Strategy:
    """The schedule of the passes of rows: ``shape`` is (blocks, rows of a block, parts of a row), of ``length`` vectors
    each."""
    anchor = _anchor(shape, length, len(folds))
    order = (0, 3, 2, 1) if c.columns else None  # neighbouring threads take neighbouring columns
    held = max(c.slots, 1)
    by = repeat(1, 1, 1, held) * spatial(1, c.teams, 1, c.team, order=order)

    def walk(n: int) -> Callable[[Strategy], Strategy]:
        def of(row: Strategy) -> Strategy:
            row = row.split(CHAIN * c.team) if folds[n].is_chained else row
            return row.split(held * c.team).unroll(_IN_FLIGHT).done(folds[n], by=by)

        return of

    tree = Reduce(anchor).tile(1, c.teams, 1).to(Level.BLOCK).group(1)
    for n, stage in enumerate(anchor.stages[:-1]):
        tree = tree.move(stage.out.name, Scope.REGISTER, walk(n))
    return tree.accumulate_in(Scope.REGISTER).apply(walk(len(folds) - 1))


def _anchor(shape: Sequence[Dim], length: Dim, count: int) -> Task:
    """The passes as stages: each is a sum of elements that the passes before determine."""
    stages: list[Stage] = []
    for n in range(count):
        axes = tuple(Var(name) for name in ("block", "row", "part"))
        elements = Call("elements", tuple(s.out[axes] for s in stages), f32, 1)
        out = Buffer(f"pass{n}", f32, tuple(shape))
        stages.append(Stage(out, axes, Sum("sum", ((Var("unit"), length),), elements, f32)))
    return Task.of("rows", *stages)
