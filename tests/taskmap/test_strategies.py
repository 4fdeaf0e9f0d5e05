"""The strategies of examples/strategies: in the simulator, or on this CPU, at sizes that are and are not multiples."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import taskmap
from taskmap.decompose import Strategy, dim
from taskmap.ir.nodes import Kernel

FOLDER = Path(__file__).parents[2] / "examples" / "strategies"
ON_CPU = ["cpu_outer_product"]
ON_GPU = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in ("__init__", *ON_CPU))
EDITS = {
    "maxwell": ("tile(128, 128)", "tile(128, 64)", "tile(64, 32)", "tile(64, 16)"),
    "double_buffering": ("tile(64, 64)", "tile(64, 64)", "split(8)", "split(8)"),
}


def strategy(name: str) -> Callable[..., Strategy]:
    """The function that a file defines under its own name."""
    found: Callable[..., Strategy] = getattr(import_module(f"examples.strategies.{name}"), name)
    return found


def operands(tree: Strategy, *shape: int) -> list[NDArray[Any]]:
    """Random a and b of shape (batch..., m, n, k), and a poisoned c."""
    *batch, m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    a, b, c = (np.dtype(o.dtype.name.replace("f", "float")) for o in tree.root.operands)
    return [
        rng.standard_normal((*batch, m, k)).astype(a),
        rng.standard_normal((*batch, k, n)).astype(b),
        np.full((*batch, m, n), np.nan, c),
    ]


def close(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
    """c = a @ b, as exactly as sums in f32 allow."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, exact, rtol=0, atol=2e-6 * a.shape[-1])


def simulate(kernel: Kernel, arrays: list[NDArray[Any]], **options: Any) -> taskmap.Simulation:
    found = taskmap.simulate(kernel, *arrays, seconds=600.0, **options)
    found.check()
    assert found.deterministic
    close(*arrays)
    return found


@pytest.mark.parametrize("name", [*ON_GPU, *ON_CPU])
def test_a_strategy_is_short(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 50


@pytest.mark.parametrize("name", ON_GPU)
def test_whole_tiles_in_six_orders_of_threads(name: str) -> None:
    tree = strategy(name)(128, 128, 128)
    assert simulate(tree.kernel(), operands(tree, 128, 128, 128)).runs == 6


@pytest.mark.parametrize("name", ON_GPU)
def test_one_kernel_for_all_sizes(name: str) -> None:
    tree = strategy(name)(dim("m"), dim("n"), dim("k"))
    for shape in ((129, 257, 65), (7, 5, 3), (64, 1, 130)):
        simulate(tree.kernel(), operands(tree, *shape), seeds=(0, 1))


@pytest.mark.parametrize("name", ON_GPU)
def test_batches(name: str) -> None:
    tree = strategy(name)(dim("m"), dim("n"), dim("k"), (dim("z"),))
    simulate(tree.kernel(), operands(tree, 3, 70, 130, 40), seeds=(0,))


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("isa", ["host", "generic"])
def test_on_a_cpu(name: str, isa: str) -> None:
    options = {} if isa == "host" else {"isa": isa}
    tree = strategy(name)(dim("m"), dim("n"), dim("k"))
    product = taskmap.build(tree.kernel(), options=options)
    for shape in ((128, 128, 128), (129, 257, 65), (6, 32, 1), (5, 31, 7)):
        arrays = operands(tree, *shape)
        product(*arrays)
        close(*arrays)
    tree = strategy(name)(40, 70, 9, (2, dim("z")))
    arrays = operands(tree, 2, 3, 40, 70, 9)
    taskmap.build(tree.kernel(), options=options)(*arrays)
    close(*arrays)
