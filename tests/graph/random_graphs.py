"""Random graphs of compute nodes: element-wise chains, views, reductions, products and concatenations, with reuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.arithmetic import add, mul, sub
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.norms import layer_norm
from taskmap.graph.ops.pointwise import math_function, to_dtype
from taskmap.graph.ops.pooling import max_pool
from taskmap.graph.ops.reductions import amax, mean, sum_
from taskmap.graph.ops.softmax import softmax
from taskmap.graph.ops.views import copy, expand, permute, reshape, slice_, unsqueeze
from taskmap.ir.construct import product, static_size
from taskmap.ir.types import bf16, f32, f64

Draw = Callable[[st.SearchStrategy[Any]], Any]
LARGEST = 600
UNARY: list[Callable[[Node], Node]] = [
    relu,
    lambda v: math_function("tanh", v),
    lambda v: mul(v, 0.5),
    lambda v: add(v, 1),
]


@dataclass
class Growing:
    """The values made so far; each step adds one that reads some of them."""

    draw: Draw
    values: list[Node] = field(default_factory=list)

    def pick(self, fits: Callable[[Node], bool] = lambda _: True) -> Node | None:
        found = [v for v in self.values if fits(v)]
        # Later values are picked more often, so that chains grow long.
        return found[-1 - min(self.draw(st.integers(0, 5)), len(found) - 1)] if found else None

    def dim_of(self, x: Node) -> int:
        return int(self.draw(st.integers(0, len(x.shape) - 1)))

    def unary(self) -> Node | None:
        x = self.pick()
        op = self.draw(st.sampled_from(UNARY))
        return None if x is None else op(x)

    def binary(self) -> Node | None:
        x = self.pick()
        if x is None:
            return None
        y = self.pick(lambda v: _broadcasts(v.shape, x.shape))
        return None if y is None else self.draw(st.sampled_from([add, mul, sub]))(x, y)

    def view(self) -> Node | None:
        x = self.pick(lambda v: len(v.shape) > 0)
        if x is None:
            return None
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            order = self.draw(st.permutations(range(len(x.shape))))
            return permute(x, order)
        if kind == 1:
            return reshape(x, (-1,)) if self.draw(st.booleans()) else _paired(x, self.dim_of(x))
        if kind == 2:
            return unsqueeze(x, self.dim_of(x))
        if kind == 3:
            d = self.dim_of(x)
            size = static_size(x.shape[d])
            return None if size is None else slice_(x, d, 0, max(1, size // 2))
        if kind == 4 and (static_size(product(x.shape)) or LARGEST) * 3 <= LARGEST:
            return expand(unsqueeze(x, 0), (3, *x.shape))
        return copy(x)

    def reduction(self) -> Node | None:
        x = self.pick(lambda v: len(v.shape) > 0)
        if x is None:
            return None
        d, keep = self.dim_of(x), self.draw(st.booleans())
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            return softmax(x, d)
        if kind == 1:
            return layer_norm(x, x.shape[-1:], None, None, 1e-5)[0]
        if kind == 2:
            return amax(x, d, keep)
        if kind == 3:
            return sum_(x, None)
        return (mean if kind == 4 else sum_)(x, (d,) if kind == 4 else d, keep)

    def contraction(self) -> Node | None:
        x = self.pick(lambda v: len(v.shape) == 2)
        if x is None:
            return None
        y = self.pick(lambda v: len(v.shape) == 2 and v.shape[0] == x.shape[1])
        return mm(x, y) if y is not None else mm(x, permute(x, (1, 0)))

    def image(self) -> Node | None:
        x = self.pick(lambda v: len(v.shape) == 4)
        if x is None:
            return None
        w = self.pick(lambda v: len(v.shape) == 4 and v.shape[1:] == (x.shape[1], 1, 1))
        if w is not None and self.draw(st.booleans()):
            return convolution(x, w, (1, 1), (0, 0), (1, 1))
        return max_pool(x, 2, (1, 1))[0]

    def joined(self) -> Node | None:
        x = self.pick(lambda v: len(v.shape) > 0)
        if x is None:
            return None
        y = self.pick(lambda v: v.shape == x.shape)
        return None if y is None else cat([x, y], self.dim_of(x))

    def converted(self) -> Node | None:
        x = self.pick()
        return None if x is None else to_dtype(to_dtype(x, self.draw(st.sampled_from([f64, bf16]))), f32)


def _broadcasts(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    return all(p in (1, q) or q == 1 for p, q in pairs)


def _paired(x: Node, d: int) -> Node:
    """Merges dimension d with the next one; keeps it alone if it is the last."""
    if d + 1 >= len(x.shape):
        return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    return reshape(x, (*x.shape[:d], product(x.shape[d : d + 2]), *x.shape[d + 2 :]))


SHAPES = ((4, 6), (6, 4), (6,), (2, 3, 4), (2, 4, 3, 3), (3, 4, 1, 1), (24,), (2, 4, 6))


@st.composite
def graphs(draw: Draw) -> Graph:
    """A graph of up to 18 operators over a few inputs, some of them constant; every unread value is a result."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=5))
    inputs = [InputNode((), shape, f32, i) for i, shape in enumerate(shapes)]
    growing = Growing(draw, list(inputs))
    steps = [
        growing.unary, growing.binary, growing.view, growing.reduction, growing.contraction, growing.image,
        growing.joined, growing.converted,
    ]  # fmt: skip
    for step in draw(st.lists(st.sampled_from(steps), min_size=3, max_size=18)):
        made = step()
        if made is not None and (static_size(product(made.shape)) or 1) <= LARGEST and len(made.shape) <= 5:
            growing.values.append(made)
    read = {x for n in growing.values for x in n.inputs}
    unread = [n for n in growing.values if n not in read and n.is_compute] or growing.values[-1:]
    results = [*unread, *draw(st.lists(st.sampled_from(growing.values), max_size=2))]
    constant = draw(st.frozensets(st.integers(0, len(inputs) - 1)))
    return Graph(inputs, list(results), {}, constant)


def arrays_for(graph: Graph, seed: int) -> list[Any]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal([int(n) for n in x.shape]).astype(np.float32) for x in graph.inputs]  # type: ignore[arg-type]  # sizes are known
