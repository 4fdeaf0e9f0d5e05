"""Task mappings on a page: small grids of a drawing."""

from __future__ import annotations

from taskmap.ir.algebra.grid_picture import Drawing, Grid
from taskmap.report.html.text import esc

_HEIGHT = 17
_CHARACTER = 6.2
_MOST_GRIDS = 4


def mapping_svg(drawing: Drawing, what: str) -> str:
    """The first grids of a drawing as SVG: one colour for each worker."""
    grids = [g for g in drawing.grids if g.rows][:_MOST_GRIDS]
    parts: list[str] = []
    width, top = 0.0, 0
    for grid in grids:
        body, wide, high = _grid(grid, top)
        parts.append(body)
        width, top = max(width, wide), top + high
    more = len(drawing.grids) - len(grids)
    left = f" {more} more grids are not shown." if more > 0 else ""
    return (
        f'<svg class="mapping" viewBox="0 0 {width:.0f} {top}" width="{width:.0f}" role="img">'
        f"<title>{esc(what)}</title><desc>{esc(drawing.title)}.{left}</desc>{''.join(parts)}</svg>"
    )


def _grid(grid: Grid, top: int) -> tuple[str, float, int]:
    longest = max(len(cell.label) for row in grid.cells for cell in row)
    wide = max(18.0, longest * _CHARACTER + 6)
    margin = max(len(str(row)) for row in grid.rows) * _CHARACTER + 8
    parts: list[str] = []
    if grid.caption:
        parts.append(f'<text x="2" y="{top + 12}" class="start">{esc(grid.caption)}</text>')
        top += _HEIGHT
    for i, column in enumerate(grid.columns):
        x = margin + (i + 0.5) * wide
        parts.append(f'<text x="{x:.0f}" y="{top + 12}" class="axis">{"…" if column < 0 else column}</text>')
    for j, (row, cells) in enumerate(zip(grid.rows, grid.cells, strict=True)):
        y = top + (j + 1) * _HEIGHT
        parts.append(f'<text x="{margin / 2:.0f}" y="{y + 12}" class="axis">{"⋮" if row < 0 else row}</text>')
        for i, cell in enumerate(cells):
            x = margin + i * wide
            fill = "none" if cell.hue is None else f"hsl({cell.hue * 137.508 % 360:.0f},65%,82%)"
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{_HEIGHT}" fill="{fill}"/>')
            kind = "" if cell.hue is not None else ' class="axis"'
            parts.append(f'<text x="{x + wide / 2:.0f}" y="{y + 12}"{kind}>{esc(cell.label)}</text>')
    height = (len(grid.rows) + 1) * _HEIGHT + 6
    return "".join(parts), margin + wide * len(grid.columns) + 2, height + (_HEIGHT if grid.caption else 0)
