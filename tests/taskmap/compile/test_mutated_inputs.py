"""A program that overwrites its inputs after it has used them: the backward pass sees the values from before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from taskmap.compile.backward.partition import partition

Program = Callable[[Tensor, Tensor], Tensor]


def added(x: Tensor, y: Tensor) -> Tensor:
    v = torch.sin(y - x)
    x.add_(1)
    return v


def scaled(x: Tensor, y: Tensor) -> Tensor:
    v = torch.sin(y - 3 * x.exp()).sum()
    x.mul_(2)
    return v


def zeroed(x: Tensor, y: Tensor) -> Tensor:
    v = torch.xlogy(y, (y - x).exp())
    x[x > 0] = 0
    return v


def part_written(x: Tensor, y: Tensor) -> Tensor:
    v = torch.tanh(y * 2 - x)
    x[1:] = 3
    return v + x


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    v = torch.sigmoid(y - x)
    x.t()[0].zero_()
    return v


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # TorchDynamo looks at it
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [added, scaled, zeroed, part_written, through_a_view])
@pytest.mark.parametrize("leaf", [True, False], ids=["data", "differentiated"])
def test_the_backward_pass_sees_what_the_forward_pass_read(program: Program, dynamic: bool, leaf: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic)
    for sizes in [(4, 3), (7, 5)] if dynamic else [(4, 3)]:
        outcomes = []
        values = torch.randn(sizes), torch.randn(())
        for function in (program, compiled):
            source, y = values[0].clone().requires_grad_(not leaf), values[1].clone().requires_grad_()
            x = source.clone()  # of a leaf that is differentiated, autograd forbids a write
            result = function(x, y)
            result.sum().backward()  # type: ignore[no-untyped-call]
            outcomes.append([result.detach(), x.detach(), y.grad, source.grad])
        for expected, got in zip(*outcomes, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def forward_graph(module: Callable[..., Any], *args: Tensor) -> torch.fx.Graph:
    """The forward graph that a compiler receives."""
    seen: list[torch.fx.Graph] = []

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(gm.graph)
        boxed: Callable[..., Any] = make_boxed_func(gm.forward)
        return boxed

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    torch.compile(module, backend=backend)(*args).sum().backward()
    return seen[0]


def copies(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)


def test_only_a_copy_that_the_backward_pass_reads_is_made() -> None:
    """No gradient depends on the running statistics of a batch normalisation, which training overwrites."""
    x, y = torch.randn(4, 3), torch.randn((), requires_grad=True)
    forward = forward_graph(added, x, y)
    (end,) = forward.find_nodes(op="output")
    assert all(end in copy.users for copy in copies(forward))
    assert copies(forward_graph(nn.BatchNorm1d(5), torch.randn(6, 5))) == []


def part_of_what_is_written(x: Tensor) -> tuple[Tensor, ...]:
    rows = x[0:3]
    parts = rows.chunk(3, 1)
    rows.tanh_()
    return parts[0], parts[-1], x.sin()


def part_after_all_is_written(x: Tensor) -> tuple[Tensor, ...]:
    parts = x.chunk(2, 1)
    x.exp_()
    return parts[-1], parts[0] * 2


def part_of_a_written_part(x: Tensor) -> tuple[Tensor, ...]:
    rows: Tensor = x.unflatten(1, (-1, 1))  # type: ignore[no-untyped-call]
    return (rows.narrow(2, 0, 1).relu_(),)


@pytest.mark.parametrize("program", [part_of_what_is_written, part_after_all_is_written, part_of_a_written_part])
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_a_written_input_that_begins_within_its_storage(
    program: Callable[[Tensor], tuple[Tensor, ...]], dynamic: bool | None
) -> None:
    """The place of a view within the input that is written, not within the values that the graph computes for it."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic)
    for columns in (1, 2, 5, 8):
        x = torch.randn(4, columns, 2)[1:-1]
        y = torch.empty(4, columns, 2)[1:-1].copy_(x)
        wanted, got = program(x), compiled(y)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(y, x)
        assert [t.storage_offset() for t in got] == [t.storage_offset() for t in wanted]
        assert got[0].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
