"""Dynamo traces recurrent layers for taskmap while gradients are off, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import Unsupported

import taskmap
from taskmap.torch_backend import compile_fx
from taskmap.util.metrics import metrics
from tests.taskmap.compare import since


class Tagger(nn.Module):
    """A recurrent layer between others."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer(x.sin())[0])
        return result


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Dynamo without compiled functions."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["taskmap", compile_fx])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_inference_is_one_graph(kind: str, backend: str | Callable[..., Any]) -> None:
    module = Tagger(kind).eval()
    compiled: Any = torch.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(5, 2, 4)
    before = metrics()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    counts = since(before)
    assert (counts.graphs, counts.externs, counts.fallbacks) == (1, 0, 0)
    assert not torch._dynamo.config.allow_rnn


def test_other_backends_and_training_keep_the_default() -> None:
    seen: list[torch.fx.GraphModule] = []

    def other(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.append(gm)
        return gm.forward

    module, x = Tagger("GRU"), torch.randn(5, 2, 4)
    compiled: Any = torch.compile(module, backend=other)
    with torch.no_grad():
        compiled(x)
    assert not [n for gm in seen for n in gm.graph.nodes if n.target is torch.gru]
    before = metrics()
    trained: Any = torch.compile(module, backend="taskmap")
    trained(x).sum().backward()
    assert since(before).graphs == 0
    assert not torch._dynamo.config.allow_rnn


def test_the_setting_ends_with_a_compilation_that_fails() -> None:
    class Broken(Tagger):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("a call that Dynamo does not trace")
            return super().forward(x)

    compiled: Any = torch.compile(Broken("GRU").eval(), backend="taskmap", fullgraph=True)
    with torch.no_grad(), pytest.raises(Unsupported):
        compiled(torch.randn(5, 2, 4))
    assert not torch._dynamo.config.allow_rnn


def test_a_users_setting_stays() -> None:
    compiled: Any = torch.compile(Tagger("GRU").eval(), backend="taskmap")
    with torch._dynamo.config.patch(allow_rnn=True):
        with torch.no_grad():
            compiled(torch.randn(5, 2, 4))
        assert torch._dynamo.config.allow_rnn


def test_a_reset_keeps_the_callbacks_and_clears_those_of_others() -> None:
    seen: list[object] = []
    callback_handler.register_start_callback(seen.append)
    torch.compiler.reset()
    module = Tagger("RNN").eval()
    compiled: Any = torch.compile(module, backend="taskmap", fullgraph=True)
    x = torch.randn(5, 2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert not seen


def test_a_version_without_the_setting_compiles_the_rest() -> None:
    before = torch._dynamo.config.allow_rnn
    del torch._dynamo.config.allow_rnn
    try:
        with torch.no_grad():
            result = torch.compile(torch.sin, backend="taskmap")(torch.zeros(3))
        torch.testing.assert_close(result, torch.zeros(3))
    finally:
        torch._dynamo.config.allow_rnn = before


def test_a_report_shows_the_layer() -> None:
    with torch.no_grad():
        report = taskmap.explain(Tagger("GRU").eval(), torch.randn(5, 2, 4))
    assert len(report.graphs) == 1
    assert "gru" in str(report)
