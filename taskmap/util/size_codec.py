"""Sizes as JSON, and back: numbers, names of symbolic sizes, and [operation, operand, ...] of sizes.

["mul", "n0", ["add", "n1", 3]] is n0 * (n1 + 3). Python evaluates the result (``backend.program.sizes``), so the
operations are limited to a table and sizes stay small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taskmap.ir.construct import index
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Binary, Call, Cast, Compare, Const, Dim, Expr, Select, Unary, Var
from taskmap.ir.types import boolean, f64, i64
from taskmap.ir.util.codec import LARGEST, Codec, Json

_DEEPEST = 60
_BINARY = frozenset({"add", "sub", "mul", "div", "floordiv", "mod", "tdiv", "tmod", "min", "max", "and", "or", "xor"})
_UNARY = frozenset({"neg", "not", "abs"})
_COMPARE = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_CALLS = frozenset({"ceil", "floor", "round", "sqrt", "trunc"})


def record_of(size: Dim, names: Mapping[Var, str]) -> Any:
    """``size`` as JSON. Raises UnsupportedError for a size that cannot be represented."""

    def go(e: Dim, depth: int) -> Any:
        if isinstance(e, int):
            return int(e)
        if depth <= 0:
            raise UnsupportedError(f"the size {size!r} is nested too deep for an archive")
        match e:
            case Const(value=value, dtype=dtype):
                return float(value) if dtype.is_float else int(value)
            case Var() if e in names:
                return names[e]
            case Binary(op=op, a=a, b=b) if op in _BINARY:
                return [op, go(a, depth - 1), go(b, depth - 1)]
            case Unary(op=op, a=a) if op in _UNARY:
                return [op, go(a, depth - 1)]
            case Compare(op=op, a=a, b=b):
                return [op, go(a, depth - 1), go(b, depth - 1)]
            case Select(cond=cond, a=a, b=b):
                return ["select", go(cond, depth - 1), go(a, depth - 1), go(b, depth - 1)]
            case Cast(a=a, dtype=dtype):
                return ["float" if dtype.is_float else "int", go(a, depth - 1)]
            case Call(name=name, args=(a,)) if name in _CALLS:
                return [name, go(a, depth - 1)]
        raise UnsupportedError(f"the size {size!r} cannot be written into an archive")

    return go(size, _DEEPEST)


def size_from(record: Any, names: Mapping[str, Var]) -> Dim:
    """The size of a record. Raises ValueError for an invalid record."""

    def go(r: Any, depth: int) -> Expr:
        if depth <= 0:
            raise ValueError("a size is nested too deep")
        match r:
            case bool():
                raise ValueError(f"{r} is not a size")
            case int() if abs(r) < LARGEST:
                return index(r)
            case float() if math.isfinite(r):
                return Const(r, f64)
            case str() if r in names:
                return names[r]
            case [str() as op, *operands]:
                return _node(op, [go(o, depth - 1) for o in operands])
        raise ValueError(f"{_short(r)} is not a size")

    return int(record) if type(record) is int and abs(record) < LARGEST else go(record, _DEEPEST)


def size_codec(variables: Mapping[str, Var]) -> Codec[Dim]:
    """Sizes of these variables, by the names that they have in the document."""
    names = {var: name for name, var in variables.items()}

    def read(j: Json) -> Dim:
        try:
            return size_from(j.value, variables)
        except ValueError as error:
            raise ValueError(f"{j.path}: {error}") from error

    return Codec(lambda size: record_of(size, names), read)


def _node(op: str, operands: Sequence[Expr]) -> Expr:
    floats = any(o.dtype.is_float for o in operands)
    match operands:
        case [a] if op in _UNARY:
            return Unary(op, a, a.dtype, 1)
        case [a] if op in _CALLS:
            return Call(op, (a,), f64, 1)
        case [a] if op in ("float", "int"):
            return Cast(a, f64 if op == "float" else i64, 1)
        case [a, b] if op in _BINARY:
            return Binary(op, a, b, f64 if floats or op == "div" else i64, 1)
        case [a, b] if op in _COMPARE:
            return Compare(op, a, b, 1, boolean)
        case [cond, a, b] if op == "select":
            return Select(cond, a, b, f64 if floats else i64, 1)
    raise ValueError(f"{_short(op)} is not an operation on {len(operands)} sizes")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
