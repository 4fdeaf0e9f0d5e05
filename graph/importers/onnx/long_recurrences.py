"""RNN, GRU and LSTM over many steps: a Scan over pieces that are unrolled, which the host runs one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, helper, numpy_helper

from taskmap.graph.importers.onnx.call import Call
from taskmap.graph.importers.onnx.elements import numpy_type
from taskmap.graph.importers.onnx.host import concrete

PIECE = 64
"""Steps that are unrolled together."""
OPERATORS = {"RNN": (1, False), "GRU": (2, False), "LSTM": (3, True)}
"""How many activations a direction has, and whether there is a cell beside the state."""
OPSET = 21


def long_body(call: Call) -> FunctionProto | None:
    """The operator as a function of shorter ones, for each direction by itself.

    None for other operators, sequences of different lengths and those that are no longer than a piece.
    """
    if call.domain != "" or call.op not in OPERATORS or call.has(4):
        return None
    steps, batch, _ = concrete(call.tensor(0).shape, call.op)
    if call.attr("layout", 0):
        steps, batch = batch, steps
    if steps <= PIECE:
        return None
    builder = _Builder(call, steps, batch)
    return helper.make_function(
        "taskmap", f"Long{call.op}", builder.given, builder.results(), builder.nodes, [helper.make_opsetid("", OPSET)]
    )


class _Builder:
    """Collects the nodes of the function."""

    def __init__(self, call: Call, steps: int, batch: int) -> None:
        self.call, self.steps, self.batch = call, steps, batch
        self.width = concrete(call.tensor(0).shape, call.op)[-1]
        self.hidden = concrete(call.tensor(2).shape, call.op)[-1]
        self.activations, self.has_cell = OPERATORS[call.op]
        self.batch_first = bool(call.attr("layout", 0))
        direction = call.attr("direction", "forward")
        self.backward = [False, True] if direction == "bidirectional" else [direction == "reverse"]
        self.given = ["X", "W", "R", "B", "lengths", "h", "c", "P"][: len(call.inputs)]
        self.nodes: list[NodeProto] = []

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """One more node; the name of its result."""
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        """One more constant; its name."""
        return self.add("Constant", [], name, value=numpy_helper.from_array(np.asarray(value), name))

    def sliced(self, x: str, output: str, first: int, last: int) -> str:
        """``x`` from ``first`` to ``last`` along its first dimension."""
        bounds = [
            self.constant(f"{output}_{name}", np.array([value], np.int64))
            for name, value in (("from", first), ("to", last), ("axis", 0))
        ]
        return self.add("Slice", [x, *bounds], output)

    def reshaped(self, x: str, output: str, shape: list[int]) -> str:
        """``x`` in another shape."""
        return self.add("Reshape", [x, self.constant(f"{output}_shape", np.array(shape, np.int64))], output)

    def results(self) -> list[str]:
        """The names of the results, after adding all nodes."""
        x = self.add("Transpose", ["X"], "by_steps", perm=[1, 0, 2]) if self.batch_first else "X"
        whole = self.steps // PIECE * PIECE
        head = self.sliced(x, "head", 0, whole)
        pieces = self.reshaped(head, "pieces", [whole // PIECE, PIECE, self.batch, self.width])
        tail = self.sliced(x, "tail", whole, self.steps) if whole < self.steps else ""
        parts = [self.direction(d, pieces, tail, whole) for d in range(len(self.backward))]
        y = self.add("Concat", [p[0] for p in parts], "Y", axis=1)
        states = [self.add("Concat", [p[k] for p in parts], f"Y{k}", axis=0) for k in range(1, len(parts[0]))]
        if self.batch_first:
            y = self.add("Transpose", [y], "Y_by_batch", perm=[2, 0, 1, 3])
            states = [self.add("Transpose", [s], f"{s}_by_batch", perm=[1, 0, 2]) for s in states]
        return [y, *states][: self.call.outputs]

    def direction(self, d: int, pieces: str, tail: str, whole: int) -> list[str]:
        """The results of one direction: [steps, 1, batch, hidden], and the last states [1, batch, hidden]."""
        own = {n: self.sliced(n, f"{n}{d}", d, d + 1) for n in ("W", "R", "B", "P") if self.is_given(n)}
        states = [self.initial(n, d) for n in (["h", "c"] if self.has_cell else ["h"])]
        backward = self.backward[d]
        after = ""
        if tail and backward:
            after, *states = self.step(self.nodes, d, own, tail, states, f"_tail{d}")
        outputs = [*(f"scanned_{s}" for s in states), f"scanned_y{d}"]
        self.nodes.append(
            helper.make_node(
                "Scan", [*states, pieces], outputs, body=self.body(d, own, len(states)), num_scan_inputs=1,
                scan_input_directions=[int(backward)], scan_output_directions=[int(backward)],
            )
        )  # fmt: skip
        *states, scanned = outputs
        y = self.reshaped(scanned, f"head_y{d}", [whole, 1, self.batch, self.hidden])
        if tail and not backward:
            after, *states = self.step(self.nodes, d, own, tail, states, f"_tail{d}")
        if after:
            y = self.add("Concat", [y, after], f"all_y{d}", axis=0)
        return [y, *states]

    def is_given(self, name: str) -> bool:
        """Whether the call has the input."""
        return name in self.given and self.call.has(self.given.index(name))

    def initial(self, name: str, d: int) -> str:
        """The state that a direction starts from: [1, batch, hidden]."""
        if not self.is_given(name):
            zeros = np.zeros((1, self.batch, self.hidden), numpy_type(self.call.elem(0)))
            return self.constant(f"first_{name}{d}", zeros)
        state = self.add("Transpose", [name], f"{name}_by_direction{d}", perm=[1, 0, 2]) if self.batch_first else name
        return self.sliced(state, f"first_{name}{d}", d, d + 1)

    def step(
        self, nodes: list[NodeProto], d: int, own: dict[str, str], x: str, states: list[str], suffix: str
    ) -> list[str]:
        """The operator on ``x`` from ``states`` on: its results."""
        call, count = self.call, self.activations
        kept = ("clip", "hidden_size", "input_forget", "linear_before_reset")
        attributes = {n: v for n, v in call.attributes.items() if n in kept}
        for name in ("activations", "activation_alpha", "activation_beta"):
            part = list(call.attr(name) or [])[d * count : (d + 1) * count]
            attributes |= {name: part} if part else {}
        inputs = [x, own["W"], own["R"], own.get("B", ""), "", *states, *([own["P"]] if "P" in own else [])]
        outputs = [f"{name}{suffix}" for name in ("y", "h", "c")[: len(states) + 1]]
        direction = "reverse" if self.backward[d] else "forward"
        nodes.append(helper.make_node(call.op, inputs, outputs, direction=direction, **attributes))
        return outputs

    def body(self, d: int, own: dict[str, str], states: int) -> GraphProto:
        """A piece: states and [PIECE, batch, width] to states and [PIECE, 1, batch, hidden]."""
        elem = self.call.elem(0)
        names = [f"{n}_in{d}" for n in ("h", "c")[:states]]
        nodes: list[NodeProto] = []
        y, *after = self.step(nodes, d, own, f"piece{d}", names, f"_out{d}")
        shape = [1, self.batch, self.hidden]
        ports = [helper.make_tensor_value_info(n, elem, shape) for n in names]
        piece = helper.make_tensor_value_info(f"piece{d}", elem, [PIECE, self.batch, self.width])
        made = [helper.make_tensor_value_info(n, elem, shape) for n in after]
        result = helper.make_tensor_value_info(y, elem, [PIECE, 1, self.batch, self.hidden])
        return helper.make_graph(nodes, "piece", [*ports, piece], [*made, result])
