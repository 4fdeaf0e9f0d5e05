"""A tree as text: each spec with the step that decomposes it, the trees of copies indented."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.ir.decompose.steps import AccumulateStep, MoveStep, Tree


def tree_lines(tree: Tree, indent: int = 0) -> Iterator[str]:
    """The lines of a tree: a spec, then its step; the sub-trees of a step stand beneath it."""
    pad = "  " * indent
    for step in tree.steps:
        yield f"{pad}{f'{step.before}':44} {step}"
        if isinstance(step, AccumulateStep | MoveStep):
            yield from tree_lines(step.init if isinstance(step, AccumulateStep) else step.how, indent + 2)
    if not tree.is_done:
        yield f"{pad}{tree.spec}"
    for step in tree.steps:
        if isinstance(step, AccumulateStep):
            yield from tree_lines(step.store, indent + 2)


def show(tree: Tree) -> str:
    """The whole tree as text."""
    return "\n".join(line.rstrip() for line in tree_lines(tree))
