"""RNN, GRU and LSTM, one step after another; their products with the input are made for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.graph import Node
from taskmap.graph.importers.onnx.call import Call
from taskmap.graph.importers.onnx.host import concrete
from taskmap.graph.importers.onnx.matmul import matmul
from taskmap.graph.importers.onnx.shapes import joined
from taskmap.graph.importers.onnx.table import lowering
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.gather import checked
from taskmap.graph.ops.logic import where
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.views import permute, reshape, select_, slice_, transpose, unsqueeze
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import compare, maximum, minimum, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr

LONGEST = 256
"""Longer sequences are not unrolled."""

Function = Callable[[Expr], Expr]


def _activation(name: str, alpha: float | None, beta: float | None) -> Function:
    lowered = name.lower()
    a = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
    b = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}
    first = a.get(lowered, 0.0) if alpha is None else alpha
    second = b.get(lowered, 0.0) if beta is None else beta

    def relu(e: Expr) -> Expr:
        return maximum(e, number(0, e.dtype))

    table: dict[str, Function] = {
        "relu": relu,
        "tanh": lambda e: function_call("tanh", e),
        "sigmoid": lambda e: function_call("sigmoid", e),
        "affine": lambda e: e * number(first, e.dtype) + number(second, e.dtype),
        "leakyrelu": lambda e: select(compare("lt", e, number(0, e.dtype)), e * number(first, e.dtype), e),
        "thresholdedrelu": lambda e: select(compare("ge", e, number(first, e.dtype)), e, number(0, e.dtype)),
        "scaledtanh": lambda e: number(first, e.dtype) * function_call("tanh", number(second, e.dtype) * e),
        "hardsigmoid": lambda e: minimum(
            maximum(e * number(first, e.dtype) + number(second, e.dtype), number(0, e.dtype)), number(1, e.dtype)
        ),
        "elu": lambda e: select(
            compare("ge", e, number(0, e.dtype)), e, number(first, e.dtype) * function_call("expm1", e)
        ),
        "softsign": lambda e: e / (number(1, e.dtype) + unary("abs", e)),
        "softplus": lambda e: function_call("log1p", function_call("exp", e)),
    }
    if lowered not in table:
        raise UnsupportedError(f"the activation {name}")
    return table[lowered]


class Net:
    """What the three operators share: sizes, directions, activations, and how results are put together."""

    def __init__(self, call: Call, gates: int, defaults: Sequence[str]) -> None:
        self.call = call
        self.batch_first = bool(call.attr("layout", 0))
        x = call.node(0)
        self.x = permute(x, [1, 0, 2]) if self.batch_first else x
        self.steps, self.batch, self.width = concrete(self.x.shape, call.op)
        if self.steps > LONGEST:
            raise UnsupportedError(f"{call.op} over {self.steps} steps")
        weights = concrete(call.tensor(1).shape, call.op)
        recurrent = concrete(call.tensor(2).shape, call.op)
        self.hidden = recurrent[-1]
        direction = call.attr("direction", "forward")
        self.directions = 2 if direction == "bidirectional" else 1
        self.backward = [direction == "reverse"] if self.directions == 1 else [False, True]
        if weights != (self.directions, gates * self.hidden, self.width) or recurrent != (
            self.directions,
            gates * self.hidden,
            self.hidden,
        ):
            raise call.error(f"weights of shape {list(weights)} and {list(recurrent)} do not fit")
        self.gates = gates
        self.clip = call.attr("clip")
        names = call.attr("activations") or list(defaults) * self.directions
        alphas, betas = list(call.attr("activation_alpha") or []), list(call.attr("activation_beta") or [])
        self.per_direction = len(defaults)
        self.activations = [
            _activation(n, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None)
            for i, n in enumerate(names)
        ]
        self.lengths = call.optional(4)
        self._check(call)

    def _check(self, call: Call) -> None:
        """Raises ImportGraphError for parameters and states whose shapes do not fit."""
        d, b, h = self.directions, self.batch, self.hidden
        state = (b, d, h) if self.batch_first else (d, b, h)
        wanted = {3: (d, 2 * self.gates * h), 4: (b,), 5: state, 6: state, 7: (d, 3 * h)}
        for place, shape in wanted.items():
            if call.has(place) and concrete(call.tensor(place).shape, call.op) != shape:
                raise call.error(f"input {place} has shape {list(call.tensor(place).shape)}, not {list(shape)}")
        if len(self.activations) != d * self.per_direction:
            raise call.error(f"{len(self.activations)} activations for {d} directions")

    def functions(self, d: int) -> list[Function]:
        """The activations of a direction."""
        return self.activations[d * self.per_direction : (d + 1) * self.per_direction]

    def clipped(self, e: Expr) -> Expr:
        """The argument of an activation held inside the bounds."""
        if self.clip is None:
            return e
        return minimum(maximum(e, number(-self.clip, e.dtype)), number(self.clip, e.dtype))

    def part(self, node: Node, d: int) -> Node:
        """The parameters of a direction."""
        return select_(node, 0, d)

    def gate(self, node: Node, i: int) -> Node:
        """The i-th of the gates in the last dimension."""
        return slice_(node, -1, i * self.hidden, (i + 1) * self.hidden)

    def initial(self, place: int, d: int) -> Node:
        """An initial state [batch, hidden]."""
        if not self.call.has(place):
            return full([self.batch, self.hidden], 0.0, self.x.dtype)
        state = self.call.node(place)
        return select_(state, 1 if self.batch_first else 0, d)

    def inputs(self, d: int, with_recurrent_bias: Sequence[int]) -> Node:
        """x W' + bias for all steps: [steps, batch, gates * hidden]; the recurrent bias only of the given gates."""
        weight = self.part(self.call.node(1), d)
        made = matmul(self.x, transpose(weight, 0, 1))
        if not self.call.has(3):
            return made
        bias = self.part(self.call.node(3), d)
        size = self.gates * self.hidden
        made = _plus(made, slice_(bias, 0, 0, size))
        own = slice_(bias, 0, size, 2 * size)
        if len(with_recurrent_bias) == self.gates:
            return _plus(made, own)
        zero = full([self.hidden], 0.0, self.x.dtype)
        kept = [self.gate(own, g) if g in with_recurrent_bias else zero for g in range(self.gates)]
        return _plus(made, joined(kept, 0))

    def held(self, step: int, new: Node, old: Node) -> Node:
        """``new`` where the sequence is longer than ``step``, else ``old``."""
        if self.lengths is None:
            return new
        longer = pointwise("longer", (self.lengths,), lambda n: compare("gt", checked(n, self.steps + 1), step))
        return where(reshape(longer, [self.batch, 1]), new, old)

    def order(self, d: int) -> list[int]:
        """The steps in the order in which a direction takes them."""
        return list(reversed(range(self.steps))) if self.backward[d] else list(range(self.steps))

    def outputs(self, all_steps: list[list[Node]], last: list[list[Node]]) -> list[Node | None]:
        """Y [steps, directions, batch, hidden] and the last states [directions, batch, hidden]."""
        per_step = [joined([unsqueeze(one[s], 0) for one in all_steps], 0) for s in range(self.steps)]
        y = joined([unsqueeze(p, 0) for p in per_step], 0)
        results: list[Node | None] = [permute(y, [2, 0, 1, 3]) if self.batch_first else y]
        for states in zip(*last, strict=True):
            state = joined([unsqueeze(s, 0) for s in states], 0)
            results.append(permute(state, [1, 0, 2]) if self.batch_first else state)
        return results

    def masked(self, step: int, value: Node) -> Node:
        """A result of a step: zero where the sequence has ended."""
        return self.held(step, value, full([self.batch, self.hidden], 0.0, self.x.dtype))


