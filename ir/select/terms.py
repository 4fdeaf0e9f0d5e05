"""Statements on vectors as terms.

    const(value, dtype)  var(name)                        one lane
    ramp(n; b, s)        b, b + s, ... of n steps; b and s may be vectors, whose lanes stay innermost
    broadcast(n; x)      x, n times
    add sub mul div mod  lane by lane; div and mod round down
    index(address)       the addresses of ``ir.select.address``
    load(buffer, dtype; i)   cast(dtype; x)
    total(n; x)          sums of neighbouring lanes: n of them
    dot(k; c, a, b)      c[l] + sum over j < k of a[l·k + j] · b[l·k + j], with a and b converted to c's type
    pick(lanes; x)       the lanes of x in that order          concat(; x, y, ...)   lanes of x, then of y, ...
    part(start, width, step; x)   lanes from start + width · step on, for the symbol step ("": 0)
    each(step, n; x)     x with step = 0, then 1, ..., n - 1
    apply(instruction; c, a, b)   one instruction of the table on whole registers
    copy(dtype; x)       x in registers, converted            moved(instructions; x)  the same by vector accesses
    tile(operand)        a matrix, as ``ir.select.tiles`` describes it
    matmul(m, n, k; c, a, b)  c + a @ b of tiles              tiled(instruction, count; c, a, b)  the same, tile by tile

A sum starts at +0, so that total(x) = 0 + total(x) even where all terms are -0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.types import DType, i64

if TYPE_CHECKING:
    from taskmap.ir.isa.entry import Instruction

__all__ = ["Data", "Term", "Type", "binary", "broadcast", "cast", "const", "load", "ramp", "total", "var"]

Type = tuple[DType, int]
"""Element type and lanes."""
Data = tuple[Any, ...]
"""The content of a node besides its arguments; hashable."""


@dataclass(frozen=True, slots=True)
class Term:
    """A node: an operation, its data, its arguments."""

    op: str
    data: Data = ()
    args: tuple[Term, ...] = ()

    @property
    def type(self) -> Type:
        """Element type and lanes. Raises TypeMismatchError for arguments that do not fit together."""
        return type_of(self.op, self.data, [a.type for a in self.args])

    def __str__(self) -> str:
        inside = "; ".join(part for part in (", ".join(map(_word, self.data)), ", ".join(map(str, self.args))) if part)
        return f"{self.op}({inside})"


def _word(x: object) -> str:
    name = getattr(x, "name", None)
    return name if isinstance(name, str) else str(x)


def type_of(op: str, data: Data, args: Sequence[Type]) -> Type:
    """The type of a node, from those of its arguments. Raises TypeMismatchError if they do not fit together."""
    found = _TYPES[op](data, args)
    if found is None:
        shown = ", ".join(f"{dtype}x{lanes}" for dtype, lanes in args)
        raise TypeMismatchError(f"{op} of {shown} has no type", why="its operands differ in type or lanes.")
    return found


def _same(data: Data, args: Sequence[Type]) -> Type | None:
    return args[0] if args[0] == args[1] else None


def _ramp(data: Data, args: Sequence[Type]) -> Type | None:
    return (args[0][0], args[0][1] * data[0]) if args[0] == args[1] and args[0][0] == i64 else None


def _total(data: Data, args: Sequence[Type]) -> Type | None:
    return (args[0][0], data[0]) if args[0][1] % data[0] == 0 else None


def _dot(data: Data, args: Sequence[Type]) -> Type | None:
    c, a, b = args
    return c if a[1] == b[1] == c[1] * data[0] else None


def _concat(data: Data, args: Sequence[Type]) -> Type | None:
    return (args[0][0], sum(n for _, n in args)) if len({t for t, _ in args}) == 1 else None


def _pick(data: Data, args: Sequence[Type]) -> Type | None:
    return (args[0][0], len(data[0])) if max(data[0]) < args[0][1] else None


_TYPES: dict[str, Callable[[Data, Sequence[Type]], Type | None]] = {
    "const": lambda d, a: (d[1], 1),
    "var": lambda d, a: (i64, 1),
    "index": lambda d, a: (i64, d[0].lanes),
    "ramp": _ramp,
    "broadcast": lambda d, a: (a[0][0], a[0][1] * d[0]),
    "add": _same,
    "sub": _same,
    "mul": _same,
    "div": _same,
    "mod": _same,
    "load": lambda d, a: (d[1], a[0][1]) if a[0][0] == i64 else None,
    "cast": lambda d, a: (d[0], a[0][1]),
    "copy": lambda d, a: (d[0], a[0][1]),
    "moved": lambda d, a: (d[0].spec.dtype, a[0][1]),
    "total": _total,
    "dot": _dot,
    "apply": lambda d, a: a[0],
    "pick": _pick,
    "part": lambda d, a: (a[0][0], d[1]),
    "each": lambda d, a: (a[0][0], a[0][1] * d[1]),
    "concat": _concat,
    "tile": lambda d, a: (d[0].dtype, prod(d[0].shape)),
    "matmul": lambda d, a: a[0],
    "tiled": lambda d, a: a[0],
}


def const(value: float, dtype: DType = i64) -> Term:
    """A scalar."""
    return Term("const", (value, dtype))


def var(name: str) -> Term:
    """A symbol of an address."""
    return Term("var", (name,))


def _index(x: Term | int) -> Term:
    return const(x) if isinstance(x, int) else x


def _like(x: Term | int, lanes: int) -> Term:
    x = _index(x)
    return x if x.type[1] == lanes else broadcast(x, lanes // x.type[1])


def ramp(base: Term | int, stride: Term | int, n: int) -> Term:
    """base, base + stride, ...: ``n`` steps. A scalar stride is the same in every lane of a vector base."""
    base = _index(base)
    return Term("ramp", (n,), (base, _like(stride, base.type[1])))


def broadcast(x: Term | int, n: int) -> Term:
    """x, ``n`` times."""
    return Term("broadcast", (n,), (_index(x),))


def binary(op: str, a: Term, b: Term | int) -> Term:
    """add, sub, mul, div or mod; a number is the same in every lane."""
    return Term(op, (), (a, _like(b, a.type[1]) if isinstance(b, int) else b))


def load(buffer: str, dtype: DType, at: Term) -> Term:
    """The elements of a buffer at these addresses."""
    return Term("load", (buffer, dtype), (at,))


def cast(dtype: DType, x: Term) -> Term:
    """x converted."""
    return Term("cast", (dtype,), (x,))


def total(n: int, x: Term) -> Term:
    """``n`` sums of neighbouring lanes."""
    return Term("total", (n,), (x,))


def instructions_of(term: Term) -> tuple[Instruction, ...]:
    """The instructions of a term, each once, in the order in which they are executed."""
    found: dict[Instruction, None] = {}
    seen: set[int] = set()

    def walk(t: Term) -> None:
        if id(t) in seen:
            return
        seen.add(id(t))
        for a in t.args:
            walk(a)
        if t.op in ("apply", "moved"):
            found.update(dict.fromkeys(t.data))

    walk(term)
    return tuple(found)
