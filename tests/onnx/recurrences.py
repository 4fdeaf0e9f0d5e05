"""Models of one LSTM, GRU or RNN, and their semantics step by step in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from tests.onnx.models import FLOAT, model

Array = NDArray[Any]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
}


@dataclass(frozen=True)
class Case:
    """One recurrence; ``full``: with biases, initial states, and the peepholes of an LSTM."""

    op: str
    steps: int = 7
    batch: int = 2
    hidden: int = 5
    width: int = 3
    full: bool = True
    lengths: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backward(self) -> list[bool]:
        """For each direction, true if it runs backward."""
        direction = self.attributes.get("direction", "forward")
        return [False, True] if direction == "bidirectional" else [direction == "reverse"]

    def values(self) -> dict[str, Array]:
        """Inputs by name; the weights are the same for every length and batch."""
        d, g, h = len(self.backward), GATES[self.op], self.hidden
        weights, data = np.random.default_rng(h), np.random.default_rng((self.steps, self.batch))
        batch_first = bool(self.attributes.get("layout"))
        state = (self.batch, d, h) if batch_first else (d, self.batch, h)
        x = (self.batch, self.steps, self.width) if batch_first else (self.steps, self.batch, self.width)
        shapes: dict[str, tuple[int, ...]] = {"X": x, "W": (d, g * h, self.width), "R": (d, g * h, h)}
        if self.full:
            shapes |= {"B": (d, 2 * g * h), "h": state}
            shapes |= {"c": state, "P": (d, 3 * h)} if self.op == "LSTM" else {}
        drawn = {n: (weights if n in "WRBP" else data).standard_normal(s) for n, s in shapes.items()}
        made = {n: (v / max(3, h) ** 0.5).astype(np.float32) for n, v in drawn.items()}
        return made | ({"lengths": np.array(self.lengths, np.int32)} if self.lengths else {})

    def model(self, symbolic: bool = False) -> tuple[ModelProto, dict[str, Array]]:
        """A model with stored weights, and its inputs. symbolic: length and batch have names."""
        values = self.values()
        given = {n: v for n, v in values.items() if n not in "WRBP"}
        first = ["b", "t"] if self.attributes.get("layout") else ["t", "b"]
        names: dict[str, list[Any]] = {"X": [*first, self.width], "lengths": ["b"]}
        for n in "hc":
            shape: list[Any] = list(given[n].shape) if n in given else []
            names[n] = ["b" if i == (0 if self.attributes.get("layout") else 1) else m for i, m in enumerate(shape)]
        ports = {n: (6 if n == "lengths" else FLOAT, names[n] if symbolic else list(v.shape)) for n, v in given.items()}
        order = [n if n in values else "" for n in ("X", "W", "R", "B", "lengths", "h", "c", "P")]
        outputs = ["Y", "Yh", "Yc"] if self.op == "LSTM" else ["Y", "Yh"]
        while not order[-1]:
            order.pop()
        node = helper.make_node(self.op, order, outputs, hidden_size=self.hidden, **self.attributes)
        return model([node], ports, outputs, {n: v for n, v in values.items() if n in "WRBP"}, opset=14), given

    def expected(self) -> list[Array]:
        """The results, step by step."""
        v = {n: a.astype(np.float64) for n, a in self.values().items()}
        batch_first = bool(self.attributes.get("layout"))
        x = v["X"].transpose(1, 0, 2) if batch_first else v["X"]
        lengths = np.array(self.lengths or [self.steps] * self.batch)
        every, last = np.zeros((self.steps, len(self.backward), self.batch, self.hidden)), []
        for d, backward in enumerate(self.backward):
            states = [
                (v[n][:, d] if batch_first else v[n][d]) if n in v else np.zeros((self.batch, self.hidden))
                for n in ("h", "c")[: 2 if self.op == "LSTM" else 1]
            ]
            for t in reversed(range(self.steps)) if backward else range(self.steps):
                on = (t < lengths)[:, None]
                made = self._step(d, x[t], states, v)
                states = [np.where(on, new, old) for new, old in zip(made, states, strict=True)]
                every[t, d] = np.where(on, states[0], 0)
            last.append(states)
        ends = [np.stack(s) for s in zip(*last, strict=True)]
        if batch_first:
            return [every.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in ends)]
        return [every, *ends]

    def _step(self, d: int, x: Array, states: list[Array], v: Mapping[str, Array]) -> list[Array]:
        g, n, h = GATES[self.op], self.hidden, states[0]
        names = self.attributes.get("activations") or DEFAULTS[self.op] * len(self.backward)
        count = len(DEFAULTS[self.op])
        functions = [FUNCTIONS[name] for name in names[d * count : (d + 1) * count]]
        bias = v["B"][d] if "B" in v else np.zeros(2 * g * n)
        clip = self.attributes.get("clip", np.inf)

        def gate(i: int, of: Array) -> Array:
            rows = slice(i * n, (i + 1) * n)
            own = of @ v["R"][d, rows].T + bias[g * n :][rows]
            return np.asarray(x @ v["W"][d, rows].T + bias[rows] + own)

        def held(f: Callable[[Array], Array], e: Array) -> Array:
            return f(np.clip(e, -clip, clip))

        if self.op == "RNN":
            return [held(functions[0], gate(0, h))]
        if self.op == "GRU":
            f, new = functions
            z, r = held(f, gate(0, h)), held(f, gate(1, h))
            rows = slice(2 * n, 3 * n)
            if self.attributes.get("linear_before_reset"):
                inner = r * (h @ v["R"][d, rows].T + bias[5 * n :])
                made = held(new, x @ v["W"][d, rows].T + bias[rows] + inner)
            else:
                made = held(new, gate(2, r * h))
            return [(1 - z) * made + z * h]
        f, new, out = functions
        c, p = states[1], v["P"][d] if "P" in v else np.zeros(3 * n)
        i = held(f, gate(0, h) + p[:n] * c)
        forget = 1 - i if self.attributes.get("input_forget") else held(f, gate(2, h) + p[2 * n :] * c)
        cell = forget * c + i * held(new, gate(3, h))
        return [held(f, gate(1, h) + p[n : 2 * n] * cell) * out(cell), cell]


BOTH = {"direction": "bidirectional"}
VARIANTS = [
    Case("LSTM", attributes=BOTH),
    Case("LSTM", full=False, attributes={"direction": "reverse", "clip": 0.3}),
    Case("LSTM", lengths=(3, 7), attributes=BOTH),
    Case("LSTM", attributes={"layout": 1, "input_forget": 1}),
    Case("LSTM", attributes={"activations": ["HardSigmoid", "Softsign", "Tanh", "Sigmoid", "Tanh", "Relu"], **BOTH}),
    Case("GRU", attributes={"linear_before_reset": 1, **BOTH}),
    Case("GRU", lengths=(1, 6), attributes={"clip": 0.4, **BOTH}),
    Case("GRU", full=False, attributes={"direction": "reverse", "layout": 1}),
    Case("RNN", attributes={"activations": ["Relu", "Tanh"], **BOTH}),
    Case("RNN", full=False, lengths=(7, 2)),
]
