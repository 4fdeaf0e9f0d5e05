"""A spec: the work to be done by one worker of a level, with its operands' shapes, types and places.

It is data; ``specs`` has the kinds, ``strategy`` the primitives that decompose them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import SCOPE_NAMES, Level
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expressions import Dim, Expr, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.types import DType, TensorType
from taskmap.ir.visit import substitute

S = TypeVar("S", bound="Spec")


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a spec reads or writes: its dimensions are axes of the spec. ``strides`` as of a Buffer. made:
    False for the result of another stage that is in no memory."""

    name: str
    dtype: DType
    axes: tuple[str, ...]
    scope: Scope = Scope.GLOBAL
    strides: tuple[Dim, ...] | None = None
    made: bool = True

    @staticmethod
    def of(name: str, given: DType | TensorType, axes: tuple[str, ...]) -> Operand:
        """A parameter of a kernel: a type, or a tensor type with strides of its own."""
        if isinstance(given, TensorType):
            return Operand(name, given.dtype, axes, strides=given.strides)
        return Operand(name, given, axes)


@dataclass(frozen=True, slots=True, repr=False)
class Spec:
    """The base of all specs. extents: its axes by name, each with its size. Derived specs differ in these fields only.

    tiled: the axes that ``tile`` divides. summed: the axis of a sum, which ``split`` divides, or "". accumulated: the
    operand that the sum is added to, or "".
    """

    extents: tuple[tuple[str, Dim], ...]
    operands: tuple[Operand, ...]
    level: Level

    @property
    def tiled(self) -> tuple[str, ...]:
        """The axes that ``tile`` divides, in order."""
        return tuple(name for name, _ in self.extents if name != self.summed)

    @property
    def summed(self) -> str:
        """The axis of a sum, or ""."""
        return ""

    @property
    def accumulated(self) -> str:
        """The operand to which a sum is added, or ""."""
        return ""

    @property
    def written(self) -> str:
        """The operand that the spec writes."""
        return self.accumulated or "dst"

    @property
    def initial(self) -> float:
        """The first value of a sum."""
        return 0.0

    def parameters(self) -> tuple[tuple[Operand, tuple[Dim, ...]], ...]:
        """The operands that are arguments of a kernel, with their shapes."""
        return tuple((o, self.shape(o)) for o in self.operands)

    def why_not_moved(self, name: str, scope: Scope) -> tuple[str, str]:
        """The reason why an operand cannot be moved to ``scope``, and a way out; empty texts if it can."""
        return "", ""

    def why_no_leaf(self) -> tuple[str, str]:
        """The reason why no instruction, and no loop of them, does the spec, and a way out; empty texts if one does."""
        return "", ""

    def specialised(self: S, values: Mapping[Var, Expr]) -> S:
        """The same spec with values for symbolic sizes."""

        def of(dim: Dim) -> Dim:
            if isinstance(dim, int):
                return dim
            found = substitute(dim, values)
            known = static_size(found)
            return found if known is None else known

        operands = tuple(
            o if o.strides is None else replace(o, strides=tuple(map(of, o.strides))) for o in self.operands
        )
        return self.derived(extents=tuple((n, of(e)) for n, e in self.extents), operands=operands)

    def extent(self, axis: str) -> Dim:
        """The size of an axis."""
        return dict(self.extents)[axis]

    def operand(self, name: str) -> Operand | None:
        """An operand by name."""
        return next((o for o in self.operands if o.name == name), None)

    def shape(self, operand: Operand) -> tuple[Dim, ...]:
        """The shape of an operand."""
        sizes = dict(self.extents)
        return tuple(sizes[axis] for axis in operand.axes)

    def static_shape(self, operand: Operand) -> tuple[int, ...] | None:
        """The shape of an operand, or None if it depends on symbolic sizes."""
        sizes = tuple(static_size(n) for n in self.shape(operand))
        return None if None in sizes else sizes  # type: ignore[return-value]  # no None is in it

    def with_extents(self: S, new: Mapping[str, Dim], level: Level | None = None) -> S:
        """The same work on a smaller part."""
        return self.derived(extents=tuple((n, new.get(n, e)) for n, e in self.extents), level=level or self.level)

    def with_operand(self: S, name: str, scope: Scope, dtype: DType | None = None) -> S:
        """The same work with an operand in another memory, there perhaps of another type."""

        def moved(o: Operand) -> Operand:
            return replace(o, scope=scope, dtype=dtype or o.dtype, strides=None, made=True)

        return self.derived(operands=tuple(moved(o) if o.name == name else o for o in self.operands))

    def derived(self: S, **changes: object) -> S:
        """The same kind of spec with other values of some fields; kinds have constructors of their own."""
        made = object.__new__(type(self))
        for f in fields(self):
            object.__setattr__(made, f.name, changes.get(f.name, getattr(self, f.name)))
        return made

    @property
    @abstractmethod
    def kind(self) -> str:
        """ "matmul", "move", "init", "compute" or "reduce"."""

    def moving(self, name: str, scope: Scope) -> Spec:
        """The copy of an operand into ``scope``. Raises ScheduleError for a spec without operands to move."""
        raise ScheduleError(f"{self} has no operand to move")

    def setting(self, name: str, scope: Scope, value: float) -> Spec:
        """Every element of an operand in ``scope`` = value. Raises ScheduleError for a spec that sums nothing."""
        raise ScheduleError(f"{self} sums nothing")

    def storing(self, name: str, scope: Scope) -> Spec:
        """The copy from ``scope`` to an operand. Raises ScheduleError for a spec that sums nothing."""
        raise ScheduleError(f"{self} sums nothing")

    @abstractmethod
    def meaning(self, **arrays: NDArray[Any]) -> NDArray[Any]:
        """The new value of the operand that the spec writes, computed by numpy from its operands by name."""

    @property
    def places(self) -> str:
        """The memories of the operands."""
        return ",".join(SCOPE_NAMES[o.scope] for o in self.operands)

    def sizes(self, separator: str) -> str:
        """The extents as text."""
        return separator.join(print_dim(n) for _, n in self.extents)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.sizes(',')})({self.places})({self.level.value})"

    def __repr__(self) -> str:
        return str(self)
