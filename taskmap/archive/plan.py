"""A plan of an archive at known sizes: everything that a call needs, checked for consistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from taskmap.archive.manifest import ArchivedPlan, Manifest, Source, Weight, item_bytes, span
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.program.structure import BufferKind
from taskmap.ir.errors import CodegenError
from taskmap.ir.nodes import Dim

Shape = tuple[int, ...]
MOST_BYTES = 1 << 46
"""The limit on a tensor's size in bytes, beyond any machine's memory."""


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor that a call makes: its type in memory, and its size in bytes."""

    held: str
    bytes: int


@dataclass(frozen=True, slots=True)
class OutputView:
    """A result: ``strides`` and ``offset`` in bytes."""

    source: Source
    held: str
    shape: Shape
    strides: Shape
    offset: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """A plan at known sizes; ``dims`` are the values of its symbolic sizes."""

    dims: Shape
    made: tuple[MadeTensor, ...]
    outputs: tuple[OutputView, ...]


class PlanSizes:
    """All sizes of a plan as one function of its symbolic sizes."""

    def __init__(self, plan: ArchivedPlan, held: Sequence[str], weights: Sequence[Weight]) -> None:
        """``held``: the inputs' types in memory. Raises ValueError for sizes that cannot be computed."""
        self.plan, self.held, self.weights = plan, held, weights
        self._buffers = [b.bytes for b in plan.program.buffers]
        self._factors = [r.factor for r in plan.memory.regions]
        self._checked = [d for _, a, b in plan.checks for d in (a, b)]
        views = [d for m in plan.made for d in (*m.shape, *m.strides)]
        views += [d for o in plan.outputs for d in (*o.shape, *o.strides, o.offset)]
        shapes = [d for s in plan.shapes for d in s]
        flat: list[Dim] = [*shapes, *plan.positive, *self._checked, *self._buffers, *self._factors, *views]
        try:
            self._flat = sizes_function(flat, plan.program.dims)
            known = list(plan.sizes)
            self._dims = [
                at if isinstance(at, tuple) else sizes_function([at], known[:k])
                for k, at in enumerate(plan.sizes.values())
            ]
        except (CodegenError, SyntaxError, MemoryError, RecursionError) as error:
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
            values = list(self._flat(dims))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ValueError(f"its sizes cannot be computed: {error}.") from error
        if any(type(n) is not int or abs(n) >= MOST_BYTES for n in dims):
            raise ValueError("one of its sizes is invalid.")

        def take(count: int) -> list[int]:
            taken = values[:count]
            del values[:count]
            return taken

        if take(sum(map(len, shapes))) != [n for s in shapes for n in s]:
            return None
        if any(n < 1 for n in take(len(plan.positive))) or not self._holds(take(len(self._checked))):
            return None
        if any(type(n) is not int or not 0 <= n < MOST_BYTES for n in values):
            raise ValueError("one of its sizes is invalid.")
        buffers, factors = take(len(self._buffers)), take(len(self._factors))
        made = []
        for m in plan.made:
            elements = span(take(len(m.shape)), take(len(m.shape)))
            made.append(MadeTensor(m.held, elements * item_bytes(m.held)))
        sizes = {
            "input": [prod(s) * item_bytes(h) for s, h in zip(shapes, self.held, strict=True)],
            "made": [m.bytes for m in made],
            "weight": [w.bytes for w in self.weights],
        }
        if max(max(s, default=0) for s in sizes.values()) >= MOST_BYTES:
            raise ValueError("one of its tensors is too large.")
        self._check_buffers(buffers, factors, sizes)
        outputs = []
        for o in plan.outputs:
            shape, strides = tuple(take(len(o.shape))), tuple(take(len(o.shape)))
            (offset,) = take(1)
            outputs.append(self._view(o.source, shape, strides, offset, sizes))
        return Resolved(dims, tuple(made), tuple(outputs))

    def _values(self, shapes: Sequence[Shape]) -> Shape:
        """The values of the symbolic sizes."""
        found: list[int] = []
        for at in self._dims:
            found += [shapes[at[0]][at[1]]] if isinstance(at, tuple) else at(found)
        return tuple(found)

    def _holds(self, values: Sequence[int]) -> bool:
        pairs = zip(self.plan.checks, values[::2], values[1::2], strict=True)
        return all(a == b if op == "eq" else a >= b for (op, _, _), a, b in pairs)

    def _check_buffers(self, buffers: Sequence[int], factors: Sequence[int], sizes: dict[str, list[int]]) -> None:
        program, memory = self.plan.program, self.plan.memory
        behind = dict(zip(program.io, self.plan.io, strict=True))
        behind |= {b: Source("weight", w) for b, w in zip(program.constants, self.plan.constants, strict=True)}
        for number, (buffer, size) in enumerate(zip(program.buffers, buffers, strict=True)):
            if buffer.kind is not BufferKind.ARENA:
                source = behind[number]
                there = sizes[source.kind][source.index]
                fits = size == there if source.kind == "input" else size <= there
            elif number in memory.places:
                region, offset = memory.places[number]
                fits = offset * factors[region] + size <= memory.regions[region].units * factors[region]
            else:
                fits = True  # no step uses it
            if not fits:
                raise ValueError(f"its buffer {number} of {size} bytes does not fit into its place.")

    def _view(
        self, source: Source, shape: Shape, strides: Shape, offset: int, sizes: dict[str, list[int]]
    ) -> OutputView:
        held = {"input": self.held, "made": [m.held for m in self.plan.made], "weight": [w.held for w in self.weights]}
        kind = held[source.kind][source.index]
        width = item_bytes(kind)
        if (offset + span(shape, strides)) * width > sizes[source.kind][source.index]:
            raise ValueError("one of its outputs lies outside its tensor.")
        return OutputView(source, kind, shape, tuple(s * width for s in strides), offset * width)


def sound_plans(manifest: Manifest) -> tuple[PlanSizes, ...]:
    """The sizes of all plans. Raises ValueError for a plan that contradicts itself."""
    held = [p.held for p in manifest.inputs]
    found = tuple(PlanSizes(plan, held, manifest.weights) for plan in manifest.plans)
    for sizes in found:
        if not sizes.plan.sizes and sizes.resolve(tuple(map(_known, sizes.plan.shapes))) is None:
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
