"""Trees are values: they print as in the paper, compare by meaning, and their specs have a meaning in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, Init, MatMul, Move, Scope, Strategy, dim
from taskmap.ir.decompose.levels import Level
from taskmap.ir.types import f16, f32


def copy_a(copy: Strategy) -> Strategy:
    """A copy in two rounds."""
    return copy.tile(32, 8).tile(1, 1).to(THREAD).done()


def product() -> Strategy:
    """A product by 256 threads."""
    return (
        MatMul(dim("m"), 257, dim("k"))
        .tile(64, 64).to(BLOCK).group(4)
        .accumulate_in(REGISTER, init=1.0)
        .split(8)
        .move("a", SHARED, copy_a).storage("column").pad(4)
        .tile((2, 32), 4).to(THREAD).layout("column")
        .split(1).unroll()
        .tile(1, 1).done()
    )  # fmt: skip


def test_a_tree_prints_its_specs_and_steps(golden: Callable[[str, str], None]) -> None:
    """A finished one with barriers, memory and workers; the others without."""
    golden("decompose_tree.txt", str(product()))
    assert str(MatMul(64, 64, 8).tile(32, 32)) == (
        "MatMul(64,64,8)(GL,GL,GL)(Kernel)            .tile(32, 32)\nMatMul(32,32,8)(GL,GL,GL)(Kernel)"
    )


def test_a_tree_is_a_value() -> None:
    tree = MatMul(64, 64, 8).tile(32, 32)
    assert tree == MatMul(64, 64, 8).tile(32, 32)
    assert tree != MatMul(64, 64, 8).tile(32, 16)
    assert hash(tree) == hash(MatMul(64, 64, 8).tile(32, 32))
    given_away = tree.to(BLOCK)
    assert tree.steps[-1].after.level is Level.KERNEL
    assert given_away.spec.level is Level.BLOCK
    with pytest.raises(AttributeError):
        tree.steps = ()  # type: ignore[misc]  # that it is frozen is the point


def test_specs_print_as_in_the_paper() -> None:
    assert str(MatMul(128, 128, 8)) == "MatMul(128,128,8)(GL,GL,GL)(Kernel)"
    assert str(MatMul(128, 128, 8, batch=(4,)).tile(64, 64).to(BLOCK).spec) == "MatMul(1,64,64,8)(GL,GL,GL)(Block)"
    assert str(Move(f32[dim("rows"), 8])) == "Move(src:rowsx8)(GL->GL)(Kernel)"
    moved = MatMul(16, 8, 16, a=f16, b=f16).moving("b", Scope.REGISTER)
    assert str(moved) == "Move(b:16x8)(GL->RF)(Kernel)"


def test_apply_names_a_part() -> None:
    def to_warps(tree: Strategy, rows: int, *, columns: int) -> Strategy:
        return tree.tile(rows, columns).to(WARP)

    block = MatMul(64, 64, 8).tile(64, 64).to(BLOCK)
    assert block.apply(to_warps, 32, columns=16) == block.tile(32, 16).to(WARP)


def test_specs_mean_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((5, 7), (7, 3), (5, 3)))
    spec = MatMul(5, 3, 7)
    np.testing.assert_allclose(spec.meaning(a=a, b=b, c=c), c + a @ b, rtol=1e-6)
    np.testing.assert_array_equal(Move(f32[5, 7]).meaning(src=a), a)
    first = spec.setting("c", Scope.REGISTER, 2.0)
    assert isinstance(first, Init)
    np.testing.assert_array_equal(first.meaning(dst=c), np.full((5, 3), 2, np.float32))
    whole = sum(MatMul(5, 3, 1).meaning(a=a[:, k : k + 1], b=b[k : k + 1], c=np.zeros_like(c)) for k in range(7))
    np.testing.assert_allclose(whole + c, spec.meaning(a=a, b=b, c=c), rtol=1e-5, atol=1e-6)
