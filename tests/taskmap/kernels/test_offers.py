"""The option ``strategies``: values of whole models, reports, cache keys, archives, warnings, and what is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import taskmap
from examples.strategies.cpu_outer_product import cpu_outer_product
from examples.strategies.double_buffering import double_buffering
from examples.strategies.hopper import hopper
from examples.strategies.softmax_rows import softmax_rows
from taskmap import Options
from taskmap.compile.session import Compilation, Fallback, new_session
from taskmap.compile.strategies import Strategies
from taskmap.decompose import CORE, REGISTER, WARP, MatMul, Strategy, dim, param
from taskmap.errors import InvalidOptionError, KernelResourceError
from taskmap.ir.nodes import Dim
from taskmap.ir.target import cpu_target
from taskmap.schedules import read_problem
from taskmap.schedules.strategies.offers import offers_of
from taskmap.torch_backend import compile_captured
from taskmap.util.metrics import metrics
from tests.onnx.models import FLOAT, model
from tests.taskmap.compare import since

Model = Callable[..., torch.Tensor]
ON = (("cpu", cpu_outer_product), ("cuda-sim", double_buffering))


class Layer(nn.Module):
    """A Linear with its bias, then GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(33, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


def broadcast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) * 2


def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.t() @ w


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1)


def check(computed: Model, inputs: Sequence[torch.Tensor], target: str, strategy: object) -> list[str]:
    """The schedules of the model's kernels, after its values matched those of float64 and of eager."""
    session = new_session(Options(strategies=[strategy], target=target))
    record: list[Compilation | Fallback] = []
    session.record = record
    with torch.no_grad():
        got = torch.compile(computed, backend=partial(compile_captured, session=session))(*inputs)
        want = computed(*inputs)
        exact = copy.deepcopy(computed).double() if isinstance(computed, nn.Module) else computed
        precise = exact(*(x.double() for x in inputs))
    assert got.dtype == want.dtype
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(got.double(), precise, rtol=2e-4, atol=2e-4)
    return [k.schedule for c in record if isinstance(c, Compilation) for k in c.kernels.values()]


@torch.no_grad()
def test_reports_name_the_strategy() -> None:
    report = taskmap.explain(Layer().eval(), torch.randn(5, 33), options={"strategies": [cpu_outer_product]})
    assert [g.code.schedule for g in report.groups] == ["strategy cpu_outer_product"]
    assert "strategy cpu_outer_product" in str(report)


@pytest.mark.parametrize(("target", "strategy"), ON)
def test_a_layer_with_bias_and_activation_is_one_kernel(target: str, strategy: Any) -> None:
    assert check(Layer().eval(), [torch.randn(5, 7, 33)], target, strategy) == [f"strategy {strategy.__name__}"]


@pytest.mark.parametrize(("target", "strategy"), ON)
@pytest.mark.parametrize("shapes", [((3, 9, 12), (12, 20)), ((3, 9, 12), (1, 12, 20)), ((2, 3, 9, 12), (2, 1, 12, 20))])
def test_batches_with_operands_that_are_broadcast(
    target: str, strategy: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    inputs = [torch.randn(s) for s in shapes]
    assert f"strategy {strategy.__name__}" in check(broadcast, inputs, target, strategy)


@pytest.mark.parametrize(("target", "strategy"), ON)
def test_operands_that_are_transposed(target: str, strategy: Any) -> None:
    inputs = [torch.randn(33, 18), torch.randn(33, 21)]
    assert check(transposed, inputs, target, strategy) == [f"strategy {strategy.__name__}"]


@pytest.mark.parametrize(("target", "strategy"), ON)
def test_other_kernels_are_those_of_templates(target: str, strategy: Any) -> None:
    found = check(attention, [torch.randn(9, 16), torch.randn(16, 24)], target, strategy)
    assert f"strategy {strategy.__name__}" in found
    assert any("rows(" in schedule for schedule in found)


@pytest.mark.parametrize("target", ["cpu", "cuda-sim"])
def test_softmax_of_rows(target: str) -> None:
    rows = softmax_rows(dim("m"), 24, CORE if target == "cpu" else WARP)
    found = check(lambda x, w: torch.softmax(x @ w, -1) * 2, [torch.randn(9, 16), torch.randn(16, 24)], target, rows)
    assert "strategy strategies[0]" in found
    assert any("matmul" in schedule for schedule in found)


def test_half_precision_on_hopper() -> None:
    options: Any = {"strategies": [hopper], "target": "cuda-sim", "gpu": "H200"}
    x, w, bias = torch.randn(128, 72).half(), torch.randn(72, 136).half(), torch.randn(136).half()

    def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + bias)

    got = torch.compile(layer, backend="taskmap", options=options)(x, w, bias)
    torch.testing.assert_close(got.double(), layer(x.double(), w.double(), bias.double()), rtol=4e-3, atol=2e-2)


