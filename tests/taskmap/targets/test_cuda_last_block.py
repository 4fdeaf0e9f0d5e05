"""Sums shared by several blocks of the simulated GPU, in a compiled function: the same bits in every call."""

from __future__ import annotations

import torch

from tests.taskmap.compare import compiled


def test_a_loss_of_many_elements() -> None:
    function = compiled(lambda x, y: (x - y).square().mean(), options={"target": "cuda-sim"})
    x, y = torch.randn(40, 1000), torch.randn(40, 1000)
    first = function(x, y)
    torch.testing.assert_close(first, (x - y).square().mean())
    assert torch.equal(first, function(x, y))
