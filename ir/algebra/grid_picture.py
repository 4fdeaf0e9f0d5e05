"""Grids of labelled cells, as terminal text and as SVG: the pictures of mappings and layouts."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

GAP = -1  # marks the omitted rows or columns
CELL_HEIGHT = 22  # of the SVG, in pixels
CHAR_WIDTH = 7.5


@dataclass(frozen=True, slots=True)
class Cell:
    """A label, and a number that selects its colour; cells with equal numbers share a colour. None: white."""

    label: str
    hue: int | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Two dimensions of the picture. rows and columns hold indices, or GAP in place of omitted ones."""

    caption: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A picture of one or more grids. Prints itself; ``svg()`` is the same picture as SVG."""

    title: str
    grids: tuple[Grid, ...]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.title, *map(_text, self.grids)]))

    __repr__ = __str__

    def svg(self) -> str:
        """The picture as an SVG document."""
        return document(*self.elements())

    def elements(self) -> tuple[list[str], float, float]:
        """The elements of SVG that the picture consists of, its width and its height."""
        body: list[str] = []
        width, top = len(self.title) * CHAR_WIDTH, 0
        if self.title:
            body.append(_svg_text(4, CELL_HEIGHT * 0.7, self.title, anchor="start"))
            top = CELL_HEIGHT
        for grid in self.grids:
            elements, grid_width, height = _svg_grid(grid, top)
            body += elements
            width, top = max(width, grid_width), top + height
        return body, width + 8, top + 4

    def _repr_svg_(self) -> str:
        """The representation that a notebook displays."""
        return self.svg()

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")


def document(elements: Sequence[str], width: float, height: float) -> str:
    """Elements of SVG as a document of this size."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="monospace" font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *elements, "</svg>"]) + "\n"


def picture(title: str, shape: Sequence[int], cell: Callable[[tuple[int, ...]], Cell], limit: int) -> Drawing:
    """Draw every index of shape as cell(index): the last two dimensions as a grid, one grid per index of the others.

    With fewer dimensions there is one row, or one cell. The middle of an axis longer than limit is omitted, and so are
    the grids between the first few and the last when there are many.
    """
    *outer, height, width = (1,) * (2 - len(shape)) + tuple(shape)
    rows, columns = _shown(height, limit), _shown(width, limit)

    def grid(plane: tuple[int, ...]) -> Grid:
        def at(row: int, column: int) -> Cell:
            if GAP in (row, column):
                return Cell("…" if column == GAP else "⋮")
            return cell((*plane, row, column)[-len(shape) :] if shape else ())

        caption = f"[{', '.join(map(str, plane))}, :, :]" if plane else ""
        return Grid(caption, rows, columns, tuple(tuple(at(row, column) for column in columns) for row in rows))

    planes = list(itertools.islice(itertools.product(*map(range, outer)), limit + 1))
    grids = [grid(plane) for plane in planes[:limit]]
    if len(planes) > limit:
        last = tuple(extent - 1 for extent in outer)
        grids += [Grid("…", (), (), ()), grid(last)]
    return Drawing(title, tuple(grids))


def _shown(extent: int, limit: int) -> tuple[int, ...]:
    if extent <= limit:
        return tuple(range(extent))
    tail = max(1, limit // 4)
    return (*range(max(1, limit - tail)), GAP, *range(extent - tail, extent))


def _text(grid: Grid) -> str:
    if not grid.rows:
        return grid.caption
    column_labels = ["…" if column == GAP else str(column) for column in grid.columns]
    row_labels = ["⋮" if row == GAP else str(row) for row in grid.rows]
    width = max(map(len, [*column_labels, *(cell.label for row in grid.cells for cell in row)]))
    margin = max(map(len, row_labels))

    def line(label: str, rule: str, items: list[str]) -> str:
        return f"{label:>{margin}} {rule} {' '.join(f'{item:>{width}}' for item in items)}"

    lines = [line("", " ", column_labels), f"{'':>{margin}} ┌{'─' * ((width + 1) * len(column_labels) + 1)}"]
    lines += [line(label, "│", [cell.label for cell in row]) for label, row in zip(row_labels, grid.cells, strict=True)]
    return "\n".join([grid.caption, *lines] if grid.caption else lines)


def _svg_grid(grid: Grid, top: int) -> tuple[list[str], float, int]:
    """The SVG elements of one grid drawn below `top`, its width, and its height."""
    elements: list[str] = []
    begin = top
    if grid.caption:
        elements.append(_svg_text(4, top + CELL_HEIGHT * 0.7, grid.caption, anchor="start"))
        top += CELL_HEIGHT
    if not grid.rows:
        return elements, 0, top - begin
    labels = ["…" if column == GAP else str(column) for column in grid.columns]
    longest = max(map(len, [*labels, *(cell.label for row in grid.cells for cell in row)]))
    width = max(CELL_HEIGHT, longest * CHAR_WIDTH + 8)
    margin = max(len(str(row)) for row in grid.rows) * CHAR_WIDTH + 10
    for x, label in enumerate(labels):
        elements.append(_svg_text(margin + (x + 0.5) * width, top + CELL_HEIGHT * 0.7, label, fill="gray"))
    for y, (row, cells) in enumerate(zip(grid.rows, grid.cells, strict=True)):
        upper = top + (y + 1) * CELL_HEIGHT
        elements.append(_svg_text(margin / 2, upper + CELL_HEIGHT * 0.7, "⋮" if row == GAP else str(row), fill="gray"))
        for x, cell in enumerate(cells):
            left = margin + x * width
            elements.append(
                f'<rect x="{left:.1f}" y="{upper}" width="{width:.1f}" height="{CELL_HEIGHT}" '
                f'fill="{colour(cell.hue)}" stroke="#888"/>'
            )
            elements.append(_svg_text(left + width / 2, upper + CELL_HEIGHT * 0.7, cell.label))
    height = (len(grid.rows) + 1) * CELL_HEIGHT + CELL_HEIGHT // 2
    return elements, margin + width * len(labels), top + height - begin


def _svg_text(x: float, y: float, text: str, *, anchor: str = "middle", fill: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{html.escape(text)}</text>'


def colour(hue: int | None) -> str:
    """The colour of cells with this number."""
    if hue is None:
        return "white"
    return f"hsl({hue * 137.508 % 360:.0f}, 65%, 85%)"  # the golden angle keeps neighbouring numbers apart
