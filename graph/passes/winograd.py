"""Winograd's minimal filtering: weights of convolutions of 3×3, transformed once.

    w [oc, c, 3, 3]   ->   transformed [ceil(oc / width), m + 2, m + 2, c, width]         F(m×m, 3×3)

The convolution stays one node, and its definition stays a sum over the window, of weights that are recovered from the
transformed ones. Its template finds the form in its attributes and works on the transformed weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol
from typing import cast as typed

from taskmap.graph.analysis.classify import redefined
from taskmap.graph.build import define
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Load, Var
from taskmap.ir.task import Compute, formal
from taskmap.ir.types import f32
from taskmap.ir.visit import map_expr
from taskmap.ir.winograd import (
    ATTRIBUTE,
    TAPS,
    FormChoice,
    WinogradForm,
    transformed_weight,
    weight_again,
    weight_shape,
)

TRANSFORM = "transform_weights"
"""The operator that transforms weights."""


class ChooseForm(Protocol):
    """The form by which a convolution of 3×3, of stride 1, is computed fastest."""

    def __call__(
        self, image: tuple[Dim, ...], out_channels: int, padding: tuple[int, int], hints: Mapping[Var, int]
    ) -> FormChoice:
        """``image``: [n, c, rows, columns]; ``hints``: likely values of symbolic sizes."""
        ...


@dataclass(frozen=True, slots=True)
class TransformWeights(GraphPass):
    """Transforms the constant weights of the convolutions for which ``choose`` has a form."""

    choose: ChooseForm
    name = "transform-weights"
    before = "every convolution reads the weights of the model"
    after = "convolutions by minimal filtering read transformed weights"
    why_here = "after folding into weights; before packing, which leaves transformed weights alone"

    def run(self, graph: Graph) -> Graph:
        """The same graph with transformed weights."""
        constant = graph.computed_once()
        made: dict[tuple[Node, WinogradForm, int], Node] = {}
        renamed: dict[Node, Node] = {}
        remarks = dict(graph.remarks)
        for node in graph.nodes():
            inputs = tuple(renamed.get(n, n) for n in node.inputs)
            now = node if inputs == node.inputs else replace(node, inputs=inputs)
            if is_candidate(node) and node not in constant:
                chosen = _NOT_CONSTANT if node.inputs[1] not in constant else self._chosen(node, graph.hints)
                remarks[node.id] = chosen.reason
                now = _transformed(now, chosen, made)
            if now is not node:
                renamed[node] = now
        outputs = [None if n is None else renamed.get(n, n) for n in graph.outputs]
        return replace(graph, outputs=outputs, remarks=remarks)

    def _chosen(self, node: Node, hints: Mapping[Var, int]) -> FormChoice:
        x, weight = node.inputs
        padding = typed("tuple[int, int]", node.attrs["padding"])
        return self.choose(x.shape, typed(int, weight.shape[0]), padding, hints)


_NOT_CONSTANT = FormChoice(None, 0, "direct: its weights may change from call to call")


def _transformed(node: Node, chosen: FormChoice, made: dict[tuple[Node, WinogradForm, int], Node]) -> Node:
    if chosen.form is None:
        return node
    key = (node.inputs[1], chosen.form, chosen.width)
    if key not in made:
        made[key] = replace(transformed(node.inputs[1], chosen.form, chosen.width), origin=node.origin)
    return reading(node, made[key], chosen.form)


def is_candidate(node: Node) -> bool:
    """True for a convolution of f32 with a window of 3×3, stride 1 and one group."""
    if node.op != "convolution" or node.define is None or node.dtype != f32 or ATTRIBUTE in node.attrs:
        return False
    if len(node.inputs) != 2 or any(n.dtype != f32 for n in node.inputs):
        return False
    weight, attrs = node.inputs[1], node.attrs
    slide = attrs["stride"] == attrs["dilation"] == (1, 1) and attrs["groups"] == 1 and not attrs["transposed"]
    return slide and weight.shape[2:] == (TAPS, TAPS) and all(static_size(n) for n in weight.shape)


def transformed(weight: Node, form: WinogradForm, width: int) -> Node:
    """A node that holds G g Gᵀ of every filter g of ``weight``, computed in f64."""
    out_channels, channels = (typed(int, n) for n in weight.shape[:2])

    def element(w: Buffer) -> Callable[..., ExprLike]:
        return lambda *place: transformed_weight(form, w, width, place)

    shape = weight_shape(form, channels, out_channels, width)
    return define(TRANSFORM, [weight], shape, element, f32, **{ATTRIBUTE: form.outputs})


def reading(node: Node, weights: Node, form: WinogradForm) -> Node:
    """``node`` on transformed weights."""
    old = node.define
    assert old is not None
    was = old.inputs[1]
    now = formal("transformed", weights.shape, weights.dtype)

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer is not was:
            return None
        out_channel, channel, *taps = e.indices
        return weight_again(form, now, out_channel, channel, taps)

    body = map_expr(old.body, one)
    fresh = Compute(old.name, (old.inputs[0], now), old.shape, old.dtype, old.axes, body)
    attrs = MappingProxyType({**node.attrs, ATTRIBUTE: form.outputs})
    return replace(redefined(node, (node.inputs[0], weights), fresh), attrs=attrs)
