"""Facts about a class of equal terms, computed as its terms are added: the analyses of the e-graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.select.address import ZERO, Address, address, from_rows, number, symbol, value_of
from taskmap.ir.select.terms import Data, type_of
from taskmap.ir.types import DType, i64

if TYPE_CHECKING:
    from collections.abc import Callable

_LISTED = 2048
"""The most lanes whose addresses are rearranged one by one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """dtype, lanes: the type. layout: of an index, the address in every lane. alike: lanes with equal entries hold
    equal values (of a load, the addresses it reads). None: unknown."""

    dtype: DType
    lanes: int
    layout: Address | None = None
    alike: Address | None = None

    def merged(self, other: Facts) -> Facts:
        """The facts of two classes that turn out equal. Raises TypeMismatchError if they contradict each other."""
        if (self.dtype, self.lanes) != (other.dtype, other.lanes):
            raise TypeMismatchError(
                f"{self.dtype}x{self.lanes} was found equal to {other.dtype}x{other.lanes}", why="a rule is wrong."
            )
        if self.layout and other.layout and self.layout != other.layout:
            raise TypeMismatchError(f"{self.layout} was found equal to {other.layout}", why="a rule is wrong.")
        return Facts(self.dtype, self.lanes, self.layout or other.layout, self.alike or other.alike)


def facts_of(op: str, data: Data, args: Sequence[Facts]) -> Facts:
    """The facts of a node, from those of its arguments. Raises TypeMismatchError for arguments that do not fit."""
    dtype, lanes = type_of(op, data, [(a.dtype, a.lanes) for a in args])
    layout = _layout(op, data, args) if dtype == i64 else None
    return Facts(dtype, lanes, layout, layout or _alike(op, data, args))


def _layout(op: str, data: Data, args: Sequence[Facts]) -> Address | None:
    if op == "index":
        found: Address = data[0]
        return found
    if op == "const":
        return address(number(data[0]))
    if op == "var":
        return address(symbol(data[0]))
    layouts = [a.layout for a in args]
    rule = _LAYOUTS.get(op)
    if rule is None or None in layouts:
        return None
    return rule(data, *layouts)


def _ramp(data: Data, base: Address, stride: Address) -> Address | None:
    if any(s for _, s in stride.digits):
        return None
    return base.repeated(data[0], stride.base)


def _sub(data: Data, a: Address, b: Address) -> Address | None:
    return a + b.scaled(number(-1))


def _mul(data: Data, a: Address, b: Address) -> Address | None:
    for x, y in ((a, b), (b, a)):
        if all(not s for _, s in y.digits):
            return x.scaled(y.base)
    return None


def _divided(which: int) -> Callable[..., Address | None]:
    def rule(data: Data, a: Address, b: Address) -> Address | None:
        by = value_of(b.base)
        if by is None or any(s for _, s in b.digits):
            return None
        both = a.divided(by)
        return both[which] if both else None

    return rule


def _pick(data: Data, x: Address) -> Address | None:
    if x.lanes > _LISTED:
        return None
    return x.picked(data[0])


def _concat(data: Data, *parts: Address) -> Address | None:
    if sum(p.lanes for p in parts) > _LISTED:
        return None
    return from_rows([row for p in parts for row in p.rows()])


_LAYOUTS: dict[str, Callable[..., Address | None]] = {
    "ramp": _ramp,
    "broadcast": lambda d, x: x.repeated(d[0]),
    "add": lambda d, a, b: a + b,
    "sub": _sub,
    "mul": _mul,
    "div": _divided(0),
    "mod": _divided(1),
    "pick": _pick,
    "part": lambda d, x: x.part(d[0], d[1], d[3], d[2]),
    "concat": _concat,
}


def _alike(op: str, data: Data, args: Sequence[Facts]) -> Address | None:
    if op == "load":
        return args[0].layout
    if op in ("const", "var"):
        return address(ZERO)
    if op in ("cast", "copy"):
        return args[0].alike
    if op in ("broadcast", "pick", "part") and args[0].alike is not None:
        return _LAYOUTS[op](data, args[0].alike)
    return None
