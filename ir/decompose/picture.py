"""A tree as a drawing (Fireiron, PACT 2020, figure 3): specs are boxes, steps lead from one to the next.

    ┌────────────────────────┐
    │ MatMul(...)(Block)     │── a ──┐ ┌───────────────────────────┐
    └────────────────────────┘       └─│ Move(a:...)(GL->SH)(Block)│ ...
      .move('a', SHARED)               └───────────────────────────┘
    ┌────────────────────────┐
    │ MatMul(...)(Block)     │

Copies and first and last values stand to the right of the step that makes them. Below the tree, each operand has a
picture of its mapping: the worker that holds or copies each element.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir.algebra.grid_picture import CHAR_WIDTH, Drawing, colour, document
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.ownership import mapping_of
from taskmap.ir.decompose.steps import AccumulateStep, DoneStep, MoveStep, Step, Tree
from taskmap.ir.errors import TaskmapError

_LINE, _GAP, _INDENT, _MARGIN = 22, 6, 60, 8
_MOST_CELLS = 16
"""Along each axis of a mapping's picture."""


@dataclass(frozen=True, slots=True)
class _Picture:
    """Elements of SVG, in a box of this size whose upper left corner is at (0, 0)."""

    elements: tuple[str, ...]
    width: float
    height: float

    def at(self, x: float, y: float) -> str:
        """The picture as one element, moved."""
        return "\n".join([f'<g transform="translate({x:g} {y:g})">', *self.elements, "</g>"])


def svg_of(tree: Tree) -> str:
    """The tree, and the mappings of its operands, as an SVG document."""
    top, below = _tree(tree), _MARGIN + _LINE
    elements, width, height = [top.at(_MARGIN, _MARGIN)], top.width, 0.0
    x, y = float(_MARGIN), top.height + below
    for drawing in _mappings(tree):
        found, wide, high = drawing.elements()
        elements.append(_Picture(tuple(found), wide, high).at(x, y))
        x, height = x + wide + _LINE, max(height, high)
    return document(elements, max(width, x) + _MARGIN, y + height)


def _tree(tree: Tree) -> _Picture:
    elements, width, y = [], 0.0, 0.0
    for step in tree.steps:
        picture = _step(step)
        elements.append(picture.at(0, y))
        width, y = max(width, picture.width), y + picture.height
    if not tree.is_done:
        open_end = _box(f"{tree.spec}", tree.spec.level, dashed=True)
        elements.append(open_end.at(0, y))
        width, y = max(width, open_end.width), y + open_end.height
    return _Picture(tuple(elements), width, y)


def _step(step: Step) -> _Picture:
    """The spec, the step below it, and the trees that the step makes beside it."""
    box = _box(f"{step.before}", step.before.level, leaf=isinstance(step, DoneStep))
    elements = [box.at(0, 0), _text(_MARGIN, box.height + _LINE * 0.7, f"{step}".strip(), "black")]
    width = max(box.width, _MARGIN + len(f"{step}") * CHAR_WIDTH)
    height = below = box.height + _LINE
    left, y = width + _INDENT, 0.0
    for name, side in _sides(step):
        picture = _tree(side)
        middle = y + _LINE / 2 + 2
        elements += [
            f'<path d="M {box.width:g} {_LINE / 2 + 2} H {left - _INDENT / 2:g} V {middle:g} H {left:g}" '
            'fill="none" stroke="gray" stroke-dasharray="4 3"/>',
            _text(left - _INDENT / 2 + 3, middle - 4, name, "gray"),
            picture.at(left, y),
        ]
        width, y = max(width, left + picture.width), y + picture.height + _GAP
    height = max(height, y)
    if not isinstance(step, DoneStep):
        elements.append(f'<path d="M 4 {box.height:g} V {height:g}" stroke="gray"/>')
        return _Picture(tuple(elements), width, height)
    return _Picture(tuple(elements), width, max(below, y))


def _sides(step: Step) -> list[tuple[str, Tree]]:
    if isinstance(step, MoveStep):
        return [(step.name, step.how)]
    return [("first", step.init), ("last", step.store)] if isinstance(step, AccumulateStep) else []


def _box(text: str, level: Level, *, leaf: bool = False, dashed: bool = False) -> _Picture:
    width, height = len(text) * CHAR_WIDTH + 16, _LINE + 4
    fill = colour(list(Level).index(level))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    corners = f' rx="{_LINE / 2}"' if leaf else ""
    box = f'<rect width="{width:g}" height="{height}" fill="{fill}" stroke="black"{dash}{corners}/>'
    return _Picture((box, _text(8, _LINE * 0.75, text, "black")), width, height)


def _text(x: float, y: float, text: str, fill: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}">{html.escape(text)}</text>'


def _mappings(tree: Tree) -> Iterator[Drawing]:
    """The pictures of the operands that have a mapping: of a finished tree, with tiles of known size."""
    for operand in tree.root.operands:
        try:
            mapping = mapping_of(tree, operand.name)
        except TaskmapError:
            continue
        drawn = mapping.draw(limit=_MOST_CELLS)
        yield Drawing(f"{operand.name}: {mapping}", drawn.grids)
