"""Networks on graphs and point sets: sums, maxima and softmax over the edges of a node."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.sweep.entry import Entry, Inputs, rows


class Convolved(nn.Module):
    """Graph convolution (Kipf and Welling, 2016): each node sums its neighbours' features over roots of degrees."""

    def __init__(self, into: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(into, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, out)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        ones = torch.ones(source.shape[0], dtype=x.dtype, device=x.device)
        degree = torch.ones(x.shape[0], dtype=x.dtype, device=x.device).index_add(0, target, ones)
        scale = degree.rsqrt()
        for k, layer in enumerate(self.layers):
            y = layer(x) * scale[:, None]
            x = (y.index_add(0, target, y[source])) * scale[:, None]
            x = x.relu() if k < 2 else x
        return x


class Attended(nn.Module):
    """Graph attention (Velickovic et al., 2017): a softmax over each node's edges, by heads."""

    def __init__(self, into: int, hidden: int, heads: int, out: int) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList([nn.Linear(into, heads * hidden), nn.Linear(heads * hidden, heads * out)])
        self.ends = nn.ParameterList([torch.randn(2, heads, n) * n**-0.5 for n in (hidden, out)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for layer, ends in zip(self.layers, self.ends, strict=True):
            y = layer(x).unflatten(1, (self.heads, -1))
            score = nn.functional.leaky_relu((y * ends[0]).sum(-1)[source] + (y * ends[1]).sum(-1)[target], 0.2)
            place = target[:, None].expand_as(score)
            least = torch.full((x.shape[0], self.heads), -1e30, dtype=x.dtype, device=x.device)
            top = least.scatter_reduce(0, place, score, "amax")
            weight = (score - top[target]).exp()
            total = torch.zeros_like(top).index_add(0, target, weight) + 1e-9
            mixed = torch.zeros_like(y).index_add(0, target, (weight / total[target])[..., None] * y[source])
            x = nn.functional.elu(mixed.flatten(1))
        return x


def _edges(nodes: int, edges: int, width: int) -> Inputs:
    return torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))


def _graph(batch: int, small: bool) -> Inputs:
    """``batch`` graphs beside each other, as one."""
    return _edges(30 * batch, 90 * batch, 16) if small else _edges(2708 * batch, 10556 * batch, 256)


class PointNet(nn.Module):
    """A class of a point set (N, 3, points): a perceptron of each point, then the maximum over points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out in ((3, width), (width, width), (width, 2 * width), (2 * width, 16 * width)):
            layers += [nn.Conv1d(into, out, 1), nn.BatchNorm1d(out), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(16 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, 40))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).amax(2))
        return y


ENTRIES = (
    Entry(
        "gcn", "graph", lambda small: Convolved(16, 8, 3) if small else Convolved(256, 128, 7), _graph,
        "Kipf and Welling, 2016",
    ),
    Entry(
        "gat", "graph", lambda small: Attended(16, 4, 2, 3) if small else Attended(256, 8, 8, 7), _graph,
        "Velickovic et al., 2017",
    ),
    Entry("pointnet", "graph", lambda small: PointNet(8 if small else 64), rows((3, 1024)), "Qi et al., 2016"),
)  # fmt: skip
