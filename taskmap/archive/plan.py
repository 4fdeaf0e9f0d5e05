"""A plan of an archive at known sizes: everything that a call needs, checked for consistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from taskmap.archive.manifest import Manifest, PlanRecord, Weight
from taskmap.backend.program.binding import Place, Places, View, axis_of, span
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.program.structure import BufferKind
from taskmap.ir.errors import CodegenError
from taskmap.ir.expressions import Dim, Expr
from taskmap.ir.types import DType

Shape = tuple[int, ...]
MOST_BYTES = 1 << 46
"""The limit on a tensor's size in bytes, beyond any machine's memory."""
_INVALID = (ArithmeticError, ValueError, TypeError)
"""Errors of sizes that are evaluated."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A plan at known sizes: the values of its symbolic sizes, the bytes of each tensor made, the places of outputs."""

    dims: Shape
    made: tuple[int, ...]
    outputs: tuple[Place, ...]


class PlanSizes:
    """All sizes of a plan as functions of its symbolic sizes."""

    def __init__(self, plan: PlanRecord, held: Sequence[DType], weights: Sequence[Weight]) -> None:
        """``held``: the inputs' types in memory. Raises ValueError for sizes that cannot be computed."""
        self.plan, self.held, self.weights = plan, held, weights
        self._views = [v for v in plan.binding.outputs if isinstance(v, View) and v.spec is not None]
        self._buffers = [b.bytes for b in plan.program.buffers]
        self._factors = [r.factor for r in plan.memory.regions]
        self._checked = [d for _, a, b in plan.checks for d in (a, b)]
        shapes = [d for s in plan.shapes for d in s]
        dims = plan.binding.dims
        names = [var for var, _ in dims]
        try:
            self._accepts = sizes_function([*shapes, *plan.positive, *self._checked], names)
            self._memory = sizes_function([*self._buffers, *self._factors], names)
            self._places = Places(plan.binding)
            self._dims = [
                sizes_function([at], names[:k]) if isinstance(at, (int, Expr)) else axis_of(at)
                for k, (_, at) in enumerate(dims)
            ]
        except (*_INVALID, CodegenError, SyntaxError, MemoryError, RecursionError) as error:
            raise ValueError(f"its sizes cannot be computed: {error}.") from error

    def resolve(self, shapes: Sequence[Shape]) -> Resolved | None:
        """The plan for inputs of these shapes; None when it does not accept them.

        Raises ValueError if the plan contradicts itself: invalid sizes, or views beyond their tensors.
        """
        plan = self.plan
        if not all(_fits(wanted, s) for wanted, s in zip(plan.shapes, shapes, strict=True)):
            return None
        try:
            dims = self._values(shapes)
            asked = list(self._accepts(dims))
            memory = self._memory(dims)
            places = self._places.resolve(dims)
        except _INVALID as error:
            raise ValueError(f"its sizes cannot be computed: {error}.") from error
        if any(type(n) is not int or abs(n) >= MOST_BYTES for n in dims):
            raise ValueError("one of its sizes is invalid.")
        given = [n for s in shapes for n in s]
        positive = len(given) + len(plan.positive)
        if asked[: len(given)] != given or any(n < 1 for n in asked[len(given) : positive]):
            return None
        if not self._holds(asked[positive:]):
            return None
        values = [n for shape, strides, offset in places.values() for n in (*shape, *strides, offset)]
        if any(type(n) is not int or not 0 <= n < MOST_BYTES for n in (*memory, *values)):
            raise ValueError("one of its sizes is invalid.")
        inputs = [prod(s) * h.bytes for s, h in zip(shapes, self.held, strict=True)]
        made = [span(*places[slot][:2]) * spec.dtype.bytes for slot, spec in plan.binding.made.items()]
        sizes = [*inputs, *made, *(w.bytes for w in self.weights)]
        if max(sizes, default=0) >= MOST_BYTES:
            raise ValueError("one of its tensors is too large.")
        self._check_buffers(memory[: len(self._buffers)], memory[len(self._buffers) :], sizes)
        for view in self._views:
            shape, strides, offset = places[id(view)]
            assert view.spec is not None
            if (offset + span(shape, strides)) * view.spec.dtype.bytes > sizes[view.slot]:
                raise ValueError("one of its outputs lies outside its tensor.")
        return Resolved(dims, tuple(made), tuple(places[id(view)] for view in self._views))

    def _values(self, shapes: Sequence[Shape]) -> Shape:
        """The values of the symbolic sizes."""
        found: list[int] = []
        for at in self._dims:
            assert at is not None
            found += [shapes[at[0]][at[1]]] if isinstance(at, tuple) else at(found)
        return tuple(found)

    def _holds(self, values: Sequence[int]) -> bool:
        pairs = zip(self.plan.checks, values[::2], values[1::2], strict=True)
        return all(a == b if op == "eq" else a >= b for (op, _, _), a, b in pairs)

    def _check_buffers(self, buffers: Sequence[int], factors: Sequence[int], sizes: Sequence[int]) -> None:
        program, memory, binding = self.plan.program, self.plan.memory, self.plan.binding
        behind = dict(zip((*program.io, *program.constants), (*binding.io, *binding.constants), strict=True))
        for number, (buffer, size) in enumerate(zip(program.buffers, buffers, strict=True)):
            if buffer.kind is not BufferKind.ARENA:
                slot = behind[number]
                fits = size == sizes[slot] if slot < binding.inputs else size <= sizes[slot]
            elif number in memory.places:
                region, offset = memory.places[number]
                fits = offset * factors[region] + size <= memory.regions[region].units * factors[region]
            else:
                fits = True  # no step uses it
            if not fits:
                raise ValueError(f"its buffer {number} of {size} bytes does not fit into its place.")


def sound_plans(manifest: Manifest) -> tuple[PlanSizes, ...]:
    """The sizes of all plans. Raises ValueError for a plan that contradicts itself."""
    held = [p.held for p in manifest.inputs]
    found = tuple(PlanSizes(plan, held, manifest.weights) for plan in manifest.plans)
    for sizes in found:
        if not sizes.plan.binding.dims and sizes.resolve(tuple(map(_known, sizes.plan.shapes))) is None:
            raise ValueError("a plan does not accept the shapes that it names.")
    return found


def _known(shape: Sequence[Dim]) -> Shape:
    known = tuple(n for n in shape if isinstance(n, int))
    if len(known) != len(shape):
        raise ValueError("a plan of one size has a symbolic one.")
    return known


def _fits(wanted: Sequence[Dim], shape: Shape) -> bool:
    if len(wanted) != len(shape):
        return False
    return all(not isinstance(w, int) or w == n for w, n in zip(wanted, shape, strict=True))
