"""Layers of torch.nn.LSTM, GRU and RNN, each one operator of taskmap's torch library."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.arithmetic import add
from taskmap.graph.ops.join import cat, stack
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.recurrent import LstmGates, Operands, gru, lstm, pad_units, rnn, whole_panels
from taskmap.graph.ops.views import reshape, slice_, transpose
from taskmap.ir.construct import call, maximum, product, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _tanh(e: Expr) -> Expr:
    return call("tanh", e)


def _sigmoid(e: Expr) -> Expr:
    return call("sigmoid", e)


def _relu(e: Expr) -> Expr:
    return maximum(e, 0)


@lowering("taskmap.recurrent.default")
def recurrent(kind: str, x: Node, states: Sequence[Node], weights: Sequence[Node], biased: bool) -> list[Node]:
    """All states [steps, batch, directions * hidden], then the last ones, as the operator returns them."""
    steps, batch, width = x.shape
    each = 4 if biased else 2
    count, hidden = len(weights) // each, static_size(states[0].shape[2])
    if hidden is None:
        raise UnsupportedError("a recurrence with a symbolic number of units")
    of_input, of_state = weights[::each], weights[1::each]
    gates, units = GATES[kind], whole_panels(hidden)
    size = product([count, gates, units])
    weight = reshape(pad_units(stack(of_input), hidden), [size, width])
    given = mm(reshape(x, [product([steps, batch]), width]), transpose(weight, 0, 1))
    bias = None
    if biased:
        both = [_bias(kind, b, own, hidden) for b, own in zip(weights[2::4], weights[3::4], strict=True)]
        given = add(given, reshape(pad_units(stack(both), hidden), [size]))
        bias = stack([slice_(own, 0, 2 * hidden, 3 * hidden) for own in weights[3::4]]) if kind == "gru" else None
    given = reshape(given, [steps, batch, size])
    operands = Operands(given, stack(of_state), tuple(states), (False, True)[:count])
    if kind == "lstm":
        made = lstm(operands, LstmGates(0, 3, 1, 2), [(_sigmoid, _tanh, _sigmoid, _tanh)] * count)
    elif kind == "gru":
        made = gru(operands, (1, 0, 2), [(_sigmoid, _tanh)] * count, bias)
    else:
        made = rnn(operands, [_tanh if kind == "rnn_tanh" else _relu] * count)
    return [reshape(made.every, [steps, batch, count * hidden]), *made.last]


def _bias(kind: str, of_input: Node, of_state: Node, hidden: int) -> Node:
    """The bias added to the product with the input: everything except the part that a GRU's reset gate multiplies."""
    if kind != "gru":
        return add(of_input, of_state)
    gates = add(slice_(of_input, 0, 0, 2 * hidden), slice_(of_state, 0, 0, 2 * hidden))
    return cat([gates, slice_(of_input, 0, 2 * hidden, 3 * hidden)], 0)
