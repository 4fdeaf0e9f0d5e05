"""Which results share memory with each other and with arguments, their strides and offsets: as in eager PyTorch."""

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
    return x.expand(3, 4, 6).reshape(-1)[:7][:, None].expand(7, 5)


def clone_of_a_result(x: Tensor) -> Results:
    y = x.exp()
    return y, y.clone(), y.t().contiguous()


def in_place_of_a_part(x: Tensor) -> Results:
    y = x.exp()
    return y[0].add_(1), y


PROGRAMS: dict[str, Callable[[Tensor], Results]] = {
    "shuffle of one channel": lambda x: F.channel_shuffle(x[None, :, :, None], 1),
    "clone and contiguous": clone_and_contiguous,
    "parts of a clone": parts_of_a_clone,
    "strided part": strided_part,
    "overlapping parts": overlapping_parts,
    "broadcast and base": broadcast_and_base,
    "broadcast of an argument": lambda x: (x.expand(4, 4, 6), x + 1),
    "broadcast of a copy": broadcast_of_a_copy,
    "clone of a result": clone_of_a_result,
    "two clones": lambda x: (x.clone(), x.clone()),
    "argument and clone": lambda x: (x, x.clone(), x.t()),
    "in place of a part": in_place_of_a_part,
    "one value twice": lambda x: (lambda y: (y, y))(x * 2),
    "equal values": lambda x: (x * 2, x * 2),
    "unbind": lambda x: (x * 2).unbind(0),
    "repeat once": lambda x: x.repeat(1, 1),
}


def memory(*tensors: Tensor) -> list[tuple[Any, ...]]:
    """For each tensor the number of its storage, and where in it the elements lie."""
    numbers: dict[int, int] = {}
    keys = [numbers.setdefault(t.untyped_storage()._cdata, len(numbers)) for t in tensors]
    return [(k, tuple(t.shape), t.stride(), t.storage_offset()) for k, t in zip(keys, tensors, strict=True)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_shared_as_in_eager(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="taskmap", dynamic=dynamic)
    x = torch.randn(4, 6)
    right, mine = ((r,) if isinstance(r, Tensor) else tuple(r) for r in (program(x), compiled(x)))
    torch.testing.assert_close(mine, right)
    assert memory(x, *mine) == memory(x, *right)
