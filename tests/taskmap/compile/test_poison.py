"""Nothing reads memory that nobody wrote: arenas and results start out full of NaNs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from taskmap.backend.program.arena import Arena, ArenaPool
from taskmap.compile import runtime
from tests.taskmap.compare import assert_like, compiled


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    take, allocator = ArenaPool.take, runtime._allocator

    def poisoned_arena(pool: ArenaPool, size: int) -> Arena:
        arena = take(pool, size)
        ctypes.memset(arena.address, 0xFF, arena.bytes)
        return arena

    def poisoned_allocator(device: torch.device) -> Callable[..., Tensor]:
        empty = allocator(device)

        def poisoned_tensor(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            made = empty(shape, strides, dtype)
            ctypes.memset(made.data_ptr(), 0xFF, made.untyped_storage().nbytes())
            return made

        return poisoned_tensor

    monkeypatch.setattr(ArenaPool, "take", poisoned_arena)
    monkeypatch.setattr(runtime, "_allocator", poisoned_allocator)


class Mixed(nn.Module):
    """Convolutions of odd sizes, a concatenation, pooling, an extern, a norm and a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(3, 5, 1)
        self.norm, self.out = nn.LayerNorm(12), nn.Linear(12, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cat([self.a(x).relu(), self.b(x).sigmoid()], 1)
        y = nn.functional.max_pool2d(y, 3, 2, 1)
        z = self.out(self.norm(y.flatten(2).transpose(1, 2)))
        return torch.sort(z, 1)[0].softmax(-1), z.cumsum(1)


@pytest.mark.parametrize(("dynamic", "grad"), [(False, True), (True, False)])
def test_results_are_right(dynamic: bool, grad: bool) -> None:
    model = Mixed()
    run = compiled(model, dynamic=dynamic)
    for batch in (2, 3):
        x = torch.randn(batch, 3, 9, 11)
        with torch.set_grad_enabled(grad):
            got, want = run(x), model(x)
        assert_like(got, want, rtol=1e-4, atol=1e-5)
        if grad:
            mine = torch.autograd.grad(got[0].square().sum() + got[1].sum(), tuple(model.parameters()))
            theirs = torch.autograd.grad(want[0].square().sum() + want[1].sum(), tuple(model.parameters()))
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