def _plus(a: Node, b: Node) -> Node:
    return pointwise("add", (a, b), lambda p, q: p + q, a.dtype, a.dtype)


@lowering("RNN", since=7)
def _rnn(call: Call) -> list[Node | None]:
    net = Net(call, 1, ["Tanh"])
    every: list[list[Node]] = []
    last: list[list[Node]] = []
    for d in range(net.directions):
        (f,) = net.functions(d)
        given, weight = net.inputs(d, [0]), transpose(net.part(call.node(2), d), 0, 1)
        state = net.initial(5, d)
        made: dict[int, Node] = {}
        for t in net.order(d):
            total = _plus(select_(given, 0, t), matmul(state, weight))
            new = pointwise("rnn", (total,), lambda e, f=f: f(net.clipped(e)))
            made[t] = net.masked(t, new)
            state = net.held(t, new, state)
        every.append([made[t] for t in range(net.steps)])
        last.append([state])
    return net.outputs(every, last)


@lowering("LSTM", since=7)
def _lstm(call: Call) -> list[Node | None]:
    net = Net(call, 4, ["Sigmoid", "Tanh", "Tanh"])
    coupled = bool(call.attr("input_forget", 0))
    every: list[list[Node]] = []
    last: list[list[Node]] = []
    for d in range(net.directions):
        f, g, h = net.functions(d)
        given, weight = net.inputs(d, [0, 1, 2, 3]), transpose(net.part(call.node(2), d), 0, 1)
        peep = [net.gate(net.part(call.node(7), d), i) for i in range(3)] if call.has(7) else None
        state, cell = net.initial(5, d), net.initial(6, d)
        made: dict[int, Node] = {}
        for t in net.order(d):
            total = _plus(select_(given, 0, t), matmul(state, weight))
            i, o, forget, c = (net.gate(total, k) for k in range(4))
            if peep is not None:
                i, forget = (_peeked(v, p, cell) for v, p in ((i, peep[0]), (forget, peep[2])))
            gate_i = pointwise("gate", (i,), lambda e, f=f: f(net.clipped(e)))
            if coupled:
                gate_f = pointwise("gate", (gate_i,), lambda e: number(1, e.dtype) - e)
            else:
                gate_f = pointwise("gate", (forget,), lambda e, f=f: f(net.clipped(e)))
            candidate = pointwise("gate", (c,), lambda e, g=g: g(net.clipped(e)))
            new_cell = pointwise("cell", (gate_f, cell, gate_i, candidate), lambda a, b, p, q: a * b + p * q)
            if peep is not None:
                o = _peeked(o, peep[1], new_cell)
            new = pointwise("state", (o, new_cell), lambda a, b, f=f, h=h: f(net.clipped(a)) * h(b))
            made[t] = net.masked(t, new)
            state, cell = net.held(t, new, state), net.held(t, new_cell, cell)
        every.append([made[t] for t in range(net.steps)])
        last.append([state, cell])
    return net.outputs(every, last)


