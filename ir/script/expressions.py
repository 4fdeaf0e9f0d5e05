"""Expressions of script: Python values are computed while building; values known only at run time become IR."""

from __future__ import annotations

import ast
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from taskmap.ir.analysis.bounds import Facts
from taskmap.ir.analysis.polynomial import to_expr, to_poly
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_index, call, cast, compare, index, maximum, minimum, select, unary
from taskmap.ir.errors import ScriptError, TaskmapError
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.nodes import Binary, Buffer, Const, Expr, Kernel, Load
from taskmap.ir.script import vocabulary as words
from taskmap.ir.script.scope import Names
from taskmap.ir.script.source import ScriptSource
from taskmap.ir.types import DType, TensorType, boolean, f32, i64
from taskmap.ir.visit import map_expr, walk_exprs
from taskmap.ir.workers import BLOCKS, THREAD

_MAX_POWER = 8

_BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv), ast.Mod: ("%", operator.mod),
    ast.BitAnd: ("&", operator.and_), ast.BitOr: ("|", operator.or_), ast.BitXor: ("^", operator.xor),
    ast.LShift: ("<<", operator.lshift), ast.RShift: (">>", operator.rshift), ast.Pow: ("**", operator.pow),
}  # fmt: skip

_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip

_COMPARE: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge), ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne),
}  # fmt: skip

_BUILD_TIME_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip

_REFUSED: dict[type, tuple[str, str]] = {
    ast.Lambda: ("a lambda cannot hold IR.", "Write a function with def and decorate it with @script."),
    ast.Slice: ("a slice is not an element.", "Index one element, or write region(buffer, start, shape)."),
    ast.Starred: ("a starred expression has no meaning here.", "Write the elements out."),
    ast.NamedExpr: ("script has no := .", "Assign on a line of its own."),
    ast.Await: ("script has no await.", ""),
    ast.Yield: ("script has no yield.", ""),
    ast.YieldFrom: ("script has no yield.", ""),
    ast.DictComp: ("script has no dict comprehensions.", "Build the dict outside."),
    ast.SetComp: ("script has no set comprehensions.", "Build the set outside."),
}  # fmt: skip


_Comprehension = ast.ListComp | ast.GeneratorExp


class _At:
    """buffer.at: a read that may be out of range."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer


@dataclass(slots=True)
class Setting:
    """The state shared by all functions read into one kernel.

    what: the headline of errors. facts: what is known about variables at the current place. threads: per block.
    has_workers: True if `thread` and `block` have a value. predicated: buffers with predicated accesses. depth: of
    nested calls.
    """

    what: str
    builder: Builder
    facts: Facts
    threads: int = 0
    has_workers: bool = False
    predicated: frozenset[Buffer] = frozenset()
    depth: int = 0


class Inlinable(ABC):
    """A function whose call is replaced by its body."""

    @abstractmethod
    def inline(self, setting: Setting, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Read the function's body with these arguments; returns its value."""


