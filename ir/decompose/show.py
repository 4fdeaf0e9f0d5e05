"""A tree as text: each spec with the step that decomposes it, the trees of copies indented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from taskmap.ir.decompose.steps import AccumulateStep, MoveStep, Step, Tree

_NONE: Mapping[int, str] = MappingProxyType({})
_WIDEST = 100
"""The last column in which notes begin."""


def tree_rows(tree: Tree, indent: int = 0) -> Iterator[tuple[Step | None, str]]:
    """The steps of a tree in the order in which they are shown, each with its line: a spec, then its step. The
    sub-trees of a step stand beneath it; None: the spec that is left."""
    pad = "  " * indent
    for step in tree.steps:
        yield step, f"{pad}{f'{step.before}':44} {step}"
        if isinstance(step, AccumulateStep | MoveStep):
            yield from tree_rows(step.init if isinstance(step, AccumulateStep) else step.how, indent + 2)
    if not tree.is_done:
        yield None, f"{pad}{tree.spec}"
    for step in tree.steps:
        if isinstance(step, AccumulateStep):
            yield from tree_rows(step.store, indent + 2)


def tree_lines(tree: Tree) -> Iterator[str]:
    """The lines of a tree."""
    return (line for _, line in tree_rows(tree))


def show(tree: Tree, notes: Mapping[int, str] = _NONE, barriers: Mapping[int, int] = MappingProxyType({})) -> str:
    """The whole tree as text. notes: at the end of rows, by their numbers. barriers: how many stand before a row."""
    rows = [line.rstrip() for line in tree_lines(tree)]
    column = min(_WIDEST, max((len(rows[number]) for number in notes), default=0))
    lines = []
    for number, line in enumerate(rows):
        count, note = barriers.get(number, 0), notes.get(number)
        if count:
            pad = len(line) - len(line.lstrip())
            lines.append(f"{' ' * pad}{'barrier' if count == 1 else f'{count} barriers'}")
        lines.append(f"{line:{column}}  # {note}" if note else line)
    return "\n".join(lines)
