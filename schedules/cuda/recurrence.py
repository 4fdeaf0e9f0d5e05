"""Recurrences on a GPU: a block for each sequence and direction, with its states in shared memory.

    block (sequence, direction):
        state = initial
        for step:
            thread j:  state'[j], out[row] = the definition's phases, from state @ weights and the step's input
            barrier

A thread walks the state for its units; the threads of a block read neighbouring weights. Sequences never wait for each
other.
"""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.construct import index, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Expr, Kernel, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.recurrence_domain import find_recurrence
from taskmap.schedules.common.recurrence_memory import RecurrenceMemory
from taskmap.schedules.cuda.support.launch import WARP, Launch
from taskmap.schedules.cuda.support.vectors import fills

_MOST_THREADS = 512


def schedule_recurrence(task: Task, target: GpuTarget) -> Kernel | None:
    """The kernel of a task that is a recurrence, or None for any other task."""
    frame = find_recurrence(task)
    if frame is None:
        return None
    e = frame.e
    (batch_axis, batch), (direction_axis, directions), (unit_axis, units) = e.axes
    hidden = static_size(units)
    if hidden is None:
        raise ScheduleError("a recurrence of a symbolic number of units")
    threads = min(_MOST_THREADS, -(-hidden // WARP) * WARP)
    rounds = -(-hidden // threads)
    launch = Launch(task, (batch, directions), threads)
    values, (sequence, direction) = launch.begin()
    b = launch.b
    memory = RecurrenceMemory(frame, b, Scope.SHARED, (), hidden)

    def each(outer: Inliner, body: Callable[[Inliner, Expr, dict[Var, Expr]], None]) -> None:
        with b.loop("round", rounds) as turn:
            inside = outer.nested()
            inside.bind(turn, rounds)
            unit = inside.simplifier(turn * threads + THREAD)
            with b.when(True if fills(hidden, threads) else unit < hidden):
                local = inside.nested()
                body(local, unit, {batch_axis: sequence, direction_axis: direction, unit_axis: unit})

    each(values.nested(), lambda local, unit, known: memory.begin(local, (unit,), known))
    b.barrier()
    with b.loop("step", index(e.steps)) as step:
        inside = values.nested()
        inside.bind(step, e.steps)
        memory.turn(inside, step)
        for part in frame.passes:
            each(
                inside.nested(),
                lambda local, unit, known, part=part: memory.step(local, part, (unit,), {**known, e.step: step}),  # type: ignore[misc]
            )
            b.barrier()
    memory.turn(values, index(e.steps))
    each(values.nested(), lambda local, unit, known: memory.end(local, (unit,), known))
    sizes = "x".join(print_dim(n) for n in (e.steps, batch, directions, hidden))
    return launch.kernel(f"cuda.recurrence({sizes}, {frame.stage.label}, threads={threads})")
