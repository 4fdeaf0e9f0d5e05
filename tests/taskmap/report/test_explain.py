"""taskmap.explain: every operator accounted for once, work and times that fit together, and nothing left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import taskmap
from benchmarks.models import MODELS
from taskmap.errors import InputError
from taskmap.report.presentation import Report
from taskmap.report.text import WIDTH
from taskmap.util.private_compile import _APART
from tests.taskmap.compare import assert_like, compiled, since


class Block(nn.Module):
    """A residual block as in ResNet, at the size of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)) + x)
        out: Tensor = self.fc(functional.max_pool2d(y, 2).mean((2, 3)))
        return out


def block() -> tuple[Block, Tensor]:
    return Block().eval(), torch.randn(1, 16, 12, 12)


def explained(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The report on an inference, after the checks that hold for every report."""
    with torch.no_grad():
        report = taskmap.explain(model, *args, **kwargs)
    accounted_for(report)
    return report


def accounted_for(report: Report) -> None:
    """Properties that hold for every report."""
    assert [g.number for g in report.groups] == list(range(len(report.groups)))
    assert [g.number for g in report.graphs] == list(range(len(report.graphs)))
    for graph in report.graphs:
        mine = [n.node for n in report.nodes if n.graph == graph.number and n.node is not None]
        assert sorted([*mine, *graph.inputs]) == list(range(graph.nodes)), "every node once"
        groups = [g for g in report.groups if g.graph == graph.number]
        externs = [e.node for e in report.externs if e.graph == graph.number]
        items = [n.node for n in report.nodes if n.graph == graph.number and n.role == "item"]
        written = {root for g in groups for root in g.work.writes}
        assert {o for o in graph.outputs if o is not None} <= written | {*graph.inputs, *externs, *items}
        for group in groups:
            assert set(group.work.reads) <= written | {*graph.inputs, *externs, *items}
        assert graph.seconds is None or graph.seconds > 0
    for node in report.nodes:
        assert (node.role == "extern") == any((e.graph, e.node) == (node.graph, node.node) for e in report.externs)
        for number in node.groups:
            assert report.groups[number].graph == node.graph
        if node.role in ("anchor", "prologue", "epilogue", "fused"):
            assert len(node.groups) == 1
        if node.role in ("extern", "folded"):
            assert node.reason
    for group in report.groups:
        inside = [n for n in report.nodes if group.number in n.groups]
        assert sum(n.role == "anchor" for n in inside) == (group.roles.anchor != "")
        listed = (
            *group.roles.prologue,
            *group.roles.epilogue,
            *group.roles.fused,
            *group.roles.views,
            *([group.roles.anchor] if group.roles.anchor else ()),
        )
        assert len(inside) == len(listed)
        assert group.code.schedule.startswith("cpu.")
        assert group.work.bytes is None or group.work.bytes > 0
        assert group.time.seconds is None or 0 < (group.time.fastest or 0) <= group.time.seconds
    shares = [*(g.time.share for g in report.groups), *(e.time.share for e in report.externs)]
    measured = [share for share in shares if share is not None]
    assert not measured or abs(sum(measured) - 1) < 1e-9
    for text in (str(report), report.table()):
        assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert json.loads(report.to_json())["groups"] == json.loads(json.dumps(report.to_dict()))["groups"]


def masked(table: str) -> str:
    """A table without what depends on the machine: times, rates, configs and the widths that follow from them."""
    table = re.sub(r"cpu\.(\w+)\([^)…]*[)…]", r"cpu.\1", table)
    table = re.sub(r"\d+\.\d+( ms| µs|%)?", "#", table)
    table = re.sub(r"on cpu:\w+, \d+ threads?", "on cpu", table)
    table = re.sub(r"median of \d+ runs \(.*\)", "median", table)
    return re.sub(r"test_explain\.py:\d+", "test_explain.py:#", re.sub(r" {2,}", "  ", table))


def test_a_residual_block(golden: Callable[[str, str], None]) -> None:
    report = explained(*block(), options={"winograd": False})  # which computes less than the definition
    assert report.externs == ()
    assert [g.kind for g in report.graphs] == ["inference"]
    first, second = [g for g in report.groups if g.roles.anchor.startswith("convolution")]
    assert first.roles.anchor == "convolution 3×3, 16→16, 12×12"
    assert first.roles.epilogue == ("add (batch_norm)", "relu")
    assert second.roles.epilogue == ("add (batch_norm)", "add", "relu")
    assert first.line.file == __file__
    assert first.line.text == "y = functional.relu(self.bn1(self.conv1(x)))"
    assert [line.text for line in second.lines] == ["y = functional.relu(self.bn2(self.conv2(y)) + x)"]
    products = 2 * (16 * 12 * 12) * (16 * 3 * 3)
    assert first.work.operations == products + 3 * (16 * 12 * 12)  # an addition, a comparison, a choice
    assert second.work.operations == products + 4 * (16 * 12 * 12)
    assert first.work.bytes
    assert second.work.bytes == first.work.bytes + 4 * 16 * 12 * 12  # the shortcut
    (refused,) = [r for r in first.refused if r.operator == "convolution"]
    assert "in memory" in refused.reason
    assert report.nodes[[n.node for n in report.nodes].index(refused.node)].groups == (second.number,)
    once = [g for g in report.groups if g.once]
    assert once
    assert all(g.time.share is None and g.time.seconds for g in once)
    assert all(n.once for n in report.nodes if n.groups and n.groups[0] in {g.number for g in once})
    golden("explain_block.txt", masked(report.table()))


@pytest.mark.parametrize("name", ["bert_base", "resnet50"])
def test_models(name: str) -> None:
    module, args, kwargs = MODELS[name].build(small=True)
    report = explained(module, *args, **kwargs)
    assert report.externs == ()
    assert all(n.native for n in report.nodes)
    anchors = {g.kind for g in report.groups if g.roles.anchor}
    assert anchors == ({"contraction", "attention"} if name == "bert_base" else {"contraction"})
    assert all(g.time.seconds for g in report.groups)


def test_operators_that_pytorch_runs() -> None:
    def f(x: Tensor) -> Tensor:
        u, s, _ = torch.linalg.svd(x @ x.t() + 1)
        out: Tensor = (u * s).relu()
        return out

    report = explained(f, torch.randn(6, 6))
    (extern,) = report.externs
    assert extern.target == "aten._linalg_svd.default"
    assert extern.line.text == "u, s, _ = torch.linalg.svd(x @ x.t() + 1)"
    assert extern.reason == "no taskmap operator"
    assert extern.inputs == ("f32[6, 6]",)
    assert extern.time.seconds
    assert {n.role for n in report.nodes} >= {"extern", "item", "anchor"}
    assert "no taskmap operator; ran through PyTorch (" in str(report)
    assert re.search(r"^extern .* aten._linalg_svd.default +PyTorch", report.table(), re.MULTILINE)
    assert str(extern) == f"aten._linalg_svd.default at {extern.line.place}: no taskmap operator"


def test_graph_breaks() -> None:
    def f(x: Tensor) -> Tensor:
        x = (x * 2).sin()
        torch._dynamo.graph_break()
        return x.exp() + 1

    report = explained(f, torch.randn(8))
    assert [(g.kind, g.calls) for g in report.graphs] == [("inference", 1)] * 2
    assert [g.roles.fused for g in report.groups] == [("mul", "sin"), ("exp", "add")]
    assert [g.graph for g in report.groups] == [0, 1]
    assert "graph 1" in str(report)


def test_a_graph_that_runs_several_times() -> None:
    def step(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.sin() * 2

    def f(x: Tensor) -> Tensor:
        for _ in range(3):
            x = step(x)
        return x

    report = explained(f, torch.randn(8))
    (group,) = report.groups
    assert (group.time.calls, group.time.share) == (3, 1)
    assert "3 calls" in str(report)
    assert report.seconds == 3 * (group.time.seconds or 0)


def test_marked_dimensions_are_reported_with_the_sizes_of_the_call() -> None:
    x = torch.randn(10, 4)
    torch._dynamo.mark_dynamic(x, 0)
    linear = nn.Linear(4, 8)
    report = explained(linear, x)
    (group,) = [g for g in report.groups if not g.once]
    assert group.work.inputs[0] == "f32[n0, 4]"
    assert group.roles.anchor == "mm n0×4 · 4×8"
    assert group.work.operations == 2 * 10 * 4 * 8 + 10 * 8


def test_a_graph_that_runs_through_pytorch() -> None:
    report = explained(lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)), torch.ones(3))
    (graph,) = report.graphs
    assert "cond runs graphs of its own" in graph.fallback
    assert report.groups == ()
    assert graph.fallback in report.table()


def test_a_function_without_operators() -> None:
    report = explained(lambda x: x, torch.ones(3))
    assert not report.groups
    assert not report.externs
    assert report.seconds == 0


def test_training_leaves_buffers_arguments_and_random_state_alone() -> None:
    model, x = block()
    model.train()
    noise = torch.zeros(3)

    def train(x: Tensor, noise: Tensor) -> Tensor:
        noise += torch.rand(3)
        loss: Tensor = model(x).sum() + noise.sum()
        return loss

    buffers = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    report = taskmap.explain(model, x)
    accounted_for(report)
    assert [g.kind for g in report.graphs] == ["forward", "backward"]
    assert all(g.seconds for g in report.graphs)
    assert all(p.grad is None for p in model.parameters())
    taskmap.explain(train, x, noise)
    for name, value in model.state_dict().items():
        assert torch.equal(value, buffers[name]), name
    assert torch.equal(noise, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)


APART = pytest.mark.skipif(not _APART, reason="before PyTorch 2.13, compilations of one function share")


@APART
def test_compilations_of_others_are_not_touched() -> None:
    seen: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append(any(isinstance(x, torch.SymInt) for x in inputs))
        forward: Callable[..., Any] = gm.forward
        return forward

    def f(x: Tensor) -> Tensor:
        return (x * 2).relu()

    taskmap.explain(f, torch.randn(3))
    taskmap.explain(f, torch.randn(4))
    other = torch.compile(f, backend=backend)
    other(torch.randn(5))
    other(torch.randn(5))
    assert seen == [False], "static: the sizes that explain saw count for nothing"
    for size in range(2, 2 + 2 * torch._dynamo.config.recompile_limit):
        taskmap.explain(f, torch.randn(size))
    other(torch.randn(5))
    assert seen == [False], "what was compiled is still there"
    other(torch.randn(7))
    assert seen == [False, True], "not at its limit of compilations"


def test_explaining_what_is_compiled_already() -> None:
    model, x = block()
    with torch.no_grad():
        run = compiled(model)
        want = run(x)
        before = taskmap.metrics()
        report = explained(run, x)
        assert since(before).graphs == 1
        assert_like(run(x), want)
        assert since(before).graphs == 1
    assert any(g.roles.anchor.startswith("convolution") for g in report.groups)


def test_the_kernels_are_those_of_torch_compile() -> None:
    model, x = block()
    report = explained(model, x)
    kernels = len({g.code.symbol for g in report.groups})
    before = taskmap.metrics()
    with torch.no_grad():
        compiled(model)(x)
    assert since(before).kernels_found >= kernels
    assert since(before).kernels_compiled <= 2  # the launch sequences, which profiling cuts into single steps


def test_metrics_count_this_process() -> None:
    before = taskmap.metrics()
    with torch.no_grad():
        run = compiled(lambda x: x + 1)
        run(torch.randn(3))
        run(torch.randn(3))
    counted = since(before)
    assert (counted.graphs, counted.calls) == (1, 2)
    assert counted.kernels_compiled + counted.kernels_found > 0


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InputError, match="cannot explain int"):
        taskmap.explain(3)  # type: ignore[arg-type]


@APART
def test_the_errors_of_a_model_are_its_own() -> None:
    def f(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        if x.numel() != 3:
            raise ValueError("three, please")
        return x + 1

    with pytest.raises(ValueError, match="three, please"):
        taskmap.explain(f, torch.randn(4))
    assert explained(f, torch.randn(3)).groups