def _peeked(value: Node, weight: Node, cell: Node) -> Node:
    return pointwise("peep", (value, weight, cell), lambda v, w, c: v + w * c)


@lowering("GRU", since=7)
def _gru(call: Call) -> list[Node | None]:
    net = Net(call, 3, ["Sigmoid", "Tanh"])
    after = bool(call.attr("linear_before_reset", 0))
    every: list[list[Node]] = []
    last: list[list[Node]] = []
    for d in range(net.directions):
        f, g = net.functions(d)
        given = net.inputs(d, [0, 1] if after else [0, 1, 2])
        recurrent = net.part(call.node(2), d)
        weight = transpose(slice_(recurrent, 0, 0, 2 * net.hidden), 0, 1)
        inner = transpose(slice_(recurrent, 0, 2 * net.hidden, 3 * net.hidden), 0, 1)
        bias = None
        if after and call.has(3):
            bias = slice_(net.part(call.node(3), d), 0, 5 * net.hidden, 6 * net.hidden)
        state = net.initial(5, d)
        made: dict[int, Node] = {}
        for t in net.order(d):
            step = select_(given, 0, t)
            both = _plus(slice_(step, -1, 0, 2 * net.hidden), matmul(state, weight))
            gates = pointwise("gate", (both,), lambda e, f=f: f(net.clipped(e)))
            z, r = net.gate(gates, 0), net.gate(gates, 1)
            own = net.gate(step, 2)
            if after:
                part = matmul(state, inner)
                part = part if bias is None else _plus(part, bias)
                hidden = pointwise("hidden", (own, r, part), lambda a, b, c, g=g: g(net.clipped(a + b * c)))
            else:
                part = matmul(pointwise("reset", (r, state), lambda a, b: a * b), inner)
                hidden = pointwise("hidden", (own, part), lambda a, b, g=g: g(net.clipped(a + b)))
            new = pointwise("state", (z, hidden, state), lambda a, b, c: (number(1, a.dtype) - a) * b + a * c)
            made[t] = net.masked(t, new)
            state = net.held(t, new, state)
        every.append([made[t] for t in range(net.steps)])
        last.append([state])
    return net.outputs(every, last)
