"""torch.nn.LSTM, GRU and RNN where Dynamo traces them: a loop in inference, eager's gradients in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from taskmap.util.metrics import metrics
from tests.taskmap.compare import since


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """Dynamo traces recurrent layers."""
    with torch._dynamo.config.patch(allow_rnn=True):
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


def flat(results: Any) -> list[torch.Tensor]:
    """The tensors in a layer's result."""
    return [t for r in results for t in (flat(r) if isinstance(r, tuple) else [r])]


def agree(got: Any, want: Any) -> None:
    """Checks that values, shapes and strides are equal."""
    for a, b in zip(flat(got), flat(want), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


CASES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"bias": False}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False, "batch_first": True}),
    ("RNN", {"num_layers": 2}),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True, "bias": False}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_inference_is_a_loop(kind: str, options: dict[str, Any]) -> None:
    layer: Any = getattr(torch.nn, kind)(5, 19, **options).eval()
    x = torch.randn(4, 7, 5)
    before = metrics()
    compiled: Any = torch.compile(layer, backend="taskmap", dynamic=False)
    with torch.no_grad():
        agree(compiled(x), layer(x))
    counts = since(before)
    assert (counts.externs, counts.fallbacks) == (0, 0)


@pytest.mark.parametrize(("kind", "options"), CASES[::2])
def test_training(kind: str, options: dict[str, Any]) -> None:
    layer: Any = getattr(torch.nn, kind)(5, 6, **options)
    compiled: Any = torch.compile(layer, backend="taskmap", dynamic=False)
    x = torch.randn(3, 4, 5, requires_grad=True)

    def gradients(f: Any) -> tuple[torch.Tensor, ...]:
        y, last = f(x)
        loss = (y * y).sum() + sum(t.sin().sum() for t in flat((last,)))
        return torch.autograd.grad(loss, [x, *layer.parameters()])

    torch.testing.assert_close(gradients(compiled), gradients(layer))


def test_one_kernel_for_every_length() -> None:
    layer = torch.nn.LSTM(4, 8, batch_first=True).eval()
    compiled: Any = torch.compile(layer, backend="taskmap", dynamic=True)
    before = metrics()
    start = torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)
    with torch.no_grad():
        for steps in (5, 300, 17):
            x = torch.randn(2, steps, 4)
            agree(compiled(x, start), layer(x, start))
    assert since(before).graphs == 1


def test_dropout_between_layers() -> None:
    layer = torch.nn.GRU(4, 6, num_layers=3, dropout=0.5)
    compiled: Any = torch.compile(layer, backend="taskmap", dynamic=False)
    x = torch.randn(4, 2, 4)
    torch.manual_seed(3)
    want = layer(x)
    torch.manual_seed(3)
    agree(compiled(x), want)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # PyTorch's own, once in a process
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}])
def test_projections_stay_one_operator(options: dict[str, Any]) -> None:
    layer = torch.nn.LSTM(4, 6, proj_size=3, **options).eval()
    x = torch.randn(3, 2, 4)
    before = metrics()
    with torch.no_grad():
        compiled: Any = torch.compile(layer, backend="taskmap")
        agree(compiled(x), layer(x))
    assert since(before).externs == 1


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("batch", "threads", "externs"), [(2, 1, 1), (1, 2, 1), (1, 1, 0)])
def test_pytorch_runs_layers_whose_weights_no_cache_holds(kind: str, batch: int, threads: int, externs: int) -> None:
    """Unless a single sequence occupies all cores."""
    layer: Any = getattr(torch.nn, kind)(4, 1500, batch_first=True).eval()
    compiled: Any = torch.compile(layer, backend="taskmap", options={"threads": threads})
    x = torch.randn(batch, 3, 4)
    before = metrics()
    with torch.no_grad():
        agree(compiled(x), layer(x))
    assert since(before).externs == externs


def test_packed_sequences_stay_as_they_are() -> None:
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 4), [5, 3])
    plain = torch.nn.GRU(4, 6).eval()
    with torch.no_grad():
        got, want = torch.compile(plain, backend="taskmap")(packed), plain(packed)
    torch.testing.assert_close(got[0].data, want[0].data)
