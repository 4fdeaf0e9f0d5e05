"""Constants computed from parameters lie together, in huge pages."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from taskmap.compile.constant_memory import ConstantMemory
from taskmap.compile.frozen import FrozenGraph
from tests.backend.program.mappings import flags_of
from tests.taskmap.compare import compiled

HUGE = 2 << 20


def test_packed_weights_of_all_layers_share_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call reads few pages: one block of 4 MiB is 2 or 3 huge ones, not 1,024."""
    made: list[tuple[torch.Tensor, ...]] = []
    prepare = FrozenGraph._prepare

    def recorded(self: FrozenGraph, args: list[torch.Tensor]) -> object:
        prepared = prepare(self, args)
        made.append(prepared.values)
        return prepared

    monkeypatch.setattr(FrozenGraph, "_prepare", recorded)
    layers = [nn.Conv2d(512, 512, 1), nn.ReLU(), nn.Conv2d(512, 512, 1), nn.ReLU(), nn.Conv2d(512, 512, 1), nn.ReLU()]
    module, x = nn.Sequential(*layers, nn.Conv2d(512, 512, 1)).eval(), torch.randn(1, 512, 7, 7)
    with torch.no_grad():
        run = compiled(module)
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-4)
        (values,) = made
        places = sorted((v.data_ptr(), v.nbytes) for v in values)
        assert len({v.untyped_storage().data_ptr() for v in values}) == 1
        assert all(a + n <= b < a + n + 64 for (a, n), (b, _) in pairwise(places))
        assert places[0][0] % HUGE == 0
        assert sum(n for _, n in places) >= 4 << 20
        assert "hg" in flags_of(places[-1][0])
        first = module[0]
        assert isinstance(first, nn.Conv2d)
        first.weight.mul_(2)  # a new preparation
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-4)
        assert len(made) == 2


def test_tensors_lie_apart_and_outlive_the_pool() -> None:
    memory = ConstantMemory({3: 40, 5: 4096, 9: 0})
    small = memory.take(3, (2, 5), (1, 2), torch.float32).fill_(1)
    large = memory.take(5, (1024,), (1,), torch.float32).fill_(2)
    assert memory.take(9, (0, 4), (4, 1), torch.float64).numel() == 0
    memory.clear()
    del memory
    assert small.stride() == (1, 2)
    assert large.data_ptr() - small.data_ptr() == 64
    assert small.sum() == 10
    assert large.sum() == 2048


def test_every_run_has_a_block_of_its_own() -> None:
    """Weights that were prepared to be archived are not overwritten by those of a call."""
    memory = ConstantMemory({0: 64, 1: 64})
    first, second = ([memory.take(i, (16,), (1,), torch.float32) for i in (0, 1)] for _ in range(2))
    assert {t.data_ptr() for t in first}.isdisjoint(t.data_ptr() for t in second)


def test_results_that_depend_on_parameters_alone_have_memory_of_their_own() -> None:
    """Saved, they take their own bytes, not the block's; written, they change no constant."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.c = nn.Parameter(torch.randn(512, 512)), nn.Parameter(torch.randn(64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            doubled, e = self.w.t().contiguous() * 2, self.c.exp()
            return x @ doubled + e[0], e, doubled[:3]

    module, x = Module().eval(), torch.randn(4, 512)
    with torch.no_grad():
        run, wanted = compiled(module), module(x)
        _, e, part = run(x)
        assert e.untyped_storage().nbytes() == 256
        assert part.untyped_storage().nbytes() <= 512 * 512 * 4
        e.zero_()
        part.zero_()
        torch.testing.assert_close(run(x), wanted, rtol=1e-4, atol=1e-4)


def test_constants_may_all_be_empty() -> None:
    assert ConstantMemory({0: 0}).take(0, (0,), (1,), torch.bfloat16).numel() == 0


@torch.library.custom_op("test_constant_memory::storage_bytes", mutates_args=())
def storage_bytes(t: torch.Tensor) -> torch.Tensor:
    return torch.tensor([t.untyped_storage().nbytes(), t.storage_offset()], dtype=torch.float32)


@storage_bytes.register_fake
def _(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(2)


def test_operators_of_pytorch_see_a_constant_alone_in_its_storage() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.c = nn.Parameter(torch.randn(512, 512)), nn.Parameter(torch.randn(64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return storage_bytes(self.c.exp()), x @ self.w.t()

    module, x = Module().eval(), torch.randn(4, 512)
    with torch.no_grad():
        seen, y = compiled(module)(x)
        assert seen.tolist() == [256, 0]
        torch.testing.assert_close(y, x @ module.w.t(), rtol=1e-4, atol=1e-4)
