"""Group norms between convolutions: no pass of their own for what follows, no single elements, few sums of lanes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskmap.graph.analysis.placement import channels_last
from taskmap.graph.fusion.planning import Group
from taskmap.graph.reference import run
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Binary, Body, For, Kernel, LaneReduce, Load, Ramp, Store
from taskmap.ir.target import cpu_target
from taskmap.ir.visit import stmt_bodies, stmt_exprs, walk_exprs, walk_stmts
from taskmap.schedules import schedule
from tests.graph.networks import graph_of, kernels, planned
from tests.graph.running import run_plan

AVX512 = cpu_target("avx512", 2)


class Normed(nn.Module):
    """A convolution, a group norm, SiLU, a convolution."""

    def __init__(self, channels: int, groups: int, affine: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, channels, 1), nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.GroupNorm(groups, channels, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(F.silu(self.norm(self.a(x))))
        return y


@pytest.mark.parametrize("affine", [True, False])
def test_what_follows_a_group_norm_is_in_its_kernel(affine: bool) -> None:
    graph = graph_of(Normed(24, 3, affine), torch.randn(2, 4, 9, 8))
    made = planned(graph)
    assert [k for k in kernels(made) if "silu" in k] == ["pointwise: group_norm_silu"]
    (norm,) = (s for s in made.steps if isinstance(s, Group) and "silu" in s.name)
    (out,) = norm.task.outputs
    assert out.strides == channels_last(out.shape)
    inputs = [np.random.default_rng(0).standard_normal([static_size(d) or 1 for d in n.shape]) for n in graph.inputs]
    inputs = [x.astype(np.float32) for x in inputs]
    for mine, expected in zip(run_plan(graph, made, inputs), run(graph, inputs), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("channels", [64, 128])
def test_a_group_norm_of_images_reads_and_writes_neighbours(channels: int) -> None:
    # Groups of 8 channels fill half of a vector.
    for step in planned(graph_of(Normed(channels, 8), torch.randn(1, 4, 32, 32))).steps:
        if not isinstance(step, Group) or "silu" not in step.name:
            continue
        body = lower(schedule(step.task, AVX512), target=AVX512).body
        where = [e.indices[0] for e in walk_exprs(body) if isinstance(e, Load)]
        where += [s.indices[0] for s in walk_stmts(body) if isinstance(s, Store)]
        vectors = [i for i in where if i.lanes > 1]
        assert vectors
        assert all(isinstance(i, Ramp) and constant_value(i.stride) == 1 for i in vectors)


def test_sums_over_all_channels_compute_no_positions() -> None:
    # One group of 320 x 14 x 14 does not fill blocks of 16,384: in the last one, an element's place is its number, too.
    made = planned(graph_of(Normed(320, 1), torch.randn(1, 4, 14, 14)))
    sums = [s for s in made.steps if isinstance(s, Group) and s.kind == "reduce" and not s.once]
    assert [s.name for s in sums] == ["mean", "mean", "square_sum_mean_var_rstd"]  # distances are not stored
    for step in sums:
        body = lower(schedule(step.task, AVX512), target=AVX512).body
        where = [i for e in walk_exprs(body) if isinstance(e, Load) for i in e.indices]
        assert any(isinstance(i, Ramp) and constant_value(i.stride) == 1 for i in where)
        divided = [e for i in where for e in walk_exprs(i) if isinstance(e, Binary) and e.op in ("floordiv", "mod")]
        assert not divided, step.name


def test_statistics_of_channels_last_images_add_vectors() -> None:
    # Lanes are added once for a block of 1024 vectors, not once for the 16 neighbours of a group in each pixel.
    pixels = 64 * 64
    made = planned(graph_of(Normed(128, 8), torch.randn(1, 4, 64, 64)))
    rows = [s for s in made.steps if isinstance(s, Group) and s.kind == "row" and not s.once]
    assert rows
    for step in rows:
        kernel = schedule(step.task, AVX512)
        assert kernel.note.startswith("cpu.rows(row=16x64x64")
        assert 0 < _sums_of_lanes(kernel) <= 2 * 8 * pixels // 1024


def _sums_of_lanes(kernel: Kernel) -> int:
    """Times that a kernel adds the lanes of a vector."""

    def inside(body: Body, times: int) -> int:
        found = 0
        for s in body:
            own = [e for e in stmt_exprs(s) for e in walk_exprs(e)]
            found += times * sum(isinstance(e, LaneReduce) for e in own)
            again = times * (static_size(s.extent) or 1) if isinstance(s, For) else times
            found += sum(inside(b, again) for b in stmt_bodies(s))
        return found

    return inside(lower(kernel, target=AVX512).body, 1)
