"""Programs that once ended in an error: unread inputs, literals inside decompositions, trained LSTMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

Function = Callable[[torch.Tensor], torch.Tensor]

UNREAD: dict[str, Function] = {
    "isinf(isnan)": lambda x: torch.isinf(torch.isnan(x)),
    "isinf(argmax)": lambda x: torch.isinf(x.argmax()),
    "isfinite(argmax)": lambda x: torch.isfinite(x.argmax(-1)),
    "signbit(bool)": lambda x: torch.signbit(torch.isinf(x).any(-1)),
    "sum": lambda x: torch.isinf(torch.isnan(x)).sum(),
    "where": lambda x: torch.where(torch.isinf(x.argmax(-1)), x[:, 0], 2.0),
    "product": lambda x: torch.isnan((x @ x.t()).to(torch.int32)).float() @ x,
    "softmax": lambda x: torch.softmax(torch.isinf(x.argmax(-1)).float(), 0),
    "sort": lambda x: torch.isinf(x.sort().indices),
    "expand": lambda x: torch.isnan(x.argmax(-1, keepdim=True)).expand(5, 5),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_definition_that_reads_nothing(dynamic: bool) -> None:
    x = torch.randn(5, 5)

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x) for f in UNREAD.values()]

    compiled = torch.compile(every, backend="taskmap", dynamic=dynamic)
    for mine, right in zip(compiled(x), every(x), strict=True):
        torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("name", ["isinf(isnan)", "isinf(argmax)"])
def test_a_definition_that_reads_nothing_alone(name: str) -> None:
    x = torch.randn(5, 5)
    assert torch.equal(torch.compile(UNREAD[name], backend="taskmap")(x), UNREAD[name](x))


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_literal_in_a_decomposition(dynamic: bool, corners: bool) -> None:
    def crop(x: torch.Tensor) -> torch.Tensor:
        theta = torch.tensor([[[1.0, 0.1, 0.0], [0.0, 1.0, 0.2]]]).expand(x.shape[0], 2, 3)
        grid = torch.nn.functional.affine_grid(theta, [x.shape[0], 3, 1, x.shape[3]], align_corners=corners)
        return torch.nn.functional.grid_sample(x, grid, align_corners=corners)

    compiled = torch.compile(crop, backend="taskmap", dynamic=dynamic)
    for n in (5, 7):
        x = torch.randn(2, 3, n, n + 1)
        torch.testing.assert_close(compiled(x), crop(x))


@pytest.fixture
def traced_layers() -> Iterator[None]:
    """Dynamo traces recurrent layers, in training too."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.usefixtures("traced_layers")
def test_recurrent_layers_one_after_another() -> None:
    kinds: list[tuple[Callable[..., torch.nn.Module], dict[str, Any]]] = [
        (torch.nn.LSTM, {}),
        (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (torch.nn.GRU, {}),
        (torch.nn.RNN, {}),
    ]
    enabled = torch._C._get_mkldnn_enabled()
    for kind, options in kinds:
        torch._dynamo.reset()
        layer = kind(5, 6, batch_first=True, **options)
        compiled = torch.compile(layer, backend="taskmap")
        x = torch.randn(2, 3, 5)
        mine, _ = compiled(x)
        right, _ = layer(x)
        torch.testing.assert_close(mine, right)
        parameters = list(layer.parameters())
        wanted = torch.autograd.grad(right.square().sum(), parameters)
        torch.testing.assert_close(torch.autograd.grad(mine.square().sum(), parameters), wanted)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x)[0], right)
    assert torch._C._get_mkldnn_enabled() == enabled
