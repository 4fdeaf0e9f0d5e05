"""LSTM, GRU and RNN as one operator each: a loop over steps that multiplies only by the state's weights.

An ordinary product before the loop computes every step's contribution from the input (x W' + bias) at once:

    given [steps, batch, directions * gates * units]  ->  [steps + states, batch, directions, hidden]

``units`` is ``hidden`` rounded up to whole panels, so that the loop reads and computes whole vectors. Row t of the
result is the state after time t; the last rows are the final states, an LSTM's cell after its hidden state. Sources:
Hochreiter and Schmidhuber, "Long short-term memory" (1997), with the peepholes of Gers and Schmidhuber, "Recurrent nets
that time and count" (2000); Cho et al., "Learning phrase representations using RNN encoder-decoder" (2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.graph.build import define, reindex
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number
from taskmap.ir.construct import cast, ceil_div, compare, eq, index, minimum, reduce, select
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import formal
from taskmap.ir.types import DType, compute_type, i64

PANEL = 16
"""The number of units whose weights are stored together."""

Function = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of every recurrence. given [steps, batch, directions * gates * units]; recurrent [directions, gates
    * hidden, hidden]; initial: [directions, batch, hidden] for each state, or None for zeros; reverse: one flag per
    direction; lengths [batch], i64, at most ``steps``: the number of steps of each sequence, None if all have
    ``steps``."""

    given: Node
    recurrent: Node
    initial: tuple[Node | None, ...]
    reverse: tuple[bool, ...]
    lengths: Node | None = None

    @property
    def hidden(self) -> Dim:
        """The number of elements of a state."""
        return self.recurrent.shape[2]


@dataclass(frozen=True, slots=True)
class States:
    """``every`` state by time [steps, batch, directions, hidden]; the ``last`` of each [directions, batch, hidden]."""

    every: Node
    last: tuple[Node, ...]


def whole_panels(hidden: Dim) -> Dim:
    """``hidden`` rounded up to whole panels."""
    return ceil_div(hidden, PANEL) * PANEL


