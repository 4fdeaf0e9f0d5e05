"""Results share memory with each other and with arguments as in eager PyTorch, with the same strides and offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

Results = Tensor | tuple[Tensor, ...]


def clone_and_contiguous(x: Tensor) -> Results:
    v = x.clone()
    return v.contiguous(), v


def parts_of_a_clone(x: Tensor) -> Results:
    v = x.clone()
    return v, v.t(), v[1:]


def strided_part(x: Tensor) -> Results:
    y = x.sigmoid()
    return y[1:, ::2], y


def overlapping_parts(x: Tensor) -> Results:
    y = x.exp()
    return y[:3], y[1:], y


def broadcast_and_base(x: Tensor) -> Results:
    y = x + 1
    return y.expand(4, *y.shape), y


def broadcast_of_a_copy(x: Tensor) -> Results:
    return x.expand(3, *x.shape).reshape(-1)[:7][:, None].expand(7, 5)


def clone_of_a_result(x: Tensor) -> Results:
    y = x.exp()
    return y, y.clone(), y.t().contiguous()


def in_place_of_a_part(x: Tensor) -> Results:
    y = x.exp()
    return y[0].add_(1), y


def parts_without_the_whole(x: Tensor) -> Results:
    y = x.t().exp()
    return y[1:], y[:, 1:]


def parts_of_a_literal(x: Tensor) -> Results:
    y = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return y[1:], y[:, 1:], x + 1


def literal_and_part(x: Tensor) -> Results:
    y = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return y[1:], y, x + 1


def parts_of_what_is_the_argument(x: Tensor) -> Results:
    y = torch.where(torch.ones((), dtype=torch.bool), x, x)
    return y[1:], y, y[:, ::2]


def filled(x: Tensor) -> Results:
    y = torch.ones_like(x)
    return y[1:], y[:, 1:], y.expand(2, *y.shape)


def written_grid(x: Tensor) -> Results:
    v = torch.logsumexp(x.tensor_split(2, 1)[0], [1], keepdim=True)
    v.fill_(1)
    return torch.meshgrid(v[0], v[:, 0], indexing="ij")


def complex_parts(x: Tensor) -> Results:
    y = torch.view_as_complex(x.exp().reshape(-1, 2))
    return y, y.real, y.imag


def bits_of_a_result(x: Tensor) -> Results:
    y = x * 2
    return y.view(torch.int32).clone(), y.view(torch.int32), y


PROGRAMS: dict[str, Callable[[Tensor], Results]] = {
    "shuffle of one channel": lambda x: F.channel_shuffle(x[None, :, :, None], 1),
    "clone and contiguous": clone_and_contiguous,
    "parts of a clone": parts_of_a_clone,
    "strided part": strided_part,
    "overlapping parts": overlapping_parts,
    "broadcast and base": broadcast_and_base,
    "broadcast of an argument": lambda x: (x.expand(4, *x.shape), x + 1),
    "broadcast of a copy": broadcast_of_a_copy,
    "clone of a result": clone_of_a_result,
    "two clones": lambda x: (x.clone(), x.clone()),
    "argument and clone": lambda x: (x, x.clone(), x.t()),
    "in place of a part": in_place_of_a_part,
    "one value twice": lambda x: (lambda y: (y, y))(x * 2),
    "equal values": lambda x: (x * 2, x * 2),
    "unbind": lambda x: (x * 2).unbind(0),
    "repeat once": lambda x: x.repeat(1, 1),
    "parts without the whole": parts_without_the_whole,
    "parts of a literal": parts_of_a_literal,
    "literal and part": literal_and_part,
    "parts of what is the argument": parts_of_what_is_the_argument,
    "filled": filled,
    "written grid": written_grid,
    "complex parts": complex_parts,
    "bits": lambda x: (x.view(torch.int32), x),
    "copied bits": lambda x: x.view(torch.int32).clone(),
    "bits of bits": lambda x: (x.view(torch.int32).view(torch.float32).clone(), x.view(torch.int32).nan_to_num()),
    "bits of a result": bits_of_a_result,
    "storage of a contiguous argument": lambda x: x.contiguous().as_strided([4], [0]),
    "every other of what is the argument": lambda x: torch.where(torch.ones((), dtype=torch.bool), x, x)[:, ::2],
    "diagonal and row": lambda x: (lambda y: (y.diagonal(), y[0]))(x @ x.t()),
    "windows and row": lambda x: (lambda y: (y.flatten().unfold(0, 3, 1), y[1]))(x.exp()),
}


def memory(*tensors: Tensor) -> list[tuple[Any, ...]]:
    """For each tensor, the number of its storage and the places of its elements there."""
    numbers: dict[int, int] = {}
    keys = [numbers.setdefault(t.untyped_storage()._cdata, len(numbers)) for t in tensors]
    return [(k, tuple(t.shape), t.stride(), t.storage_offset()) for k, t in zip(keys, tensors, strict=True)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_shared_as_in_eager(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic)
    for shape in ((4, 6), (6, 8)):
        x = torch.randn(*shape)
        right, mine = ((r,) if isinstance(r, Tensor) else tuple(r) for r in (program(x), compiled(x)))
        torch.testing.assert_close(mine, right)
        assert memory(x, *mine) == memory(x, *right)


LITERALS: dict[str, Callable[[Tensor], Results]] = {
    "bits": lambda x: (torch.tensor([1.0, 2.0]).view(torch.int32), x + 1),
    "copied bits": lambda x: (torch.tensor([1.0, 2.0]).view(torch.int32).clone(), x + 1),
    "filled": lambda x: (torch.full((2,), 1.5).view(torch.int32), x + 1),
    "complex": lambda x: (torch.view_as_complex(torch.ones(3, 2)), x + 1),
}


@pytest.mark.parametrize("name", LITERALS)
def test_a_caller_may_write_to_a_view_that_pytorch_makes_of_a_constant(name: str) -> None:
    torch._dynamo.reset()
    program = LITERALS[name]
    compiled = torch.compile(program, backend="taskmap")
    x = torch.randn(4)
    for _ in range(3):
        mine, _ = compiled(x)
        torch.testing.assert_close(mine, program(x)[0])
        mine.fill_(7)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_transpose_of_every_other_row_is_written(dynamic: bool) -> None:
    """Two arguments in one storage that neither fills; the second size has to be right too."""
    torch._dynamo.reset()

    def program(x: Tensor, y: Tensor) -> Results:
        y[0].add_(3)
        y.mul_(2)
        return x + 1, y + 2

    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic)
    for rows, columns in ((6, 4), (10, 7), (4, 9)):
        whole = torch.randn(rows, columns)
        same = whole.clone()
        parts = [(w[1::2], w[1::2].t()) for w in (whole, same)]
        torch.testing.assert_close(compiled(*parts[1]), program(*parts[0]))
        torch.testing.assert_close(same, whole)


def test_a_detached_view_of_a_result_requires_no_gradient() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.log1p(x)
        return y, y.reshape(1, -1).detach(), y.view(-1), y.detach()

    for shape in ((), (4,)):
        x = torch.rand(shape, requires_grad=True)
        torch._dynamo.reset()
        want, got = program(x), torch.compile(program, backend="taskmap")(x)
        assert [t.requires_grad for t in got] == [t.requires_grad for t in want] == [True, False, True, False]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        assert len({t.untyped_storage().data_ptr() for t in got}) == 1
        (grad,) = torch.autograd.grad(sum(t.double().sum() for t in got if t.requires_grad), x)  # type: ignore[arg-type]
        torch.testing.assert_close(grad, 2 / (1 + x.detach()))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cuda-sim"])
def test_a_view_of_a_written_argument_lies_where_the_argument_does(target: str, dynamic: bool) -> None:
    """A GPU's kernels read a copy of one that begins within a line of memory; its views are those of the argument."""
    torch._dynamo.reset()

    def program(x: Tensor) -> Results:
        x.relu_()
        return x.view(1, *x.shape), x[1:]

    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic, options={"target": target})
    for rows, columns in ((18, 6), (9, 3)):
        x = torch.randn(rows, columns)[1:-1]
        same = x.clone(memory_format=torch.preserve_format)
        right, mine = program(same), compiled(x)
        torch.testing.assert_close(mine, right)
        assert [t.data_ptr() - x.data_ptr() for t in mine] == [t.data_ptr() - same.data_ptr() for t in right]