@pytest.mark.parametrize(("target", "strategy"), ON)
@torch.no_grad()
def test_sizes_known_later(target: str, strategy: Any) -> None:
    options: Any = {"strategies": [strategy], "target": target, "verify_passes": True}
    compiled = torch.compile(broadcast, backend="taskmap", options=options, dynamic=True)
    for m, n, k in ((17, 30, 9), (40, 8, 33), (6, 70, 12)):
        x, w = torch.randn(m, k), torch.randn(k, n)
        torch.testing.assert_close(compiled(x, w).double(), broadcast(x.double(), w.double()), rtol=2e-4, atol=2e-4)


def test_gradients() -> None:
    layer = Layer()
    x = torch.randn(6, 33, requires_grad=True)
    session = new_session(Options(strategies=[cpu_outer_product]))
    record: list[Compilation | Fallback] = []
    session.record = record
    torch.compile(layer, backend=partial(compile_captured, session=session))(x).sum().backward()
    backward = next(c for c in record if isinstance(c, Compilation) and c.name == "backward")
    assert "strategy cpu_outer_product" in [k.schedule for k in backward.kernels.values()]
    got, x.grad = x.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(got, x.grad, rtol=1e-4, atol=1e-5)


def rows_of(rows: int) -> Callable[[Dim, Dim, Dim], Strategy]:
    def of_rows(m: Dim, n: Dim, k: Dim) -> Strategy:
        return MatMul(m, n, k).tile(rows, 16).to(CORE).accumulate_in(REGISTER).split(1).done()

    return of_rows


@torch.no_grad()
def test_cache_keys_count_the_whole_strategy(tmp_path: Path) -> None:
    """Another tile, the same strategy again, and no strategy: kernels of earlier processes are found for equal ones."""
    x, w = torch.randn(9, 12), torch.randn(12, 20)

    def made(*strategies: object) -> tuple[int, int]:
        torch._dynamo.reset()
        before = metrics()
        options: Any = {"strategies": list(strategies), "target": "cpu", "cache_dir": tmp_path}
        got = torch.compile(broadcast, backend="taskmap", options=options)(x, w)
        torch.testing.assert_close(got, broadcast(x, w), rtol=1e-5, atol=1e-5)
        found = since(before)
        return found.tasks_scheduled, found.tasks_found

    assert made(rows_of(4)) == (1, 0)
    assert made(rows_of(4)) == (0, 1)
    assert made(rows_of(8)) == (1, 0)
    assert made() == (1, 0)
    with pytest.warns(UserWarning, match="the strategy of_rows makes .*\n  the strategies before it take its products"):
        assert made(rows_of(4), rows_of(8)) == (0, 1)


@torch.no_grad()
def test_an_archive_holds_the_kernels_of_strategies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 12), (12, 20)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    onnx.save(model(nodes, {"x": (FLOAT, ["n", 12])}, ["z"], {"w": w}), tmp_path / "m.onnx")
    options = Options(strategies=[cpu_outer_product], target="cpu")
    taskmap.compile_onnx(tmp_path / "m.onnx", tmp_path / "m.taskmap", options=options)
    (z,) = taskmap.load(tmp_path / "m.taskmap")(x)
    np.testing.assert_allclose(z, np.maximum(x.astype(np.float64) @ w, 0), rtol=1e-4, atol=1e-5)
    assert b"strategy cpu_outer_product" in (tmp_path / "m.taskmap").read_bytes()


@pytest.mark.parametrize(
    ("strategy", "function", "why"),
    [
        (double_buffering, broadcast, "it is for blocks of threads, and the target is "),
        (cpu_outer_product, torch.tanh, "it has no matrix product"),
        (hopper, broadcast, "it multiplies f16 × f16, summed in f32; the product is f32 × f32, summed in f32"),
    ],
)
@torch.no_grad()
def test_a_strategy_that_fits_nothing_is_said_once(strategy: Any, function: Model, why: str) -> None:
    inputs = [torch.randn(9, 12), torch.randn(12, 20)][: 1 if function is torch.tanh else 2]
    options: Any = {"strategies": [strategy], "target": "cpu"}

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return function(*tensors)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = torch.compile(run, backend="taskmap", options=options)
        torch.testing.assert_close(compiled(*inputs), run(*inputs), rtol=1e-4, atol=1e-5)
        compiled(*inputs)
    texts = [str(w.message) for w in said if "strategy" in str(w.message)]
    assert len(texts) == 1
    assert f"the strategy {strategy.__name__} makes no kernel of the inference graph" in texts[0]
    assert why in texts[0]


