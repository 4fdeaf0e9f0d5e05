"""The tree of a strategy beside the text of its kernel: a box for each row, which marks its lines."""

from __future__ import annotations

from itertools import groupby

from taskmap.report.html.text import esc
from taskmap.report.records import TreeReport


def tree_html(tree: TreeReport) -> str:
    """The rows as boxes, indented where they belong to a copy; barriers stand between them."""
    parts: list[str] = []
    for row in tree.rows:
        place = f'style="margin-left:{row.depth * 1.4:.1f}em"'
        if row.barriers:
            count = "barrier" if row.barriers == 1 else f"{row.barriers} barriers"
            parts.append(f'<li class="barrier" {place}>{count}</li>')
        note = f"<i>{esc(row.note)}</i>" if row.note else ""
        box = f"<b>{esc(row.spec)}</b><code>{esc(row.step)}</code>{note}"
        kind = f"box {esc(row.level.lower())}"
        parts.append(f'<li class="{kind}" {place} data-row="{row.number}" tabindex="0">{box}</li>')
    return f'<ol class="tree" aria-label="The strategy\'s tree">{"".join(parts)}</ol>'


def lines_attribute(tree: TreeReport) -> str:
    """The rows of a text's lines as an attribute, runs as "row×count"."""
    runs = ((row, len(list(run))) for row, run in groupby(tree.lines))
    return f' data-rows="{" ".join(f"{row}x{count}" for row, count in runs)}"' if tree.lines else ""