class Evaluator:
    """Evaluates the expressions of one function."""

    def __init__(self, source: ScriptSource, names: Names, setting: Setting) -> None:
        self.source = source
        self.names = names
        self.setting = setting
        self.outer_facts: Facts | None = None  # inside a select: the facts that hold whatever its condition is

    def fail(self, node: ast.AST, why: str, hint: str = "") -> ScriptError:
        """An error at ``node``."""
        return ScriptError(self.setting.what, where=self.source.at(node), why=why, hint=hint or None)

    def refuse(self, node: ast.AST, why: str, hint: str = "") -> NoReturn:
        """Raise an error at ``node``."""
        raise self.fail(node, why, hint)

    def run(self, node: ast.AST, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a Python function; an exception is reported at ``node``."""
        try:
            return function(*args, **kwargs)
        except TaskmapError as error:
            if error.where is not None:
                raise
            why = f"{error.what}." if error.why is None else f"{error.what}: {error.why}"
            raise self.fail(node, why, error.hint or "") from error
        except Exception as error:
            text = str(error) or type(error).__name__
            raise self.fail(node, text if text.endswith(".") else f"{text}.") from error

    def value(self, node: ast.expr) -> Any:
        """The value of an expression: a Python object or IR."""
        method = _TABLE.get(type(node))
        if method is None:
            why, hint = _REFUSED.get(type(node), (f"script has no {type(node).__name__}.", ""))
            self.refuse(node, why, hint)
        return method(self, node)

    def scalar(self, node: ast.expr) -> Any:
        """The value of an operand: a number or an expression, never a whole tensor."""
        value = self.value(node)
        if isinstance(value, Buffer):
            self.refuse(node, f"{value.name} is a whole tensor.", f"Index an element: {value.name}[{_indices(value)}].")
        return value

    def constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, (complex, bytes)):
            self.refuse(node, f"script has no {type(node.value).__name__} values.")
        return node.value

    def name(self, node: ast.Name) -> Any:
        try:
            value = self.names.look_up(node.id)
        except KeyError:
            if node.id in self.names.ended:
                line = self.source.first + self.names.ended[node.id] - 1
                hint = "Assign it before the block, or keep it in a register."
                raise self.fail(
                    node, f"{node.id} ended with the block that assigned it, on line {line}.", hint
                ) from None
            raise self.fail(node, f"{node.id} is not defined.") from None
        return self.checked_worker(node, value)

    def checked_worker(self, node: ast.expr, value: Any) -> Any:
        if not self.setting.has_workers and (value is THREAD or value in BLOCKS):
            hint = "Give the kernel workers: @kernel(grid=..., threads=...)."
            self.refuse(node, f"{ast.unparse(node)} has a value only in a kernel with a grid.", hint)
        return value

    def attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        if isinstance(owner, Buffer) and node.attr == "at":
            return _At(owner)
        if isinstance(owner, Expr) and node.attr not in ("dtype", "lanes"):
            self.refuse(node, f"{ast.unparse(node.value)} is {_a(owner.dtype)} value: it has no {node.attr}.")
        return self.checked_worker(node, self.run(node, getattr, owner, node.attr))

    def unary(self, node: ast.UnaryOp) -> Any:
        a = self.scalar(node.operand)
        if not isinstance(a, Expr):
            return self.run(node, _UNARY[type(node.op)], a)
        if isinstance(node.op, ast.UAdd):
            return a
        if isinstance(node.op, ast.USub):
            return self.run(node, operator.neg, a)
        if isinstance(node.op, ast.Not):
            return self.run(node, operator.invert, self.truth(node.operand, a))
        return self.run(node, operator.invert, a)

    def binary(self, node: ast.BinOp) -> Any:
        return self.apply(node, node.op, self.scalar(node.left), self.scalar(node.right))

    def apply(self, node: ast.AST, op: ast.operator, a: Any, b: Any) -> Any:
        """``a op b`` for an operator of the syntax tree."""
        if type(op) not in _BINARY:
            self.refuse(node, "script has no @ on elements.", "Use matmul(c, a, b), or loops.")
        sign, function = _BINARY[type(op)]
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            return self.run(node, function, a, b)
        for side in (a, b):
            if not isinstance(side, (Expr, int, float)):
                self.refuse(node, f"{sign} of {_kind(a)} and {_kind(b)} has no meaning.")
        if sign != "**":
            return self.run(node, function, a, b)
        return self.power(node, a, b)

    def power(self, node: ast.AST, a: Any, b: Any) -> Any:
        if isinstance(b, int) and 0 < b <= _MAX_POWER and isinstance(a, Expr):
            total = a
            for _ in range(b - 1):
                total = total * a
            return total
        floating = [e for e in (a, b) if isinstance(e, float) or (isinstance(e, Expr) and e.dtype.is_float)]
        if not floating:
            self.refuse(node, f"a power of integers has an exponent from 1 to {_MAX_POWER}, known when building.")
        return self.run(node, call, "pow", *(e if isinstance(e, Expr) else float(e) for e in (a, b)))

    def truth(self, node: ast.expr, value: Any) -> Expr:
        """``value``, which is IR, as a condition."""
        if not isinstance(value, Expr):
            self.refuse(node, f"{_kind(value)} is not a condition.")
        if not value.dtype.is_bool:
            self.refuse(node, f"a condition is bool, not {value.dtype}.", f"Write {ast.unparse(node)} != 0.")
        return value

    def boolean(self, node: ast.BoolOp) -> Any:
        """and, or. Operands after an IR operand are evaluated in any case, so their loads are kept in bounds."""
        is_and = isinstance(node.op, ast.And)
        total: Expr | None = None
        value: Any = None
        for operand in node.values:
            with self.discardable(total, is_and):
                value = self.scalar(operand)
            if isinstance(value, Expr):
                cond = self.truth(operand, value)
                total = cond if total is None else (total & cond if is_and else total | cond)
            elif bool(value) is not is_and:
                return value if total is None else Const(not is_and, boolean)
        return value if total is None else total

    @contextmanager
    def discardable(self, cond: Expr | None, holds: bool = True) -> Iterator[None]:
        """Expressions evaluated inside count only if ``cond`` holds (or does not hold), but are always computed."""
        if cond is None:
            yield
            return
        facts, outer = self.setting.facts, self.outer_facts
        self.outer_facts = facts if outer is None else outer
        self.setting.facts = facts.assume(cond, holds)
        try:
            yield
        finally:
            self.setting.facts, self.outer_facts = facts, outer

    def comparison(self, node: ast.Compare) -> Any:
        sides = [node.left, *node.comparators]
        values = [self.value(side) for side in sides]
        total: Any = True
        for k, op in enumerate(node.ops):
            one = self.compare(node, op, values[k], values[k + 1])
            if isinstance(one, Expr) and isinstance(total, Expr):
                total = total & one
            elif not isinstance(one, Expr) and not one:
                return False
            elif isinstance(one, Expr):
                total = one
        return total

    def compare(self, node: ast.Compare, op: ast.cmpop, a: Any, b: Any) -> Any:
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            known = _BUILD_TIME_COMPARE.get(type(op))
            return self.run(node, known or _COMPARE[type(op)][1], a, b)
        if type(op) not in _COMPARE:
            self.refuse(node, "is and in compare Python objects, not values of the kernel.", "Use == or !=.")
        for side in (a, b):
            if not isinstance(side, (Expr, int, float)):
                self.refuse(node, f"{_kind(a)} cannot be compared with {_kind(b)}.")
        return self.run(node, compare, _COMPARE[type(op)][0], a, b)

    def conditional(self, node: ast.IfExp) -> Any:
        """a if cond else b: one of the two if cond is known, else a select with its loads kept in bounds."""
        cond = self.scalar(node.test)
        if not isinstance(cond, Expr):
            return self.value(node.body if cond else node.orelse)
        test = self.truth(node.test, cond)
        with self.discardable(test, True):
            a = self.scalar(node.body)
        with self.discardable(test, False):
            b = self.scalar(node.orelse)
        return self.run(node, select, test, a, b)

    def sequence(self, node: ast.Tuple | ast.List) -> Any:
        values = [self.value(e) for e in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def mapping(self, node: ast.Dict) -> Any:
        if any(k is None for k in node.keys):
            self.refuse(node, "script has no ** in a dict.", "Build the dict outside.")
        return {self.value(k): self.value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}

    def comprehension(self, node: _Comprehension) -> list[Any]:
        """Executed while building: its iterables are Python's, and range yields ints."""
        results: list[Any] = []
        self._generate(node, list(node.generators), results)
        return results

    def _generate(self, node: _Comprehension, left: list[ast.comprehension], results: list[Any]) -> None:
        if not left:
            results.append(self.value(node.elt))
            return
        items = self.build_time_items(left[0].iter)
        for item in items:
            with self.names.block():
                self.bind_target(left[0].target, item)
                conditions = [self.value(c) for c in left[0].ifs]
                for c, value in zip(left[0].ifs, conditions, strict=True):
                    if isinstance(value, Expr):
                        self.refuse(c, "a comprehension is run while building, and this value is not known then.")
                if all(conditions):
                    self._generate(node, left[1:], results)

    def build_time_items(self, node: ast.expr) -> list[Any]:
        """The elements of an iterable that is known while building."""
        if isinstance(node, ast.Call) and self.value(node.func) is range:
            args = [self.value(a) for a in node.args]
            if all(isinstance(a, int) for a in args):
                return list(self.run(node, range, *args))
        value = self.value(node)
        if isinstance(value, (Expr, Buffer, words.Loop)):
            self.refuse(node, "a comprehension runs over values known while building.", "Write a loop.")
        return list(self.run(node, iter, value))

    def bind_target(self, target: ast.expr, value: Any) -> None:
        """Bind the name, or the names, of a target to build-time values."""
        if isinstance(target, ast.Name):
            self.names.bind(target.id, value, target.lineno)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            self.refuse(target, "only names can be assigned here.")
        values = list(self.run(target, iter, value))
        if len(values) != len(target.elts):
            self.refuse(target, f"{len(target.elts)} names are given {len(values)} values.")
        for one, item in zip(target.elts, values, strict=True):
            self.bind_target(one, item)

    def text(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            known = self.value(part.value) if isinstance(part, ast.FormattedValue) else self.value(part)
            parts.append(str(known))
        return "".join(parts)

    def subscript(self, node: ast.Subscript) -> Any:
        owner = self.value(node.value)
        if isinstance(owner, Buffer):
            return self.load(node, owner, self.indices(node.slice))
        at = self.value(node.slice)
        if isinstance(owner, DType):
            return self.tensor_type(node, owner, at)
        if isinstance(owner, Expr):
            self.refuse(node, f"{ast.unparse(node.value)} is {_a(owner.dtype)} value: it cannot be indexed.")
        if any(isinstance(e, Expr) for e in (at if isinstance(at, tuple) else (at,))):
            hint = "Index it with a number known while building, or hold it in a buffer."
            self.refuse(node, f"{_kind(owner)} is indexed by a value that is not known while building.", hint)
        return self.run(node, operator.getitem, owner, at)

    def tensor_type(self, node: ast.AST, dtype: DType, shape: Any) -> TensorType:
        dims = shape if isinstance(shape, tuple) else (shape,)
        for d in dims:
            whole = isinstance(d, int) and not isinstance(d, bool)
            if not whole and not (isinstance(d, Expr) and d.dtype == i64):
                self.refuse(node, f"the size {d!r} of a tensor is not an integer.")
        return dtype[dims]

    def indices(self, node: ast.expr) -> list[Expr]:
        """The indices of an element."""
        result = []
        for item in node.elts if isinstance(node, ast.Tuple) else [node]:
            value = self.scalar(item)
            if isinstance(value, bool) or not isinstance(value, (int, Expr)):
                self.refuse(item, f"an index is an integer, not {_kind(value)}.")
            if isinstance(value, Expr) and not value.dtype.is_int:
                self.refuse(item, f"an index is an integer, not {value.dtype}.", "Convert it: i64(...).")
            result.append(shorter(as_index(value)))
        return result

    def load(self, node: ast.AST, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        """buffer[indices], kept in bounds inside a select, and predicated if the buffer is."""
        self.check_rank(node, buffer, indices)
        facts = self.outer_facts or self.setting.facts
        if buffer in self.setting.predicated:
            return self.predicated(node, buffer, indices, 0)
        if self.outer_facts is not None:
            indices = [_clamped(i, index(n), facts) for i, n in zip(indices, buffer.shape, strict=True)]
        return Load(buffer, tuple(indices), buffer.dtype, max((i.lanes for i in indices), default=1))

    def predicated(self, node: ast.AST, buffer: Buffer, indices: Sequence[Expr], otherwise: Any) -> Expr:
        """buffer[indices] inside the buffer, ``otherwise`` outside."""
        facts = self.outer_facts or self.setting.facts
        self.check_rank(node, buffer, indices)
        inside = self.inside(buffer, indices, facts)
        safe = [_clamped(i, index(n), facts) for i, n in zip(indices, buffer.shape, strict=True)]
        value: Expr = Load(buffer, tuple(safe), buffer.dtype, max((i.lanes for i in safe), default=1))
        if inside is None:
            return value
        if not isinstance(otherwise, (Expr, int, float)):
            self.refuse(node, f"otherwise is a number, not {_kind(otherwise)}.")
        other = otherwise if isinstance(otherwise, Expr) else _literal(otherwise, buffer.dtype)
        result: Expr = self.run(node, select, inside, value, cast(other, buffer.dtype))
        return result

    def inside(self, buffer: Buffer, indices: Sequence[Expr], facts: Facts) -> Expr | None:
        """The part of the condition "the element is in the buffer" that is not proved; None if all of it is proved."""
        conditions = []
        for i, size in zip(indices, buffer.shape, strict=True):
            n = index(size)
            if not facts.at_most(index(0), i):
                conditions.append(i >= 0)
            if not facts.at_most(i + 1, n):
                conditions.append(i < n)
        total: Expr | None = None
        for c in conditions:
            total = c if total is None else total & c
        return total

    def check_rank(self, node: ast.AST, buffer: Buffer, indices: Sequence[Expr]) -> None:
        if len(indices) != buffer.rank:
            self.refuse(node, f"{buffer!r} has {buffer.rank} dimensions, but is indexed with {len(indices)}.")

    def called(self, node: ast.Call) -> Any:
        """A call of a word of script, a type, a math function, or any Python function, which is executed now."""
        function = self.value(node.func)
        if any(isinstance(a, ast.Starred) for a in node.args):
            args = [v for a in node.args for v in self._spread(a)]
        else:
            args = [self.value(a) for a in node.args]
        if any(k.arg is None for k in node.keywords):
            self.refuse(node, "script has no ** in a call.", "Write the arguments out.")
        kwargs = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        if isinstance(function, _At):
            return self.read_at(node, function.buffer, args, kwargs)
        if isinstance(function, Kernel):
            self.refuse(
                node, f"{function.name} is a kernel, and a kernel cannot call one.", "Decorate it with @script."
            )
        if isinstance(function, Instruction):
            if kwargs:
                self.refuse(node, f"{function.name} takes no keywords.", "Give the operands in order.")
            return self.run(node, words.invoke, function, args)
        if isinstance(function, Inlinable):
            return self.run(node, function.inline, self.setting, args, kwargs)
        if isinstance(function, DType):
            return self.convert(node, function, args)
        if not callable(function):
            self.refuse(node, f"{ast.unparse(node.func)} is {_kind(function)}: it cannot be called.")
        return self.call_python(node, function, args, kwargs)

    def call_python(self, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a Python function; builtins that need the value of an IR argument are replaced by IR equivalents."""
        if function is range:
            return self.run(node, words.serial, *args, **kwargs)
        if any(isinstance(a, Expr) for a in args):
            known = _BUILTINS.get(function) if getattr(function, "__hash__", None) else None
            function = known or function
        return self.run(node, function, *args, **kwargs)

    def _spread(self, node: ast.expr) -> Sequence[Any]:
        if isinstance(node, ast.Starred):
            return list(self.run(node, iter, self.value(node.value)))
        return [self.value(node)]

    def convert(self, node: ast.Call, dtype: DType, args: list[Any]) -> Any:
        if len(args) != 1 or not isinstance(args[0], (Expr, int, float)):
            self.refuse(node, f"{dtype}(...) converts one number.")
        value = args[0]
        return self.run(node, cast, value, dtype) if isinstance(value, Expr) else _literal(value, dtype)

    def read_at(self, node: ast.Call, buffer: Buffer, args: list[Any], kwargs: dict[str, Any]) -> Expr:
        extra = set(kwargs) - {"otherwise"}
        if extra:
            self.refuse(node, f"at(...) takes indices and otherwise, not {', '.join(sorted(extra))}.")
        for a in args:
            if isinstance(a, bool) or not isinstance(a, (int, Expr)):
                self.refuse(node, f"an index is an integer, not {_kind(a)}.")
        return self.predicated(node, buffer, [shorter(as_index(a)) for a in args], kwargs.get("otherwise", 0))


def _literal(value: float, dtype: DType) -> Expr:
    if dtype.is_float:
        return Const(float(value), dtype)
    return cast(Const(value, boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f32), dtype)


def shorter(i: Expr) -> Expr:
    """An index with the terms of its sums collected, if that is shorter: i + 2 - 1 becomes i + 1."""
    return map_expr(i, _collected)


def _collected(e: Expr) -> Expr | None:
    if not isinstance(e, Binary) or e.op not in ("add", "sub") or e.dtype != i64 or e.lanes != 1:
        return None
    collected = to_expr(to_poly(e))
    return collected if len(list(walk_exprs(collected))) < len(list(walk_exprs(e))) else None


def _clamped(i: Expr, size: Expr, facts: Facts) -> Expr:
    low = i if facts.at_most(index(0), i) else maximum(i, 0)
    return low if facts.at_most(i + 1, size) else minimum(low, size - 1)


def _a(dtype: DType) -> str:
    return f"{'an' if dtype.name[0] in 'fi' else 'a'} {dtype}"


def _kind(value: Any) -> str:
    if isinstance(value, Buffer):
        return f"the tensor {value.name}"
    if isinstance(value, Expr):
        return f"{_a(value.dtype)} value"
    return "None" if value is None else f"a {type(value).__name__}"


def _indices(buffer: Buffer) -> str:
    return ", ".join("ijklmn"[: buffer.rank]) if buffer.rank <= 6 else "..."


def _extremum(function: Callable[[Any, Any], Expr], name: str) -> Callable[..., Expr]:
    def run(*args: Any) -> Expr:
        if len(args) < 2:
            raise TypeError(f"{name} takes two values or more")
        total = args[0]
        for a in args[1:]:
            total = function(total, a)
        return total  # type: ignore[no-any-return]  # one of the arguments is IR

    return run


def _no_int(name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        raise TypeError(f"{name} needs a value that is known while building")

    return run


_BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _extremum(minimum, "min"),
    max: _extremum(maximum, "max"),
    abs: lambda a: unary("abs", a),
    int: lambda a: cast(a, i64),
    float: lambda a: cast(a, f32),
    bool: lambda a: compare("ne", a, 0) if not a.dtype.is_bool else a,
    pow: lambda a, b: call("pow", a, b),
    round: _no_int("round"),
    divmod: lambda a, b: (a // b, a % b),
    **{getattr(math, name): words.MATH[name] for name in words.MATH if hasattr(math, name)},
}


_TABLE: dict[type, Callable[[Evaluator, Any], Any]] = {
    ast.Constant: Evaluator.constant,
    ast.Name: Evaluator.name,
    ast.Attribute: Evaluator.attribute,
    ast.UnaryOp: Evaluator.unary,
    ast.BinOp: Evaluator.binary,
    ast.BoolOp: Evaluator.boolean,
    ast.Compare: Evaluator.comparison,
    ast.IfExp: Evaluator.conditional,
    ast.Tuple: Evaluator.sequence,
    ast.List: Evaluator.sequence,
    ast.Dict: Evaluator.mapping,
    ast.ListComp: Evaluator.comprehension,
    ast.GeneratorExp: Evaluator.comprehension,
    ast.JoinedStr: Evaluator.text,
    ast.Subscript: Evaluator.subscript,
    ast.Call: Evaluator.called,
}
