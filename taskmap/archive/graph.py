"""A compiled graph as a plan of an archive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from taskmap.archive.manifest import ArchivedPlan, Made, Output, Source
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.memory_plan import MemoryPlan, plan_memory
from taskmap.backend.program.structure import Program
from taskmap.compile.binding import Binding, View
from taskmap.compile.frozen import FrozenGraph
from taskmap.compile.session import Compilation
from taskmap.graph.analysis.placement import row_major
from taskmap.graph.build import same_dim
from taskmap.graph.fusion.planning import Group
from taskmap.graph.importers.onnx.read.assumptions import Check
from taskmap.graph.importers.onnx.read.elements import held_in, to_held, to_torch
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.importers.torch.types import dtype_of
from taskmap.ir.analysis.cost import bytes_moved, operations
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.visit import free_vars, substitute
from taskmap.onnx.points import Segment

AddWeight = Callable[[torch.Tensor, str], int]
_LONGEST = 1000


@dataclass(frozen=True, slots=True, eq=False)
class GraphRecord:
    """A complete graph and its compilation (None if it computes nothing). ``shapes``: of its inputs; None accepts all
    sizes that meet ``checks``. ``forms``: the sizes with names of their own, or with one value."""

    segment: Segment
    compilation: Compilation | None
    shapes: tuple[tuple[int, ...], ...] | None
    checks: tuple[Check, ...] = ()
    forms: Mapping[Var, Expr] = field(default_factory=dict)


def recorded(graph: GraphRecord, weight: AddWeight) -> ArchivedPlan:
    """The plan; ``weight`` takes a constant and its type, and returns its number."""
    return _Recorder(graph, weight).plan()


class _Recorder:
    def __init__(self, graph: GraphRecord, weight: AddWeight) -> None:
        self.graph, self.weight = graph, weight
        self.made: list[Made] = []
        self.places: dict[int, int] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.binding: Binding | None = None
        inputs = graph.segment.graph.inputs if graph.segment.graph is not None else ()
        # Sizes with names of their own are computed when an archive runs; they are not inputs of the model.
        inputs = [n for n in inputs if not n.attrs.get("scalar")]
        self.shapes: tuple[tuple[Dim, ...], ...] = graph.shapes or tuple(n.shape for n in inputs)

    def plan(self) -> ArchivedPlan:
        """The plan of the graph."""
        c = self.graph.compilation
        program, memory = Program((), ()), MemoryPlan((), {}, {})
        sizes: dict[Var, tuple[int, int] | Dim] = {}
        schedules: tuple[str, ...] = ()
        work: tuple[tuple[int, int], ...] = ()
        launches: tuple[str, ...] = ()
        if c is not None:
            program, binding = c.parts.main.program, c.parts.main.binding
            memory = plan_memory(program)
            if c.options.target == "cpu":
                launches = tuple(s.symbol for s in launch_sources(program, memory))
            self._bind(binding)
            self.constants = {**binding.fixed, **_prepared(c, self.shapes)}
            sizes = self._sizes(binding)
            groups = [o for o in c.parts.main.origins if isinstance(o, Group)]
            schedules = tuple(c.kernels[g].schedule[:_LONGEST] for g in groups)
            work = tuple((bytes_moved(g.task), operations(g.task)) for g in groups) if not sizes else ()
        binding_io = () if self.binding is None else self.binding.io
        constants = () if self.binding is None else self.binding.constants
        outputs = tuple(self._output(v) for v in self.graph.segment.finished or ())
        return ArchivedPlan(
            sizes=sizes,
            shapes=self.shapes,
            positive=self._positive(sizes),
            checks=tuple(
                ("ge" if k.at_least else "eq", self._written(k.a, sizes), self._written(k.b, sizes))
                for k in self.graph.checks
            ),
            program=program,
            memory=memory,
            launch=launches,
            io=tuple(self._source(slot) for slot in binding_io),
            constants=tuple(self._source(slot).index for slot in constants),
            made=tuple(self.made),
            outputs=outputs,
            schedules=schedules,
            work=work,
        )

    def _sizes(self, binding: Binding) -> dict[Var, tuple[int, int] | Dim]:
        """The origin of each symbolic size of the program, in order."""
        found: dict[Var, tuple[int, int] | Dim] = {}
        names = {var for var, _ in binding.dims}
        for var, place in binding.dims:
            form = self.graph.forms.get(var)
            if form is None:
                found[var] = _place(place)
                continue
            size = self._written(form, names)
            if isinstance(size, Expr) and not free_vars(size) <= set(found):
                raise UnsupportedError("the model cannot be archived", why="a size is computed from a later one.")
            found[var] = size
        return found

    def _written(self, size: Dim, names: Collection[Var]) -> Dim:
        """``size`` in terms of the sizes ``names``, which a program has."""
        while isinstance(size, Expr):
            rest = {v: self.graph.forms[v] for v in free_vars(size) if v not in names and v in self.graph.forms}
            if not rest:
                break
            size = substitute(size, rest)
        return size

    def _bind(self, binding: Binding) -> None:
        self.binding = binding
        for spec in binding.checked.values():
            if not all(same_dim(a, b) for a, b in zip(spec.strides, row_major(spec.shape), strict=True)):
                raise UnsupportedError(
                    "the model cannot be archived", why="an input is read in another order than row-major."
                )
        for slot, spec in binding.made.items():
            self.places[slot] = len(self.made)
            self.made.append(Made(_held(spec.dtype), spec.shape, spec.strides))

    def _source(self, slot: int) -> Source:
        assert self.binding is not None
        if slot < self.binding.inputs:
            return Source("input", slot)
        if slot in self.places:
            return Source("made", self.places[slot])
        tensor = self.constants[slot]
        return Source("weight", self.weight(tensor, _held(tensor.dtype)))

    def _output(self, value: object) -> Output:
        """The source of a model output."""
        if not isinstance(value, Tensor):
            raise UnsupportedError("the model cannot be archived", why="one of its outputs is not a tensor.")
        kind, place = self.graph.segment.lookup.places.get(value, ("known", 0))
        if kind == "input":
            return _whole(Source("input", place), self.shapes[place], row_major(self.shapes[place]))
        if kind == "known":
            assert value.known is not None
            tensor = to_torch(to_held(value.known, value.elem)).reshape(value.known.shape)
            return _whole(
                Source("weight", self.weight(tensor, held_in(value.elem).name)), tensor.shape, tensor.stride()
            )
        assert self.binding is not None
        view = self.binding.outputs[place]
        assert isinstance(view, View)
        source = self._source(view.slot)
        spec = view.spec or self.binding.made.get(view.slot)
        if spec is not None:
            return Output(source, spec.shape, spec.strides, spec.offset if view.spec is not None else 0)
        if source.kind == "input":
            return _whole(source, self.shapes[source.index], row_major(self.shapes[source.index]))
        tensor = self.constants[view.slot]
        return _whole(source, tensor.shape, tensor.stride())

    def _positive(self, sizes: Mapping[Var, object]) -> tuple[Dim, ...]:
        """The sizes that must be positive: all of them, if some are symbolic."""
        if not sizes or self.graph.segment.graph is None:
            return ()
        found: dict[Expr, None] = dict.fromkeys(sizes)
        for node in self.graph.segment.graph.nodes():
            found.update({n: None for n in node.shape if isinstance(n, Expr) and static_size(n) is None})
        return tuple(found)


def _whole(source: Source, shape: Sequence[Dim], strides: Sequence[Dim]) -> Output:
    return Output(source, tuple(shape), tuple(strides), 0)


def _held(dtype: torch.dtype) -> str:
    return dtype_of(dtype).name


def _place(place: tuple[object, ...]) -> tuple[int, int]:
    match place:
        case ("size", int(port), int(axis)):
            return port, axis
    raise UnsupportedError("the model cannot be archived", why=f"a symbolic size comes from {place!r}.")


def _prepared(c: Compilation, shapes: Sequence[Sequence[Dim]]) -> dict[int, torch.Tensor]:
    """The values computed from constants alone, by their slots."""
    if not isinstance(c.call, FrozenGraph):
        return {}
    prepare = c.call.prepare
    # The inputs are not read: no graph of a model has parameters among them. Symbolic sizes are, without effect.
    arguments: list[Any] = [torch.zeros([static_size(n) or 1 for n in shape]) for shape in shapes]
    arguments += [1] * (prepare.binding.inputs - len(arguments))
    values = prepare.run([*arguments, *prepare.tail], prepare.constants)
    return dict(enumerate(values, c.call.main.binding.inputs))
