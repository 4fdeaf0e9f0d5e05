"""The tree of a strategy beside its kernel: rows, and the lines of the text that come from each."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import taskmap
from examples.strategies.mma_small import mma_small
from taskmap.decompose import CORE, REGISTER, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.report.presentation import Report
from taskmap.report.records import KernelReport, TreeReport, TreeRow
from taskmap.report.trees import tree_of
from taskmap.schedules import Choice
from tests.taskmap.report.test_html import HOSTILE, sound


def rows_of_cores(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """Tiles of 6×16 for each core."""
    return MatMul(m, n, k, batch=batch).tile(6, 16).to(CORE).accumulate_in(REGISTER).split(1).done()


def explained(strategy: object, dtype: torch.dtype = torch.float32, **options: object) -> Report:
    layer = nn.Sequential(nn.Linear(48, 32), nn.GELU()).eval().to(dtype)
    with torch.no_grad():
        return taskmap.explain(layer, torch.randn(33, 48).to(dtype), options={"strategies": [strategy], **options})


def made_by_strategy(report: Report) -> tuple[KernelReport, TreeReport]:
    """The kernel of the strategy, and its tree; templates have none."""
    found = [(k, tree) for k in report.kernels if (tree := k.tree()) is not None]
    assert all(k.schedule.startswith("strategy ") for k, _ in found)
    (pair,) = found
    return pair


def lines_of(kernel: KernelReport, tree: TreeReport, step: str) -> list[str]:
    """The lines of a kernel's text that come from the rows with this step."""
    numbers = {row.number for row in tree.rows if step in row.step}
    return [line for line, row in zip(kernel.text.strip().splitlines(), tree.lines, strict=True) if row in numbers]


class Marked(HTMLParser):
    """The data-row of each box, and the data-rows of each text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.boxes: list[int] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.boxes += [int(given["data-row"] or -1)] if "data-row" in given else []
        self.texts += [given["data-rows"] or ""] if "data-rows" in given else []


def test_lines_of_c_come_from_rows() -> None:
    report = explained(rows_of_cores, target="cpu")
    kernel, tree = made_by_strategy(report)
    assert [row.step for row in tree.rows][:2] == [".tile(6, 16).to(CORE)", ".accumulate_in(REGISTER)"]
    assert [row.depth for row in tree.rows][:3] == [0, 0, 1]
    assert len(tree.lines) == len(kernel.text.strip().splitlines())
    assert any("for (i64 k" in line for line in lines_of(kernel, tree, ".split(1)"))
    assert {*tree.lines} - {-1} <= {row.number for row in tree.rows}
    page = report.html()
    sound(page)
    marked = Marked(page)
    assert marked.boxes == [row.number for row in tree.rows]
    (runs,) = marked.texts
    assert [int(r) for r, n in (run.split("x") for run in runs.split()) for _ in range(int(n))] == list(tree.lines)


def test_lines_of_cuda_come_from_rows() -> None:
    report = explained(mma_small, torch.float16, target="cuda-sim", gpu="A100")
    kernel, tree = made_by_strategy(report)
    assert any("tm_mma" in line for line in lines_of(kernel, tree, ".done()"))
    assert all("tm_mma" not in line for line in lines_of(kernel, tree, ".move("))
    barriers = sum(row.barriers for row in tree.rows)
    assert barriers == len(re.findall(r"tm_barrier\(\)", kernel.text)) > 0
    assert any("bytes" in row.note for row in tree.rows)
    assert "row:" not in kernel.text
    page = report.html()
    sound(page)
    assert page.count('<li class="barrier"') == sum(row.barriers > 0 for row in tree.rows)


def test_a_page_without_strategies_has_no_trees() -> None:
    with torch.no_grad():
        report = taskmap.explain(nn.Linear(8, 8).eval(), torch.randn(4, 8))
    assert all(k.tree() is None for k in report.kernels)
    assert 'class="tree"' not in report.html()


@pytest.mark.parametrize("lines", [(), (3, 3, -1)])
def test_hostile_rows_are_text(lines: tuple[int, ...]) -> None:
    with torch.no_grad():
        report = taskmap.explain(nn.Linear(8, 8).eval(), torch.randn(4, 8))
    tree = TreeReport((TreeRow(3, 1, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 2),), lines)
    kernels = tuple(replace(k, tree=lambda: tree) for k in report.kernels)
    page = replace(report, kernels=kernels).html()
    sound(page)
    assert "2 barriers" in page


def test_no_tree_without_an_offer() -> None:
    choice = Choice("strategy", "rows_of_cores")
    assert tree_of((), None, None, None, choice, simulated=False) is None  # type: ignore[arg-type]  # unused
