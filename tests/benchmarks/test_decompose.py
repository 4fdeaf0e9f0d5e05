"""The shares of data movement that `python -m benchmarks decompose` counts, on trees small enough to count by hand."""

from __future__ import annotations

from benchmarks.decompose import FOLDER, moved_of_kernel, moved_of_tree, strategies
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, MatMul
from taskmap.ir.printer import print_kernel


def test_shares_of_a_small_tree() -> None:
    """Of 13 decompositions, both moves and their copies, the sums, their first value and their store."""
    tree = MatMul(32, 32, 32).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(8)
    finished = tree.move("a", SHARED).move("b", SHARED).tile(2, 2).to(THREAD).split(1).tile(1, 1).done()
    assert moved_of_tree(finished) == 7 / 13


def test_shares_of_a_kernel() -> None:
    text = "kernel f(x):\n  a = shared(f16[4])\n  barrier()\n  for i in range(4):\n    move(a[0], x[i])\n  y = a[0] + 1"
    assert moved_of_kernel(text) == 3 / 5
    tree = MatMul(32, 32, 32).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(1).tile(2, 2).to(THREAD)
    assert 0 < moved_of_kernel(print_kernel(tree.tile(1, 1).done().kernel())) < 0.5


def test_every_strategy_is_counted() -> None:
    others = {"__init__", "cpu_convolution", "epilogues", "softmax_rows", "transpose"}
    files = {p.stem for p in FOLDER.glob("*.py")} - others
    assert set(strategies()) == files