def pad_units(parameter: Node, hidden: Dim) -> Node:
    """[directions, parts * hidden, ...] as [directions, parts * units, ...]; the added units are zero."""
    units = whole_panels(hidden)
    if units == hidden:
        return parameter
    directions, rows, *rest = parameter.shape
    size = index(hidden)

    def element(w: Buffer) -> Callable[..., ExprLike]:
        def at(d: Expr, row: Expr, *more: Expr) -> Expr:
            part, unit = row // index(units), row % index(units)
            place = (d, part * size + minimum(unit, size - 1), *more)
            return select(unit < size, w[place], 0)

        return at

    return define("pad", [parameter], (directions, rows // hidden * units, *rest), element, parameter.dtype)


def pack_recurrent(recurrent: Node, gates: int) -> Node:
    """[directions, gates * hidden, hidden] in the order in which a step reads it: [directions, panels, hidden, gates,
    PANEL]; the added units are zero."""
    directions, _, hidden = recurrent.shape

    def element(w: Buffer) -> Callable[..., ExprLike]:
        def at(d: Expr, panel: Expr, k: Expr, gate: Expr, lane: Expr) -> Expr:
            unit = panel * PANEL + lane
            row = gate * hidden + minimum(unit, index(hidden) - 1)
            return select(unit < index(hidden), w[d, row, k], 0)

        return at

    shape = (directions, ceil_div(hidden, PANEL), hidden, gates, PANEL)
    return define("pack", [recurrent], shape, element, recurrent.dtype)


@dataclass(slots=True)
class RecurrentStep:
    """One step of a recurrence, as expressions of direction ``d``, sequence ``b`` and unit ``j``."""

    operands: Operands
    gates: int
    given: Buffer
    packed: Buffer
    first: tuple[Buffer | None, ...]
    lengths: Buffer | None
    more: tuple[Buffer, ...]
    wide: DType
    b: Var = field(default_factory=lambda: Var("b"))
    d: Var = field(default_factory=lambda: Var("d"))
    j: Var = field(default_factory=lambda: Var("j"))
    step: Var = field(default_factory=lambda: Var("step"))
    states: tuple[Buffer, ...] = ()
    phases: list[tuple[Buffer, Expr]] = field(default_factory=list)
    after: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[tuple[Var, Dim], ...]:
        """The axes of a state with their extents."""
        batch, directions = self.given.shape[1], len(self.operands.reverse)
        return (self.b, batch), (self.d, directions), (self.j, self.operands.hidden)

    def own(self, name: str) -> Buffer:
        """A tensor local to the loop."""
        return formal(name, [n for _, n in self.axes], self.wide)

    @property
    def time(self) -> Expr:
        """The time at which the step reads its input."""
        backward = index(self.given.shape[0]) - 1 - self.step
        reverse = self.operands.reverse
        if len(set(reverse)) == 1:
            return backward if reverse[0] else self.step
        return select(eq(self.d, reverse.index(True)), backward, self.step)

    def of_state(self, k: int) -> Expr:
        """The element of state ``k`` before the step."""
        return self.states[k][self.b, self.d, self.j]

    def from_input(self, gate: int) -> Expr:
        """The part of ``given`` that belongs to a gate."""
        column = (self.d * self.gates + gate) * index(whole_panels(self.operands.hidden)) + self.j
        return cast(self.given[self.time, self.b, column], self.wide)

    def product(self, tensor: Buffer, gate: int) -> Expr:
        """The sum over k of tensor[b, d, k] times the gate's weights."""
        k = Var("k")
        weight = self.packed[self.d, self.j // PANEL, k, gate, self.j % PANEL]
        return reduce("sum", [(k, self.operands.hidden)], tensor[self.b, self.d, k] * cast(weight, self.wide))

    def vector(self, place: int, part: int = 0) -> Expr:
        """Element j of one part of parameter number ``place`` of ``more``, [directions, parts * hidden]."""
        return cast(self.more[place][self.d, self.j + part * index(whole_panels(self.operands.hidden))], self.wide)

    def apply(self, functions: Sequence[Function], e: Expr) -> Expr:
        """The direction's function of ``e``."""
        if all(f is functions[0] for f in functions):
            return functions[0](e)
        return select(eq(self.d, 0), functions[0](e), functions[1](e))

    def phase(self, name: str, value: Expr) -> Buffer:
        """Adds a tensor that each step computes."""
        buffer = self.own(name)
        self.phases.append((buffer, value))
        return buffer

    def state(self, k: int, name: str, new: Expr) -> Buffer:
        """Sets the next value of state ``k``: ``new``, or its present value once the sequence has ended."""
        if self.lengths is not None:
            new = select(compare("lt", self.time, cast(self.lengths[self.b], i64)), new, self.of_state(k))
        made = self.phase(name, new)
        after = [*self.after, *[0] * (len(self.states) - len(self.after))]
        after[k] = len(self.phases) - 1
        self.after = tuple(after)
        return made

    def recurrence(self, here: tuple[Expr, ...], dtype: DType) -> Recurrence:
        """The body of the definition."""
        initial = tuple(
            number(0, self.wide) if f is None else cast(f[self.d, self.b, self.j], self.wide) for f in self.first
        )
        buffers, values = tuple(p for p, _ in self.phases), tuple(v for _, v in self.phases)
        steps = self.given.shape[0]
        return Recurrence(
            here, self.step, steps, self.axes, self.states, initial, buffers, values, self.after, self.time, dtype
        )


def recurrent(
    op: str, operands: Operands, gates: int, more: Sequence[Node], write: Callable[[RecurrentStep], None]
) -> States:
    """The operator ``op``, whose steps ``write`` defines; ``more``: parameters besides those of ``operands``."""
    given, reverse = operands.given, operands.reverse
    steps, batch, _ = given.shape
    count = len(operands.initial)
    firsts = [n for n in operands.initial if n is not None]
    lengths = [] if operands.lengths is None else [operands.lengths]
    packed = pack_recurrent(operands.recurrent, gates)

    def element(x: Buffer, w: Buffer, *rest: Buffer) -> Callable[..., ExprLike]:
        left = iter(rest)
        first = tuple(None if n is None else next(left) for n in operands.initial)
        ends = next(left) if lengths else None
        step = RecurrentStep(operands, gates, x, w, first, ends, tuple(left), compute_type(given.dtype))
        step.states = tuple(step.own(f"state{k}") for k in range(count))
        write(step)
        return lambda *here: step.recurrence(here, given.dtype)

    shape = (steps + count, batch, len(reverse), operands.hidden)
    padded = [pad_units(n, operands.hidden) for n in more]
    every = define(op, [given, packed, *firsts, *lengths, *padded], shape, element, panel=PANEL)
    last = tuple(_last(every, steps + k) for k in range(count))
    return States(reindex("slice", every, (steps, *shape[1:]), lambda *at: at), last)


def _last(every: Node, row: Dim) -> Node:
    """One row of [rows, batch, directions, hidden], as [directions, batch, hidden]."""
    _, batch, directions, hidden = every.shape
    return reindex("select", every, (directions, batch, hidden), lambda d, b, j: (row, b, d, j))


def rnn(operands: Operands, functions: Sequence[Function]) -> States:
    """h = f(given + h R'); ``functions``: f for each direction."""

    def write(s: RecurrentStep) -> None:
        s.state(0, "h", s.apply(functions, s.from_input(0) + s.product(s.states[0], 0)))

    return recurrent("rnn", operands, 1, (), write)


@dataclass(frozen=True, slots=True)
class LstmGates:
    """The positions of the four gates, and those of gates i, o, f in the ``peepholes`` [directions, 3 * hidden]."""

    input: int
    output: int
    forget: int
    cell: int
    peepholes: tuple[int, int, int] = (0, 1, 2)


def lstm(
    operands: Operands,
    gates: LstmGates,
    functions: Sequence[tuple[Function, Function, Function, Function]],
    peepholes: Node | None = None,
    coupled: bool = False,
) -> States:
    """c = f(..) c + i(..) g(..); h = o(..) t(c). ``functions``, for each direction: that of the gates i and f, of the
    candidate, of the output gate, and of the cell. coupled: the forget gate is 1 - i."""
    gate_f, candidate_f, output_f, cell_f = (list(fs) for fs in zip(*functions, strict=True))

    def write(s: RecurrentStep) -> None:
        cell = s.of_state(1)

        def total(gate: int) -> Expr:
            return s.from_input(gate) + s.product(s.states[0], gate)

        def peeked(value: Expr, part: int, c: Expr) -> Expr:
            return value if peepholes is None else value + s.vector(0, part) * c

        at_i, at_o, at_f = gates.peepholes
        i = s.apply(gate_f, peeked(total(gates.input), at_i, cell))
        f = number(1, s.wide) - i if coupled else s.apply(gate_f, peeked(total(gates.forget), at_f, cell))
        new = f * cell + i * s.apply(candidate_f, total(gates.cell))
        made = s.state(1, "c", new)[s.b, s.d, s.j]
        o = s.apply(output_f, peeked(total(gates.output), at_o, made))
        s.state(0, "h", o * s.apply(cell_f, made))

    return recurrent("lstm", operands, 4, () if peepholes is None else (peepholes,), write)


def gru(
    operands: Operands,
    gates: tuple[int, int, int],
    functions: Sequence[tuple[Function, Function]],
    bias: Node | None = None,
    reset_first: bool = False,
) -> States:
    """h = (1 - z) n + z h. ``gates``: the positions of z, r and n. n is g(given + r (h R' + bias)), or g(given + (r h)
    R') if ``reset_first``; bias [directions, hidden]. ``functions``, for each direction: f of the gates, and g."""
    gate_f, new_f = (list(fs) for fs in zip(*functions, strict=True))
    at_z, at_r, at_n = gates

    def write(s: RecurrentStep) -> None:
        h = s.of_state(0)
        z = s.apply(gate_f, s.from_input(at_z) + s.product(s.states[0], at_z))
        r = s.apply(gate_f, s.from_input(at_r) + s.product(s.states[0], at_r))
        if reset_first:
            z = s.phase("z", z)[s.b, s.d, s.j]
            made = s.product(s.phase("reset", r * h), at_n)
        else:
            made = s.product(s.states[0], at_n)
            made = r * (made if bias is None else made + s.vector(0))
        n = s.apply(new_f, s.from_input(at_n) + made)
        s.state(0, "h", (number(1, s.wide) - z) * n + z * h)

    return recurrent("gru", operands, 3, () if bias is None else (bias,), write)
