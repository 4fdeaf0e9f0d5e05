"""The tree of the strategy that made a kernel, and the lines of the kernel's text that come from each of its rows.

The kernel is made once more, with its statements marked by rows. Comments then name them in its text, which is
otherwise the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taskmap.backend.cpu.codegen import generate as generate_c
from taskmap.backend.cuda.codegen import generate as generate_cuda
from taskmap.ir.decompose.facts import facts_of
from taskmap.ir.decompose.lowering import ROWS
from taskmap.ir.decompose.show import tree_rows
from taskmap.ir.decompose.steps import Tree
from taskmap.ir.errors import TaskmapError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.twins import inlined
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget, Target
from taskmap.ir.task import Task
from taskmap.report.records import TreeReport, TreeRow
from taskmap.schedules import Choice
from taskmap.schedules.strategies.offer import OfferedStrategy
from taskmap.targets.source_record import Source

_MARK = re.compile(rf" *(?://\s*{ROWS}:(\d+)|/\* (\d+) \*/)$")
_COMMENT = re.compile(r" *//.*$")
_INDENT = 4


def tree_of(
    offers: Sequence[OfferedStrategy], task: Task, target: Target, source: Source, choice: Choice, *, simulated: bool
) -> TreeReport | None:
    """The tree of the strategy that ``choice`` names and that made the kernel of ``task``; None if a template did.
    simulated: micro-kernels that are text are replaced by their twins."""
    offer = next((o for o in offers if o.choice == choice), None)
    if offer is None:
        return None
    try:
        tree, kernel = offer.marked(task, target)
        symbol, text = _marked_text(inlined(kernel, texts=simulated), target)
    except TaskmapError:
        return None
    return TreeReport(tuple(_rows(tree)), _lines(text.replace(symbol, source.symbol), source.text))


def _rows(tree: Tree) -> Iterator[TreeRow]:
    notes, barriers = facts_of(tree)
    for number, (step, line) in enumerate(tree_rows(tree)):
        if step is None:
            continue
        depth = (len(line) - len(line.lstrip())) // _INDENT
        of, by = str(step.before), str(step).strip()
        yield TreeRow(number, depth, of, by, step.before.level.value, notes.get(number, ""), barriers.get(number, 0))


def _marked_text(kernel: Kernel, target: Target) -> tuple[str, str]:
    """Symbol and text of a kernel, with comments that name rows."""
    if isinstance(target, GpuTarget):
        made = generate_cuda(lower(kernel, target=target), target)
        return made.symbol, made.text
    c = generate_c(lower(replace(kernel, note=""), target=target), target.vector_bytes, file=ROWS)
    return c.symbol, c.text


def _lines(marked: str, text: str) -> tuple[int, ...]:
    """The row of each line of a kernel's text; empty if the marked text is another one."""
    lines, shown = marked.strip().splitlines(), text.strip().splitlines()
    if [_COMMENT.sub("", _MARK.sub("", line)) for line in lines] != [_COMMENT.sub("", line) for line in shown]:
        return ()
    row, rows = -1, []
    for line in lines:
        found = _MARK.search(line)
        row = int(found[1] or found[2]) if found else row if line.startswith(" ") else -1
        rows.append(row)
    return tuple(rows)