@torch.no_grad()
def test_a_gpu_without_the_instruction_takes_the_template() -> None:
    options: Any = {"strategies": [hopper], "target": "cuda-sim", "gpu": "A100"}
    x, w = torch.randn(16, 24).half(), torch.randn(24, 32).half()
    with pytest.warns(UserWarning, match="the strategy hopper makes no kernel of .*\n.*which needs"):
        got = torch.compile(broadcast, backend="taskmap", options=options)(x, w)
    torch.testing.assert_close(got.double(), broadcast(x.double(), w.double()), rtol=4e-3, atol=2e-2)


def test_a_kernel_that_the_gpu_has_no_registers_for_is_said() -> None:
    """The template takes its product; a strategy that makes another kernel has been of use."""
    x, y = (read_problem("cpu.matmul", f"1x{rows}x32x24", "f32,f32,f32", "a=k b=n").task() for rows in (16, 48))
    error = KernelResourceError("a kernel runs out of registers", why="24 bytes are loaded back.")
    target = cpu_target("avx2", 1)
    strategies = Strategies(offers_of([cpu_outer_product]), target)
    assert strategies.kernel(x) is not None
    strategies.refuse(x, error)
    assert strategies.kernel(x) is None
    with pytest.warns(UserWarning, match="cpu_outer_product makes no kernel of the forward graph\n.*24 bytes"):
        strategies.warn("forward")
    strategies = Strategies(offers_of([cpu_outer_product]), target)
    assert strategies.kernel(x) is not None
    assert strategies.kernel(y) is not None
    strategies.refuse(x, error)
    strategies.warn("forward")  # says nothing


def unfinished(m: Dim, n: Dim, k: Dim) -> Strategy:
    return MatMul(m, n, k).tile(8, 16).to(CORE)


def test_a_strategy_with_parameters_and_one_that_is_decorated() -> None:
    def tunable(m: Dim, n: Dim, k: Dim, rows: int = param("rows", (4, 8))) -> Strategy:
        return rows_of(rows)(m, n, k)

    decorated = taskmap.kernel(signature="a[m, k], b[k, n]")(tunable)
    x, w = torch.randn(9, 12), torch.randn(12, 20)
    for given in (tunable, decorated):
        torch._dynamo.reset()
        assert check(broadcast, [x, w], "cpu", given) == ["strategy tunable"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            cpu_outer_product,
            r"option 'strategies' cannot be <function cpu_outer_product .*>\n  It takes a list of strat",
        ),
        ([3], r"option 'strategies' cannot contain 3\n  it is of type int\.\n  It takes a list of finished trees"),
        (["maxwell"], "cannot contain 'maxwell'"),
        (
            [unfinished(dim("m"), dim("n"), dim("k"))],
            r"cannot contain strategies\[0\]\n  the tree is not finished: MatM",
        ),
        ([lambda m, n: None], "it takes no argument k"),
        ([lambda m, n, k, tile: None], "it needs the argument tile, which nobody gives"),
    ],
)
def test_what_is_no_strategy_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        Options(strategies=given)
    with pytest.raises(InvalidOptionError, match=message):
        Options.from_user(None, {"strategies": given})


def test_a_function_that_fails_is_said() -> None:
    def broken(m: Dim, n: Dim, k: Dim) -> Strategy:
        raise KeyError("tile")

    options: Any = {"strategies": [broken]}
    compiled = torch.compile(broadcast, backend="taskmap", options=options)
    with pytest.raises(Exception, match=r"strategy broken failed\n(.*\n)*.*KeyError: 'tile'"):
        compiled(torch.randn(9, 12), torch.randn(12, 20))


def test_options_with_strategies_are_values() -> None:
    options = Options(strategies=[cpu_outer_product])
    assert options == Options(strategies=(cpu_outer_product,)) == Options.from_user(None, options)
    assert hash(options) == hash(Options(strategies=(cpu_outer_product,)))
    assert options != Options()
