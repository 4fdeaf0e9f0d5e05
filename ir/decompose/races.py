"""Barriers that a strategy leaves out (``no_sync``): who would meet in shared memory without them.

A barrier is left out only where no other copy needs one at the same place. There, the threads that copy each element
are compared with those that hold what is read from it. Both follow from the tree, as task mappings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import constant_value, index
from taskmap.ir.decompose.barriers import Stages, left_out
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.micro.call import micro_kernel_of
from taskmap.ir.decompose.ownership import copy_mapping, owner_of
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import MoveStep, Tree
from taskmap.ir.errors import TaskmapError
from taskmap.ir.expressions import Scope
from taskmap.ir.lower.flatten import address


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Thread ``writer`` writes an element that thread ``reader`` reads."""

    writer: int
    reader: int
    element: tuple[int, ...]


def undecided(
    tree: Tree, body: ir.Body, stages: Stages, buffers: Mapping[ir.Buffer, int], threads: int
) -> dict[int, str]:
    """The steps whose barriers are left out although nobody knows whether threads meet, each with the reason.

    body: with all other barriers. buffers: the number of the step that fills each. Raises ScheduleError for threads
    that provably meet.
    """
    found: dict[int, str] = {}
    for number, buffer in sorted(((buffers[b], b) for b in left_out(body, stages)), key=itemgetter(0)):
        step = tree.steps[number]
        assert isinstance(step, MoveStep)
        why = _why_unknown(tree, number, step)
        meeting = None if why else _meeting(tree, number, step, threads)
        if meeting is not None:
            raise _refused(Tree(tree.root, tree.steps[: number + 1]), step, buffer, meeting)
        if why:
            found[number] = why
    return found


def _refused(tree: Tree, step: MoveStep, buffer: ir.Buffer, found: _Meeting) -> TaskmapError:
    lead = buffer.rank - len(found.element)
    at = (*[0] * max(0, lead), *found.element[-buffer.rank :])
    first = constant_value(address(buffer, tuple(index(i) for i in at)))
    size = buffer.dtype.bytes
    where = f"bytes {int(first) * size} to {int(first) * size + size - 1}" if first is not None else "an element"
    why = f"thread {found.writer} writes {where} of {buffer.name}, thread {found.reader} reads them, and nothing orders"
    way_out = "Leave no_sync() out, or let each thread copy what it reads: .move(..., by=a mapping)."
    return refusal("no_sync()", tree, f"{why} the two.", way_out, where=step.source)


def _why_unknown(tree: Tree, number: int, step: MoveStep) -> str:
    """The reason why it is not known which threads write, or read, an element; "" if it is."""
    if step.how.root.kind != "move":
        return f"{step.name} is computed there"
    if micro_kernel_of(step.how) is not None:
        return f"a micro-kernel copies {step.name}"
    if any(isinstance(s, MoveStep) for s in step.how.steps):
        return f"{step.name} is copied by way of another memory"
    later = [s for s in tree.steps[number + 1 :] if isinstance(s, MoveStep) and s.name == step.name]
    if any(s.scope is Scope.FRAGMENT for s in later):
        return f"nobody knows which lanes read which element of {step.name} into fragments"
    leaf = micro_kernel_of(tree)
    if leaf is not None and not later and tree.spec.level is not Level.THREAD:
        return f"a micro-kernel reads {step.name}"
    if tree.root.kind != "matmul":
        return f"stages read {step.name} at positions of their own"
    return ""


def _meeting(tree: Tree, number: int, step: MoveStep, threads: int) -> _Meeting | None:
    """Two threads of which one writes what the other reads, if there are any."""
    operand = step.after.operand(step.name)
    assert operand is not None
    writers = _first_holders(copy_mapping(step, threads))
    readers = owner_of(tree.steps[number + 1 :], step.after, operand)
    for thread in range(threads):
        for element in readers(thread % readers.num_workers):
            writer = writers.get(tuple(element))
            if writer is not None and writer != thread:
                return _Meeting(writer, thread, tuple(element))
    return None


def _first_holders(mapping: TaskMapping) -> dict[tuple[int, ...], int]:
    return {tuple(task): worker for worker in range(mapping.num_workers) for task in mapping(worker)}
