"""Interpolation of images made from tokens: channels stay together, so no kernel gathers single elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskmap.graph.analysis.placement import channels_last
from taskmap.graph.fusion.planning import Group
from taskmap.graph.nodes import Graph
from taskmap.graph.reference import run
from taskmap.ir.construct import constant_value
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Load, Ramp, Store
from taskmap.ir.target import cpu_target
from taskmap.ir.visit import walk_exprs, walk_stmts
from taskmap.schedules import schedule
from tests.graph.networks import graph_of, planned
from tests.graph.running import run_plan

AVX512 = cpu_target("avx512", 2)


class Tokens(nn.Module):
    """Tokens through a linear layer, as an image of ``size``, through a function."""

    def __init__(self, size: tuple[int, int], function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.size, self.function = nn.Linear(8, 48), size, function

    def forward(self, x: Tensor) -> Tensor:
        image = self.linear(x).permute(0, 2, 1).reshape(x.shape[0], -1, *self.size)
        return F.conv2d(self.function(image), torch.ones(1, 48, 1, 1))


def gathers(graph: Graph) -> list[str]:
    """The kernels that run on every call and read or write vectors of elements that are not neighbours."""
    found = []
    for step in planned(graph).steps:
        if not isinstance(step, Group) or step.once or step.anchor is not None:
            continue
        body = lower(schedule(step.task, AVX512), target=AVX512).body
        where = [e.indices[0] for e in walk_exprs(body) if isinstance(e, Load)]
        where += [s.indices[0] for s in walk_stmts(body) if isinstance(s, Store)]
        if not all(isinstance(i, Ramp) and constant_value(i.stride) == 1 for i in where if i.lanes > 1):
            found.append(step.name)
    return found


MODES: dict[str, Callable[[Tensor], Tensor]] = {
    "bilinear": lambda x: F.interpolate(x, size=(13, 22), mode="bilinear", align_corners=False),
    "aligned": lambda x: F.interpolate(x, size=(13, 22), mode="bilinear", align_corners=True),
    "smaller": lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False),
    "factor": lambda x: F.interpolate(x, scale_factor=(1.7, 2), mode="bilinear", align_corners=False),
    "bicubic": lambda x: F.interpolate(x, size=(13, 22), mode="bicubic", align_corners=False),
    "nearest": lambda x: F.interpolate(x, size=(13, 22), mode="nearest"),
    "exact": lambda x: F.interpolate(x, size=(13, 22), mode="nearest-exact"),
}


@pytest.mark.parametrize("mode", MODES)
def test_an_image_of_tokens_is_read_in_vectors(mode: str) -> None:
    graph = graph_of(Tokens((5, 11), MODES[mode]), torch.randn(2, 55, 8))
    assert gathers(graph) == []
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([size_of(d, {}) for d in n.shape]).astype(np.float32) for n in graph.inputs]
    for got, expected in zip(run_plan(graph, planned(graph), inputs), run(graph, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_several_sizes_are_written_into_one_buffer() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(n, 16) for n in (8, 12))
            self.fuse = nn.Conv2d(32, 4, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            made = []
            for part, image in zip(self.parts, (x, y), strict=True):
                n, _, h, w = image.shape
                z = part(image.flatten(2).transpose(1, 2)).permute(0, 2, 1).reshape(n, -1, h, w)
                made.append(F.interpolate(z, size=(14, 10), mode="bilinear", align_corners=False))
            joined: Tensor = self.fuse(torch.cat(made, 1))
            return joined

    graph = graph_of(Head(), torch.randn(1, 8, 14, 10), torch.randn(1, 12, 7, 5))
    assert gathers(graph) == []
    made = planned(graph)
    (joined,) = [n for n in made.placements if n.attrs.get("in_place")]
    assert made.placements[joined].strides == channels_last(joined.shape)
    assert not any(n.op in ("cat", "copy") for s in made.steps if isinstance(s, Group) for n in s.nodes)


def test_an_image_in_rows_stays_in_rows() -> None:
    graph = graph_of(nn.Upsample(size=(13, 22), mode="bilinear"), torch.randn(1, 3, 5, 7))
    made = planned(graph)
    (result,) = made.outputs
    assert result is not None
    assert made.placements[result].strides == (3 * 13 * 22, 13 * 22, 22, 1)
