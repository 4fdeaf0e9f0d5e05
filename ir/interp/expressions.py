"""Expressions of the interpreter, each compiled once to a function of a frame.

A scalar i64 is a Python int that wraps at 64 bits, a scalar bool a bool, any other scalar a numpy scalar of its exact
type; a vector is a numpy array. bf16 is a float32 that holds a bf16 value and is rounded after every operation.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskmap.ir import nodes as ir
from taskmap.ir.errors import VerifyError
from taskmap.ir.functions import function_named
from taskmap.ir.interp.definitions import NUMPY_TYPES, convert, round_bf16
from taskmap.ir.interp.instructions import execute
from taskmap.ir.interp.memory import CheckedAccess, Memory
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import DType, bf16, boolean, i64
from taskmap.ir.visit import children, walk_exprs

Value = Any
Eval = Callable[["Environment"], Value]


@dataclass(slots=True)
class Environment:
    """The state visible to one worker: its variables, the buffers in scope, and its identity.

    access: its identity towards memory shared with other blocks or iterations; shared_access: towards its block's own;
    private_access: towards its own, if that is separate.
    lenient: the number of enclosing selects that discard the current value. exchanged: results of instructions that
    several threads execute together, by expression. block: the state shared by the threads of its block.
    """

    vars: dict[ir.Var, Value]
    memory: dict[ir.Buffer, Memory]
    shared: dict[ir.Buffer, Memory]
    access: CheckedAccess = field(default_factory=CheckedAccess)
    shared_access: CheckedAccess = field(default_factory=CheckedAccess)
    private_access: CheckedAccess | None = None
    lenient: int = 0
    remembered: dict[int, Value] = field(default_factory=dict)
    exchanged: dict[int, Value] = field(default_factory=dict)
    block: Any = None

    def access_to(self, buffer: ir.Buffer) -> CheckedAccess:
        """The identity of the worker towards ``buffer``."""
        if buffer in self.shared:
            return self.shared_access
        return self.access if self.private_access is None or buffer.scope is ir.Scope.GLOBAL else self.private_access

    def buffer(self, buffer: ir.Buffer) -> Memory:
        """The memory of a buffer in scope."""
        try:
            return self.memory[buffer]
        except KeyError:
            raise VerifyError(f"{buffer!r} is used outside the scope of its allocation") from None


_LIMIT = 1 << 63


def _wrap(value: int) -> int:
    return value if -_LIMIT <= value < _LIMIT else (value + _LIMIT) % (2 * _LIMIT) - _LIMIT


def _nonzero(name: str, op: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    def run(a: Value, b: Value) -> Value:
        if not (b if isinstance(b, int) else np.all(b)):
            raise VerifyError(f"{name} by zero")
        return op(a, b)

    return run


def _natural(name: str, op: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """tdiv and tmod require non-negative operands; a violation means that some proof is wrong."""

    def run(a: Value, b: Value) -> Value:
        whole = isinstance(a, int) and isinstance(b, int)
        if a < 0 or b <= 0 if whole else np.any(np.less(a, 0)) or not np.all(np.greater(b, 0)):
            raise VerifyError(f"{name} of {a} and {b}: it is defined only for a >= 0 and b > 0")
        return op(a, b)

    return run


_INT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "shl": lambda a, b: a << (b & 63), "shr": lambda a, b: a >> (b & 63),
    "floordiv": _nonzero("division", operator.floordiv), "mod": _nonzero("remainder", operator.mod),
    "tdiv": _natural("tdiv", operator.floordiv), "tmod": _natural("tmod", operator.mod),
}  # fmt: skip

_NUMPY: dict[str, Callable[[Value, Value], Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "floordiv": np.floor_divide, "mod": np.remainder,
    "tdiv": _natural("tdiv", np.floor_divide), "tmod": _natural("tmod", np.remainder),
}  # fmt: skip

_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def as_value(x: Value, dtype: DType, lanes: int = 1) -> Value:
    """``x`` in the representation of a value of ``dtype``."""
    array = convert(np.asarray(x), dtype)
    if lanes > 1:
        return np.broadcast_to(array, (lanes,))
    item = array[()]
    return int(item) if dtype == i64 else bool(item) if dtype == boolean else item


def _given(e: ir.Intrinsic, frame: Environment) -> Value:
    """The result of an instruction of several threads; they have synchronised, and each was given its result."""
    if id(e) not in frame.exchanged:
        by = f"{e.instruction.workers} workers"
        raise VerifyError(
            f"{e.instruction.name} is one instruction of {by}", why="the kernel is run by a single thread."
        )
    return frame.exchanged[id(e)]


def _rounded(dtype: DType, lanes: int) -> Callable[[Value], Value]:
    if dtype == bf16:
        return lambda x: round_bf16(np.asarray(x))[()]
    if lanes > 1 or dtype not in (i64, boolean):
        return lambda x: x
    return int if dtype == i64 else bool


class ExpressionCompiler:
    """The compiled expressions of one kernel."""

    def __init__(self, of_gpu: Callable[[ir.Intrinsic], Eval] | None = None) -> None:
        self._of_gpu = of_gpu
        self._shared: set[int] = set()
        self._done: dict[int, Eval] = {}
        self._kept: list[ir.Expr] = []

    def compile(self, root: ir.Expr) -> Eval:
        """A function that evaluates ``root`` in a frame; a subexpression that occurs twice is evaluated once."""
        self._kept.append(root)
        uses = Counter(id(kid) for e in walk_exprs(root) for kid in children(e))
        self._shared = {key for key, count in uses.items() if count > 1}
        self._done = {}
        run = self._compile(root)
        if not self._shared:
            return run

        def fresh(frame: Environment) -> Value:
            frame.remembered = {}
            return run(frame)

        return fresh

    def _compile(self, e: ir.Expr) -> Eval:
        key = id(e)
        if key not in self._done:
            run = _COMPILE[type(e)](self, e)
            self._done[key] = self._once(key, run) if key in self._shared and children(e) else run
        return self._done[key]

    def _once(self, key: int, run: Eval) -> Eval:
        def once(frame: Environment) -> Value:
            if key in frame.remembered:
                return frame.remembered[key]
            value = run(frame)
            if not frame.lenient:  # a value read leniently may be poison
                frame.remembered[key] = value
            return value

        return once

    def const(self, e: ir.Const) -> Eval:
        value = as_value(e.value, e.dtype, e.lanes)
        return lambda frame: value

    def var(self, e: ir.Var) -> Eval:
        def run(frame: Environment) -> Value:
            try:
                return frame.vars[e]
            except KeyError:
                raise VerifyError(f"the variable {e.name!r} has no value here") from None

        return run

    def unary(self, e: ir.Unary) -> Eval:
        a, rounded = self._compile(e.a), _rounded(e.dtype, e.lanes)
        table: dict[str, Callable[[Value], Value]] = {"neg": np.negative, "abs": np.abs}
        op = table.get(e.op) or (np.logical_not if e.dtype == boolean else np.invert)
        if e.dtype == i64 and e.lanes == 1 and e.op != "not":
            whole: Callable[[int], int] = operator.neg if e.op == "neg" else abs
            return lambda frame: _wrap(whole(a(frame)))
        return lambda frame: rounded(op(a(frame)))

    def binary(self, e: ir.Binary) -> Eval:
        a, b = self._compile(e.a), self._compile(e.b)
        if e.dtype == i64 and e.lanes == 1:
            whole = _INT[e.op]
            if e.op in ("add", "sub", "mul", "shl"):
                return lambda frame: _wrap(whole(a(frame), b(frame)))
            return lambda frame: whole(a(frame), b(frame))
        op = _NUMPY[e.op]
        if e.op in ("floordiv", "mod") and not e.dtype.is_float:
            op = _nonzero("division", op)
        if e.dtype == bf16 or (e.dtype == boolean and e.lanes == 1):
            rounded = _rounded(e.dtype, e.lanes)
            return lambda frame: rounded(op(a(frame), b(frame)))
        return lambda frame: op(a(frame), b(frame))

    def compare(self, e: ir.Compare) -> Eval:
        a, b, op = self._compile(e.a), self._compile(e.b), _COMPARE[e.op]
        if e.lanes > 1:
            return lambda frame: op(a(frame), b(frame))
        return lambda frame: bool(op(a(frame), b(frame)))

    def select(self, e: ir.Select) -> Eval:
        cond, a, b = self._compile(e.cond), self._compile(e.a), self._compile(e.b)

        def side(run: Eval, frame: Environment, wanted: bool) -> Value:
            frame.lenient += not wanted
            value = run(frame)
            frame.lenient -= not wanted
            return value

        if e.lanes > 1:

            def vector(frame: Environment) -> Value:
                test = cond(frame)
                return np.where(test, side(a, frame, bool(np.all(test))), side(b, frame, not np.any(test)))

            return vector

        def scalar(frame: Environment) -> Value:
            test = cond(frame)
            yes, no = side(a, frame, test), side(b, frame, not test)
            return yes if test else no

        return scalar

    def cast(self, e: ir.Cast) -> Eval:
        a, dtype, lanes = self._compile(e.a), e.dtype, e.lanes
        return lambda frame: as_value(a(frame), dtype, lanes)

    def load(self, e: ir.Load) -> Eval:
        indices, buffer = [self._compile(i) for i in e.indices], e.buffer
        rounded = _rounded(e.dtype, e.lanes) if e.dtype in (i64, boolean) else None

        def run(frame: Environment) -> Value:
            value = frame.buffer(buffer).load([i(frame) for i in indices], frame.access_to(buffer), frame.lenient > 0)
            return rounded(value) if rounded else value

        return run

    def call(self, e: ir.Call) -> Eval:
        args, dtype, lanes = [self._compile(a) for a in e.args], e.dtype, e.lanes
        reference = function_named(e.name).reference
        kinds = [NUMPY_TYPES[a.dtype.name] for a in e.args]

        def run(frame: Environment) -> Value:
            values = [np.asarray(a(frame), kind) for a, kind in zip(args, kinds, strict=True)]
            return as_value(reference(*values), dtype, lanes)

        return run

    def ramp(self, e: ir.Ramp) -> Eval:
        base, stride, lane = self._compile(e.base), self._compile(e.stride), np.arange(e.lanes, dtype=np.int64)
        return lambda frame: base(frame) + stride(frame) * lane

    def broadcast(self, e: ir.Broadcast) -> Eval:
        a, lanes, kind = self._compile(e.a), e.lanes, NUMPY_TYPES[e.dtype.name]
        return lambda frame: np.full(lanes, a(frame), kind)

    def lane_reduce(self, e: ir.LaneReduce) -> Eval:
        a, rounded = self._compile(e.a), _rounded(e.dtype, 1)
        op = _NUMPY[{"sum": "add", "prod": "mul"}.get(e.op, e.op)]

        def run(frame: Environment) -> Value:
            first, *rest = a(frame)
            total = rounded(first)
            for lane in rest:
                total = rounded(op(total, lane))
            return total

        return run

    def intrinsic(self, e: ir.Intrinsic) -> Eval:
        instruction = e.instruction
        if instruction.workers > 1:
            return lambda frame: _given(e, frame)
        if instruction.targets.kind == "cuda":
            assert self._of_gpu is not None
            return self._of_gpu(e)
        args, kind = [self._compile(a) for a in e.args], NUMPY_TYPES[e.dtype.name]

        def run(frame: Environment) -> Value:
            c, a, b = (np.reshape(arg(frame), (1, -1)) for arg in args)
            result = execute(instruction, c, a, b)[0].astype(kind, copy=False)
            return result if e.lanes > 1 else result[0]

        return run

    def reduce(self, e: ir.Reduce | ir.Scatter | Recurrence) -> Eval:
        raise VerifyError("a kernel contains a reduction of a compute definition", why="kernels reduce with loops.")


_COMPILE: dict[type, Callable[[ExpressionCompiler, Any], Eval]] = {
    ir.Const: ExpressionCompiler.const,
    ir.Var: ExpressionCompiler.var,
    ir.Unary: ExpressionCompiler.unary,
    ir.Binary: ExpressionCompiler.binary,
    ir.Compare: ExpressionCompiler.compare,
    ir.Select: ExpressionCompiler.select,
    ir.Cast: ExpressionCompiler.cast,
    ir.Load: ExpressionCompiler.load,
    ir.Call: ExpressionCompiler.call,
    ir.Ramp: ExpressionCompiler.ramp,
    ir.Broadcast: ExpressionCompiler.broadcast,
    ir.LaneReduce: ExpressionCompiler.lane_reduce,
    ir.Intrinsic: ExpressionCompiler.intrinsic,
    ir.Reduce: ExpressionCompiler.reduce,
    ir.Scatter: ExpressionCompiler.reduce,
    Recurrence: ExpressionCompiler.reduce,
}
