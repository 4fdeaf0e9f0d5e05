"""A compiled graph as a plan of an archive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.archive.manifest import PlanRecord, array_binding
from taskmap.backend.program.arrays import dtype_held, element_strides
from taskmap.backend.program.binding import Binding, DimSource, TensorSpec, View, axis_of
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.memory_plan import MemoryPlan, plan_memory
from taskmap.backend.program.structure import Program
from taskmap.calls.prepared import PreparedGraph
from taskmap.compile.session import Compilation
from taskmap.graph.build import same_dim
from taskmap.graph.fusion.planning import Group
from taskmap.graph.importers.onnx.read.assumptions import Check
from taskmap.graph.importers.onnx.read.elements import STRING, dense, held_in, to_held
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.ir.analysis.cost import bytes_moved, operations
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.types import DType
from taskmap.ir.visit import free_vars, substitute
from taskmap.onnx.points import Segment

Array = NDArray[Any]
AddWeight = Callable[[Array, DType], int]
_LONGEST = 1000
_NOTHING = Binding(0, (), 0, {}, {}, (), (), (), (), ())


@dataclass(frozen=True, slots=True, eq=False)
class GraphRecord:
    """A complete graph and its compilation (None if it computes nothing). ``shapes``: of its inputs; None accepts all
    sizes that meet ``checks``. ``forms``: the sizes with names of their own, or with one value. ``values``: as in
    PlanRecord."""

    segment: Segment
    compilation: Compilation | None
    shapes: tuple[tuple[int, ...], ...] | None
    checks: tuple[Check, ...] = ()
    forms: Mapping[Var, Expr] = field(default_factory=dict)
    values: tuple[tuple[int, str], ...] = ()


def recorded(graph: GraphRecord, weight: AddWeight) -> PlanRecord:
    """The plan; ``weight`` takes a constant and its type, and returns its number."""
    return _Recorder(graph, weight).plan()


class _Recorder:
    """Renumbers the slots of a graph's binding as an archive has them: inputs, tensors that a call makes, weights."""

    def __init__(self, graph: GraphRecord, weight: AddWeight) -> None:
        self.graph, self.weight = graph, weight
        inputs = graph.segment.graph.inputs if graph.segment.graph is not None else ()
        # Sizes with names of their own are computed when an archive runs; they are not inputs of the model.
        inputs = [n for n in inputs if not n.is_size]
        self.shapes: tuple[tuple[Dim, ...], ...] = graph.shapes or tuple(n.shape for n in inputs)
        c = graph.compilation
        self.binding = _NOTHING if c is None else c.parts.main.binding
        self.constants = {} if c is None else {**c.parts.main.fixed, **_prepared(c, self.shapes)}
        self.made = {slot: number for number, slot in enumerate(self.binding.made, len(self.shapes))}
        for spec in self.binding.checked.values():
            if not all(same_dim(a, b) for a, b in zip(spec.strides, row_major_strides(spec.shape), strict=True)):
                raise UnsupportedError(
                    "the model cannot be archived", why="an input is read in another order than row-major."
                )

    def plan(self) -> PlanRecord:
        """The plan of the graph."""
        c = self.graph.compilation
        program, memory = Program((), ()), MemoryPlan((), {}, {})
        dims = self._dims()
        schedules: tuple[str, ...] = ()
        work: tuple[tuple[int, int], ...] = ()
        launches: tuple[str, ...] = ()
        if c is not None:
            program = c.parts.main.program
            memory = plan_memory(program)
            if c.options.target == "cpu":
                launches = tuple(s.symbol for s in launch_sources(program, memory))
            groups = [o for o in c.parts.main.origins if isinstance(o, Group)]
            schedules = tuple(c.kernels[g].schedule[:_LONGEST] for g in groups)
            # Groups of equal tasks share a kernel, and have equal work.
            alike = [(c.kernels[g].source.symbol, *(b.shape for b in g.task.inputs)) for g in groups]
            tasks = {} if dims else {key: g.task for key, g in zip(alike, groups, strict=True)}
            counts = {key: (bytes_moved(task), operations(task)) for key, task in tasks.items()}
            work = () if dims else tuple(counts[key] for key in alike)
        outputs = tuple(self._output(v) for v in self.graph.segment.finished or ())
        io, constants = (tuple(map(self._slot, slots)) for slots in (self.binding.io, self.binding.constants))
        names = [var for var, _ in dims]
        return PlanRecord(
            shapes=self.shapes,
            positive=self._positive(names),
            checks=tuple(
                ("ge" if k.at_least else "eq", self._written(k.a, names), self._written(k.b, names))
                for k in self.graph.checks
            ),
            program=program,
            memory=memory,
            binding=array_binding(len(self.shapes), dims, tuple(self.binding.made.values()), io, constants, outputs),
            launch=launches,
            schedules=schedules,
            work=work,
            values=self.graph.values,
        )

    def _dims(self) -> tuple[tuple[Var, DimSource], ...]:
        """The origin of each symbolic size of the program, in order."""
        found: dict[Var, DimSource] = {}
        names = [var for var, _ in self.binding.dims]
        for var, source in self.binding.dims:
            form = self.graph.forms.get(var)
            if form is None:
                if axis_of(source) is None:
                    why = f"a symbolic size comes from {source!r}."
                    raise UnsupportedError("the model cannot be archived", why=why)
                found[var] = source
                continue
            size = self._written(form, names)
            if isinstance(size, Expr) and not free_vars(size) <= set(found):
                raise UnsupportedError("the model cannot be archived", why="a size is computed from a later one.")
            found[var] = size
        return tuple(found.items())

    def _written(self, size: Dim, names: Collection[Var]) -> Dim:
        """``size`` in terms of the sizes ``names``, which a program has."""
        while isinstance(size, Expr):
            rest = {v: self.graph.forms[v] for v in free_vars(size) if v not in names and v in self.graph.forms}
            if not rest:
                break
            size = substitute(size, rest)
        return size

    def _slot(self, slot: int) -> int:
        """A slot of the graph's binding, renumbered."""
        if slot < self.binding.inputs:
            return slot
        if slot in self.made:
            return self.made[slot]
        return self._weight(self.constants[slot], dtype_held(self.constants[slot]))

    def _weight(self, tensor: Array, held: DType) -> int:
        return len(self.shapes) + len(self.made) + self.weight(tensor, held)

    def _output(self, value: object) -> View:
        """The source of a model output."""
        if not isinstance(value, Tensor):
            raise UnsupportedError("the model cannot be archived", why="one of its outputs is not a tensor.")
        if value.elem == STRING:
            raise UnsupportedError("the model cannot be archived", why="one of its outputs is a tensor of strings.")
        kind, place = self.graph.segment.lookup.places.get(value, ("known", 0))
        held = held_in(value.elem)
        if kind == "input":
            return self._input(place, held)
        if kind == "known":
            assert value.known is not None
            tensor = dense(to_held(value.known, value.elem))
            return View(self._weight(tensor, held), _spec(tensor, held))
        view = self.binding.outputs[place]
        assert isinstance(view, View)
        slot = self._slot(view.slot)
        if view.spec is not None:
            return View(slot, view.spec)
        if view.slot in self.binding.made:
            return View(slot, replace(self.binding.made[view.slot], offset=0))
        if slot < len(self.shapes):
            return self._input(slot, held)
        tensor = self.constants[view.slot]
        return View(slot, _spec(tensor, dtype_held(tensor)))

    def _input(self, number: int, held: DType) -> View:
        shape = self.shapes[number]
        return View(number, TensorSpec(shape, row_major_strides(shape), held))

    def _positive(self, sizes: Sequence[Var]) -> tuple[Dim, ...]:
        """The sizes that must be positive: all of them, if some are symbolic."""
        if not sizes or self.graph.segment.graph is None:
            return ()
        found: dict[Expr, None] = dict.fromkeys(sizes)
        for node in self.graph.segment.graph.nodes():
            found.update({n: None for n in node.shape if isinstance(n, Expr) and static_size(n) is None})
        return tuple(found)


def _spec(tensor: Array, held: DType) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), element_strides(tensor), held)


def _prepared(c: Compilation, shapes: Sequence[Sequence[Dim]]) -> dict[int, Array]:
    """The values computed from constants alone, by their slots."""
    if not isinstance(c.call, PreparedGraph):
        return {}
    prepare = c.call.prepare
    if c.call.prepared is not None and not c.call.watched:
        return dict(enumerate(c.call.prepared.values, c.call.main.binding.inputs))
    # The inputs are not read: no graph of a model has parameters among them. Symbolic sizes are, without effect.
    arguments: list[Any] = [np.zeros([static_size(n) or 1 for n in shape], np.float32) for shape in shapes]
    arguments += [1] * (prepare.binding.inputs - len(arguments))
    values = prepare.run([*arguments, *prepare.tail], prepare.constants)
    return dict(enumerate(values, c.call.main.binding.inputs))
