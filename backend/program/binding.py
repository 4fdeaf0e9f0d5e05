"""The binding of a program's buffers to tensors at a call, as data.

A call works on *slots*, one tensor each: first the call's arguments, then constants and tensors made by the call.
Native code sees the addresses of slots; extern calls and the caller see tensors. A binding names no tensor and no
function, so it serves PyTorch's tensors (compile.runtime) and numpy's arrays (archive.load) alike, and an archive
writes it down as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskmap.backend.program.sizes import sizes_function
from taskmap.ir.expressions import Dim, Var
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and strides (in elements) that a tensor must have; sizes may be symbolic."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: DType
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class View:
    """The tensor in ``slot``, or the part of its storage that ``spec`` describes, relative to the tensor's own start.

    ``copy``: the caller gets a copy, because nobody may write to the slot's tensor. ``of``: the result at this position
    is a part of the copy; its offset is relative to the copy's start.
    """

    slot: int
    spec: TensorSpec | None = None
    copy: bool = False
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The destination of a tensor returned by an extern call: item ``item`` of the result (None: the result itself).

    With a ``spec``, the tensor is copied if its strides differ, because native code reads it.
    """

    slot: int
    item: int | None = None
    spec: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class ExternBinding:
    """A call between native segments that takes the tensors in ``reads`` and the values of the dims.

    ``allocate``: slots that later native code writes. ``dead``: slots not needed afterwards. ``name`` and ``where``
    are for messages.
    """

    name: str
    reads: tuple[View, ...]
    results: tuple[Result, ...]
    allocate: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    where: str = ""


Output = View | Dim | None
"""A result of a graph at one position: a tensor, a size, or None."""

DimSource = tuple[object, ...] | Dim
"""The source of a symbolic size's value: a fact of an argument, as in Graph.dims, or a size computed from those before
it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything a call needs besides the executable, the constants and the functions of extern calls.

    inputs: number of arguments. dims: the source of each symbolic size's value. made: the slots that a call fills, with
    a spec for those that native code writes. checked: the arguments whose strides native code relies on. allocate:
    slots to allocate before the first segment. io, constants: the slot of each entry in the executable's tables.
    hidden: the number of trailing outputs that the caller does not get.
    """

    inputs: int
    dims: tuple[tuple[Var, DimSource], ...]
    slots: int
    made: Mapping[int, TensorSpec]
    checked: Mapping[int, TensorSpec]
    allocate: tuple[int, ...]
    io: tuple[int, ...]
    constants: tuple[int, ...]
    externs: tuple[ExternBinding, ...]
    outputs: tuple[Output, ...]
    hidden: int = 0


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def axis_of(source: DimSource) -> tuple[int, int] | None:
    """The argument and axis that a symbolic size is read from; None for a size with another source."""
    match source:
        case ("size", int(argument), int(axis)):
            return argument, axis
    return None


Place = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and offset in elements, all static."""


class Places:
    """A binding's specs, resolved at known sizes: by slot, those of views by ``id`` of the view.

    ``static``: the places if no size is symbolic. Raises CodegenError for a size that is not arithmetic.
    """

    def __init__(self, binding: Binding) -> None:
        dims = [var for var, _ in binding.dims]
        specs: dict[int, TensorSpec] = {**binding.checked, **binding.made}
        views = [v for step in binding.externs for v in step.reads]
        views += [v for v in binding.outputs if isinstance(v, View)]
        specs.update({id(v): v.spec for v in views if v.spec is not None})
        specs.update({r.slot: r.spec for step in binding.externs for r in step.results if r.spec is not None})
        self._ranks = [(key, len(spec.shape)) for key, spec in specs.items()]
        flat: list[Dim] = [d for s in specs.values() for d in (*s.shape, *s.strides, s.offset)]
        self._flat = sizes_function(flat, dims)
        self.static: dict[int, Place] | None = None if dims else self.resolve(())

    def resolve(self, dims: Sequence[int]) -> dict[int, Place]:
        """The static shape, strides and offset of every spec."""
        flat = self._flat(dims)
        places: dict[int, Place] = {}
        at = 0
        for key, rank in self._ranks:
            middle, end = at + rank, at + 2 * rank
            places[key] = (flat[at:middle], flat[middle:end], flat[end])
            at = end + 1
        return places
