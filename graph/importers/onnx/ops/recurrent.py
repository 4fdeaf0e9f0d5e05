"""RNN, GRU and LSTM: a product of all inputs, then a loop over the steps (``graph.ops.recurrent``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.read.call import OnnxCall, dims_text
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.arithmetic import add
from taskmap.graph.ops.gather import checked
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.recurrent import Function, LstmGates, Operands, States, gru, lstm, pad_units, rnn, whole_panels
from taskmap.graph.ops.views import permute, reshape, slice_, transpose
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import compare, eq, index, maximum, minimum, select, static_size, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import i64


@lru_cache(maxsize=256)  # directions with the same activation share the function
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
    """The common part of the three operators: sizes, directions, activations, and the layout of results."""

    def __init__(self, call: OnnxCall, gates: int, defaults: Sequence[str], own_bias: int | None = None) -> None:
        self.call, self.gates = call, gates
        self.batch_first = bool(call.attr("layout", 0))
        x = call.node(0)
        if len(x.shape) != 3:
            raise call.error(f"{call.named(0)} has {len(x.shape)} dimensions, not 3")
        self.x = permute(x, [1, 0, 2]) if self.batch_first else x
        self.steps, self.batch, width = self.x.shape
        weights = concrete(call.tensor(1).shape, call.op)
        recurrent = concrete(call.tensor(2).shape, call.op)
        self.hidden = recurrent[-1]
        direction = call.attr("direction", "forward")
        self.directions = 2 if direction == "bidirectional" else 1
        self.backward = (direction == "reverse",) if self.directions == 1 else (False, True)
        size = gates * self.hidden
        if (*weights[:-1], *recurrent) != (self.directions, size, self.directions, size, self.hidden):
            both = f"{call.named(1)} has shape {list(weights)}, and {call.named(2)} {list(recurrent)}."
            raise call.error("its weights do not fit each other", both)
        if static_size(width) not in (None, weights[-1]):
            why = f"its weights {shown(call.proto.input[1])} are for a width of {weights[-1]}."
            raise call.error(f"{call.named(0)} of shape {dims_text(x.shape)} has a width of {width}", why)
        call.same(width, weights[-1])
        self.clip = call.attr("clip")
        names = call.attr("activations") or list(defaults) * self.directions
        alphas, betas = list(call.attr("activation_alpha") or []), list(call.attr("activation_beta") or [])
        self.per_direction = len(defaults)
        self.activations = [
            _activation(n, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None)
            for i, n in enumerate(names)
        ]
        self._check(call)
        self.lengths = None
        if call.has(4):
            self.lengths = pointwise("lengths", (call.node(4),), lambda n: checked(n, self.steps + 1), i64, i64)
        self.given = self._inputs(own_bias)

    def _check(self, call: OnnxCall) -> None:
        """Raises ImportGraphError for parameters and states whose shapes do not fit."""
        d, b, h = self.directions, self.batch, self.hidden
        state: tuple[Dim, ...] = (b, d, h) if self.batch_first else (d, b, h)
        wanted = {3: (d, 2 * self.gates * h), 4: (b,), 5: state, 6: state, 7: (d, 3 * h)}
        for place, shape in wanted.items():
            if not call.has(place):
                continue
            given = call.tensor(place).shape
            pairs = list(zip(given, shape, strict=False))
            known = [(static_size(a), static_size(b)) for a, b in pairs]
            if len(given) != len(shape) or any(None not in pair and pair[0] != pair[1] for pair in known):
                raise call.error(f"{call.named(place)} has shape {dims_text(given)}, not {dims_text(shape)}")
            for have, want in pairs:
                call.same(have, want)
        if len(self.activations) != d * self.per_direction:
            raise call.error(f"{len(self.activations)} activations for {d} directions")

    def functions(self) -> list[list[Function]]:
        """The activations of each direction."""
        count = self.per_direction
        return [self.activations[d * count : (d + 1) * count] for d in range(self.directions)]

    def clipped(self, function: Function) -> Function:
        """``function`` with its argument clamped to the bounds."""
        return function if self.clip is None else _clipped(function, float(self.clip))

    def initial(self, place: int) -> Node | None:
        """An initial state [directions, batch, hidden], or None."""
        state = self.call.optional(place)
        return permute(state, [1, 0, 2]) if state is not None and self.batch_first else state

    def operands(self, *places: int) -> Operands:
        """The operands of the loop, with initial states from the inputs at ``places``."""
        initial = tuple(self.initial(p) for p in places)
        return Operands(self.given, self.call.node(2), initial, self.backward, self.lengths)

    def _inputs(self, own_bias: int | None) -> Node:
        """x W' + biases for all steps: [steps, batch, directions * gates * units]. Gate ``own_bias`` leaves out the
        bias of the recurrent product."""
        hidden, units = self.hidden, whole_panels(self.hidden)
        size = self.directions * self.gates * units
        weight = reshape(pad_units(self.call.node(1), hidden), [size, self.call.node(1).shape[2]])
        made = matmul(self.x, transpose(weight, 0, 1))
        if not self.call.has(3):
            return made
        bias = self.call.node(3)
        count = self.gates

        def element(f: Buffer) -> Callable[..., ExprLike]:
            def at(c: Expr) -> Expr:
                part, unit = c // index(units), c % index(units)
                d, gate = part // count, part % count
                at = gate * hidden + minimum(unit, hidden - 1)
                of_input, of_state = f[d, at], f[d, at + count * hidden]
                both = of_input + of_state
                return both if own_bias is None else select(eq(gate, own_bias), of_input, both)

            return at

        return add(made, define("bias", [bias], (size,), element, bias.dtype))

    def outputs(self, states: States) -> list[Node | None]:
        """Y [steps, directions, batch, hidden] and the last states [directions, batch, hidden]."""
        y = states.every if self.lengths is None else _masked(states.every, self.lengths)
        results: list[Node | None] = [permute(y, [1, 0, 2, 3] if self.batch_first else [0, 2, 1, 3])]
        return results + [permute(s, [1, 0, 2]) if self.batch_first else s for s in states.last]


@lru_cache(maxsize=256)
def _clipped(function: Function, bound: float) -> Function:
    return lambda e: function(minimum(maximum(e, number(-bound, e.dtype)), number(bound, e.dtype)))


def _masked(y: Node, lengths: Node) -> Node:
    """``y`` [steps, batch, ...] with zeros after the end of each sequence."""

    def element(f: Buffer, n: Buffer) -> Callable[..., ExprLike]:
        return lambda *at: select(compare("lt", at[0], n[at[1]]), f[at], 0)

    return define("masked", [y, lengths], y.shape, element, y.dtype)


@lowering("RNN", since=7)
def _rnn(call: OnnxCall) -> list[Node | None]:
    net = Net(call, 1, ["Tanh"])
    return net.outputs(rnn(net.operands(5), [net.clipped(f) for (f,) in net.functions()]))


@lowering("LSTM", since=7)
def _lstm(call: OnnxCall) -> list[Node | None]:
    net = Net(call, 4, ["Sigmoid", "Tanh", "Tanh"])
    functions = [(net.clipped(f), net.clipped(g), net.clipped(f), h) for f, g, h in net.functions()]
    peepholes, coupled = call.optional(7), bool(call.attr("input_forget", 0))
    return net.outputs(lstm(net.operands(5, 6), LstmGates(0, 1, 2, 3), functions, peepholes, coupled))


@lowering("GRU", since=7)
def _gru(call: OnnxCall) -> list[Node | None]:
    after = bool(call.attr("linear_before_reset", 0))
    net = Net(call, 3, ["Sigmoid", "Tanh"], own_bias=2 if after else None)
    functions = [(net.clipped(f), net.clipped(g)) for f, g in net.functions()]
    bias = slice_(call.node(3), 1, 5 * net.hidden, 6 * net.hidden) if after and call.has(3) else None
    return net.outputs(gru(net.operands(5), (0, 1, 2), functions, bias, not after))
