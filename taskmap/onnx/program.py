"""An ONNX graph as a program: a sequence of compiled graphs, with host-only steps between them.

Most models are one graph. A graph ends where a value decides a shape or a branch, and where an operator's result has a
data-dependent size; the next graph is imported when that value is known, and kept for later calls with the same
value. A loop whose iterations depend on data runs its body as a program of its own.

If possible, each graph is made for all sizes: it is imported with symbolic sizes, using the current call's sizes as an
example, and is valid for every size that its guard allows. Otherwise it is made for the given sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.assumptions import Assumptions, Check, SizeDecidesError
from taskmap.graph.importers.onnx.read.call import HostStep
from taskmap.graph.importers.onnx.read.control import ControlStep
from taskmap.graph.importers.onnx.read.folding import Folding, depends_on, varying
from taskmap.graph.importers.onnx.read.frames import graph_frame
from taskmap.graph.importers.onnx.read.reader import Finished, Reader, Stopped
from taskmap.graph.importers.onnx.read.shape_values import with_sizes
from taskmap.graph.importers.onnx.read.size_names import SizeNames
from taskmap.graph.importers.onnx.read.state import Scope, copied, drop_dead, tensors_of
from taskmap.graph.importers.onnx.read.values import Tensor, Value
from taskmap.graph.nodes import ExternNode, Graph, InputNode, Node, rebuilt, topological
from taskmap.ir.construct import const, static_size
from taskmap.ir.errors import TaskmapError
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.types import i64
from taskmap.ir.visit import free_vars, substitute
from taskmap.onnx.limits import check_size
from taskmap.onnx.loops import run_loop
from taskmap.onnx.points import Point, Refusal, Run, Segment, Shapes, after, point_at, step_tensors, tensors_in
from taskmap.onnx.symbolic import Declared, Guard, variables
from taskmap.onnx.values import Given, Lookup, arrays, flatten, given, placeholders
from taskmap.util.gc_pause import collector_paused
from taskmap.util.progress import waiting

Array = NDArray[Any]
Engine = Callable[[Graph], Run]
"""A function from a graph to a function that runs it."""
SMALL = 4096
"""Only inputs of at most this many elements may decide by their values which operators are imported."""
MOST_SEGMENTS = 1024
"""The number of graphs kept for one place of a program; beyond it they are dropped and made again."""
MOST_GENERAL = 8
"""The number of graphs for many sizes made for one place of a program and the same deciding values."""
MOST_REFUSALS = 3
"""The number of failed attempts at a graph for many sizes after which no more are made."""


@dataclass(frozen=True, slots=True)
class HostOperator:
    """An operator of a model that runs on the host: its name, its node, and the reason. ``between``: graphs end at it;
    other host operators are nodes of a graph."""

    operator: str
    node: str
    reason: str
    between: bool

    def __str__(self) -> str:
        return f"{self.operator} {self.node}: {self.reason}"


class OnnxProgram:
    """One graph of a model as a function: its inputs by name in, its outputs in order out.

    ``declared``: the sizes that the model declares for its inputs; without them graphs are only for static sizes.
    ``named``: sizes get names, and are computed before a graph runs.
    """

    def __init__(
        self,
        frame: Callable[[dict[str, Value | None]], Scope],
        names: Sequence[str],
        engine: Engine,
        declared: Declared | None = None,
        named: bool = True,
    ) -> None:
        self.frame = frame
        self.names = list(names)
        self.engine = engine
        self.declared = declared
        self.named = named
        self.roots: dict[Any, tuple[Point, tuple[tuple[int, int], ...]]] = {}
        self.used: list[Segment] = []

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for inputs at run time (see values.py)."""
        point, tensors, sizes = self._start(values)
        self.used = []
        while True:
            segment = self.segment(point, tensors, sizes)
            self.used.append(segment)
            results = segment.results(tensors, sizes)
            if segment.finished is not None:
                return [segment.lookup.value(v, tensors, results) for v in segment.finished]
            point, tensors, sizes = self._next(segment, tensors, results, sizes)

    def beginning(self, values: Sequence[Any]) -> tuple[Segment, list[Array], tuple[int, ...]]:
        """The first graph for inputs like these, their tensors, and their sizes."""
        point, tensors, sizes = self._start(values)
        return self.segment(point, tensors, sizes), tensors, sizes

    def deciding(self, values: Sequence[Any]) -> tuple[int, ...]:
        """The inputs, in order, whose values decide which graph is the first."""
        return tuple(sorted(self._start(values)[0].valued))

    def _start(self, values: Sequence[Any]) -> tuple[Point, list[Array], tuple[int, ...]]:
        flat: list[Given] = []
        structure = tuple(flatten(v, flat) for v in values)
        if structure not in self.roots:
            self.roots[structure] = self._root(structure)
        point, places = self.roots[structure]
        tensors = [g.tensor for g in flat]
        return point, tensors, tuple(tensors[i].shape[d] for i, d in places)

    def _root(self, structure: Any) -> tuple[Point, tuple[tuple[int, int], ...]]:
        live: list[Tensor] = []
        values = {name: placeholders(s, live) for name, s in zip(self.names, structure, strict=True)}
        point = Point([self.frame(values)], live)
        found = variables(self.declared or ())
        if found is None or len(found[0]) != len(live):
            return point, ()
        point.shapes, places = found[0], found[1]
        point.order = tuple(places)
        return point, tuple(places.values())

    def generalise(self, values: Sequence[Any]) -> Segment | None:
        """The graph for all sizes, with example inputs whose values are not used; None if the model as a whole has
        none."""
        point, tensors, sizes = self._start(values)
        found = self._general(point, tensors, sizes)
        return found if found is not None and found.finished is not None else None

    def _next(
        self, segment: Segment, tensors: list[Array], results: list[Array], sizes: tuple[int, ...]
    ) -> tuple[Point, list[Array], tuple[int, ...]]:
        kept = [segment.lookup.value(t, tensors, results).tensor for t in segment.live]
        if segment.step is None:
            return segment.following[None], kept, sizes if segment.shapes is not None else ()
        made = self._host(segment, tensors, results)
        flat: list[Given] = []
        structure = tuple(flatten(v, flat) for v in made)
        new = [g.tensor for g in flat]
        if segment.shapes is None:
            if structure not in segment.following:
                segment.following[structure] = after(segment, structure)
            return segment.following[structure], [*kept, *new], ()
        key = structure, tuple(t.ndim for t in new)
        if key not in segment.following:
            segment.following[key] = _after_open(segment, structure, new)
        return segment.following[key], [*kept, *new], (*sizes, *(n for t in new for n in t.shape))

    def _host(self, segment: Segment, tensors: list[Array], results: list[Array]) -> list[Any]:
        def value(v: Value | None) -> Any:
            return segment.lookup.value(v, tensors, results)

        step = segment.step
        if isinstance(step, ControlStep):
            if segment.body is None:
                segment.body = self._body(step)
            return run_loop(step, segment.body, value)
        assert step is not None
        with np.errstate(all="ignore"):
            made = step.function(*(arrays(value(v)) for v in step.inputs))
        listed = made if isinstance(made, tuple) else (made,)
        return [given(m, elem) for m, elem in zip(listed, step.elems, strict=True)]

    def _body(self, step: ControlStep) -> OnnxProgram:
        names = [i.name for i in step.body.input] + [name for name, _ in step.captured]
        return OnnxProgram(
            lambda inputs: graph_frame(step.body, step.library, inputs, (), sees=False), names, self.engine
        )

    def points(self) -> Iterator[Point]:
        """Every place where graphs begin, except in the bodies of loops."""
        points = [point for point, _ in self.roots.values()]
        while points:
            point = points.pop()
            yield point
            for segment in [*(g for many in point.general.values() for g in many), *point.segments.values()]:
                points += segment.following.values()

    def segments(self) -> list[Segment]:
        """Every graph made so far, including those of loops' bodies."""
        found: list[Segment] = []
        for point in self.points():
            for segment in [*(g for many in point.general.values() for g in many), *point.segments.values()]:
                found.append(segment)
                if segment.body is not None:
                    found += segment.body.segments()
        return found

    def refusals(self) -> list[Refusal]:
        """The reasons why graphs were made only for static sizes: the nodes that prevent one for all sizes."""
        return list(dict.fromkeys(r for point in self.points() for r in point.refusals))

    def on_host(self) -> list[HostOperator]:
        """The operators of these graphs that run on the host, inside or between them, each once."""
        found: dict[HostOperator, None] = {}
        for made in self.segments():
            for n in made.graph.nodes() if made.graph is not None else ():
                if isinstance(n, ExternNode):
                    found[HostOperator(n.origin.operator or "", n.origin.text, n.reason, False)] = None
            if made.step is not None and made.origin is not None:
                origin = made.origin
                found[HostOperator(origin.operator or "", origin.text, made.step.reason, True)] = None
        return list(found)

    # Making graphs.

    def segment(self, point: Point, tensors: Sequence[Array], sizes: tuple[int, ...]) -> Segment:
        """The graph that begins at ``point``: one that is also valid for these sizes, else one for them alone."""
        if point.shapes is not None:
            general = self._general(point, tensors, sizes)
            if general is not None:
                return general
        while True:
            key = point.key(tensors, sizes)
            found = point.segments.get(key)
            if found is not None:
                return found
            built = self._build(point, tensors, sizes)
            if built is not None:
                if len(point.segments) >= MOST_SEGMENTS:
                    point.segments.clear()
                point.segments[key] = built
                return built
            point.segments.clear()

    @collector_paused()
    def _build(self, point: Point, tensors: Sequence[Array], sizes: tuple[int, ...]) -> Segment | None:
        """A new graph for static sizes; None when more tensors turn out to decide by their values; these are
        recorded."""
        known: dict[Var, Expr] = {v: const(n, v.dtype) for v, n in zip(point.order, sizes, strict=True)}
        for v, form in point.forms.items():
            known[v] = _expr(_size(form, known))
        inputs, fresh = point.inputs(tensors, [tuple(int(n) for n in t.shape) for t in tensors])
        frames = copied(point.frames, lambda t: fresh[t] if t in fresh else with_sizes(t, known))
        with waiting("reading the model's nodes"):
            outcome = Reader(frames).run()
        if isinstance(outcome, Stopped) and outcome.needs and _note_values(point, outcome, inputs, tensors):
            return None
        return self._cut(frames, outcome, inputs)

    def _general(self, point: Point, tensors: Sequence[Array], sizes: tuple[int, ...]) -> Segment | None:
        """A graph for many sizes, including these; None if there is none."""
        values = point.values(tensors)
        for found in point.general.get(values, ()):
            assert found.guard is not None
            if found.guard.allows(sizes):
                return found
        made = len(point.general.get(values, ()))
        if made >= MOST_GENERAL or len(point.refusals) >= MOST_REFUSALS or len(point.general) >= MOST_SEGMENTS:
            return None
        fixed: dict[Var, int] = {}
        while True:
            try:
                built = self._open(point, tensors, sizes, fixed)
            except SizeDecidesError as error:
                if error.fixed and _fix(error, fixed, point.order):
                    continue
                point.refusals.append(_refusal(error))
                return None
            except TaskmapError as error:
                point.refusals.append(_refusal(error))  # static sizes allow more
                return None
            if built is None:
                return self._general(point, tensors, sizes)  # values decide: try again
            if isinstance(built, Refusal):
                point.refusals.append(built)
                return None
            point.general.setdefault(values, []).append(built)
            return built

    @collector_paused()
    def _open(
        self, point: Point, tensors: Sequence[Array], sizes: tuple[int, ...], fixed: dict[Var, int]
    ) -> Segment | Refusal | None:
        """A graph for all sizes that its guard allows, except the ``fixed`` ones. None as in _build."""
        assert point.shapes is not None
        example = dict(zip(point.order, sizes, strict=True))
        known: dict[Var, Expr] = {v: const(n, v.dtype) for v, n in fixed.items()}
        shapes = [tuple(_size(n, known) for n in shape) for shape in point.shapes]
        forms = {v: _expr(_size(form, known)) for v, form in point.forms.items()}
        names = SizeNames(forms) if self.named else None
        assumed = Assumptions(example, [Check(v, n) for v, n in fixed.items()], names=names)
        for i in sorted(point.valued):
            for n, actual in zip(shapes[i], tensors[i].shape, strict=True):
                if static_size(n) is None:
                    assumed.same(n, int(actual))
        inputs, fresh = point.inputs(tensors, shapes)
        frames = copied(point.frames, lambda t: fresh[t] if t in fresh else with_sizes(t, known))
        with waiting("reading the model's nodes"):
            outcome = Reader(frames, assumed).run()
        if isinstance(outcome, Stopped):
            refusal = _of_sizes_only(outcome, assumed)
            if refusal is not None:
                return refusal
            if outcome.needs and _note_values(point, outcome, inputs, tensors):
                return None
        forms = names.forms if names is not None else {}
        nodes = Graph([], [t.node() for t in _wanted(frames, outcome, is_open=True)]).nodes()
        guard = Guard(point.order, assumed.checks, nodes, fixed, forms)
        if not guard.allows(sizes):
            return Refusal(*guard.broken(sizes))
        places = _places(_sizes_of(nodes), shapes)
        guard.take([v for v, at in places.items() if at[0] == "input"])
        segment = self._cut(frames, outcome, inputs, places, _example(places, assumed))
        segment.guard, segment.forms = guard, forms
        for following in segment.following.values():
            following.order, following.shapes, following.forms = point.order, segment.shapes, forms
        return segment

    def _cut(
        self,
        frames: list[Scope],
        outcome: Finished | Stopped,
        inputs: list[InputNode],
        dims: dict[Var, tuple[object, ...]] | None = None,
        example: dict[Var, int] | None = None,
    ) -> Segment:
        """The segment that ends here; ``dims``: the sources of the sizes in a graph for many sizes."""
        is_open = dims is not None
        wanted = _wanted(frames, outcome, is_open)
        run, lookup, graph = self._compiled(wanted, inputs, dims or {}, example or {})
        if isinstance(outcome, Finished):
            return Segment(run, lookup, finished=outcome.outputs, graph=graph)
        live = _live(frames, outcome, is_open)
        segment = Segment(run, lookup, live=live, step=outcome.step, frames=frames, binds=outcome.binds, graph=graph)
        segment.origin = outcome.origin
        if is_open:
            segment.shapes = [t.shape for t in live]
        if outcome.step is None:
            point = point_at(frames, live)
            point.valued = {live.index(t) for t in outcome.needs}
            segment.following[None] = point
        return segment

    def _compiled(
        self,
        wanted: Sequence[Tensor],
        inputs: list[InputNode],
        dims: dict[Var, tuple[object, ...]],
        example: dict[Var, int],
    ) -> tuple[Run | None, Lookup, Graph | None]:
        places: dict[Tensor, tuple[str, int]] = {}
        outputs: dict[Node, int] = {}
        positions = {node: i for i, node in enumerate(inputs)}
        for tensor in wanted:
            if tensor.known is not None and not tensor.is_symbolic:
                continue
            node = tensor.node()
            if isinstance(node, InputNode):
                places[tensor] = ("input", positions[node])
            else:
                places[tensor] = ("result", outputs.setdefault(node, len(outputs)))
        if not outputs:
            return None, Lookup(places), None
        made = rebuilt(topological(outputs), lambda now, was: _row_major(now) if was in outputs else now)
        numbers = [at for at in dims.values() if at[0] == "input"]
        scalars = [_scalar(len(inputs) + k) for k in range(len(numbers))]
        hints = {v: example[v] for v in dims if v in example}
        graph = Graph([*inputs, *scalars], [made[n] for n in outputs], dict(dims), hints=hints)
        check_size(graph)
        return self.engine(graph), Lookup(places), graph


def _row_major(node: Node) -> Node:
    """``node`` in row-major order, unless it has strides."""
    return node if node.strides is not None else replace(node, strides=row_major_strides(node.shape))


def _scalar(index: int) -> InputNode:
    """An argument that is a size."""
    return InputNode((), (), i64, index, is_size=True)


def _size(size: Dim, known: dict[Var, Expr]) -> Dim:
    if not known or not isinstance(size, Expr):
        return size
    made = substitute(size, known)
    number = static_size(made)
    return made if number is None else number


def _expr(size: Dim) -> Expr:
    return size if isinstance(size, Expr) else const(size, i64)


def _sizes_of(nodes: Sequence[Node]) -> set[Var]:
    """The symbolic sizes in a graph."""
    found: set[Var] = set()
    for node in nodes:
        found |= {v for n in node.shape if isinstance(n, Expr) for v in free_vars(n)}
        if node.define is not None:
            found |= free_vars(node.define.body) - set(node.define.axes)
    return found


def _example(sizes: Collection[Var], assumed: Assumptions) -> dict[Var, int]:
    """The values of the sizes in the example."""
    values = {v: assumed.value(v) for v in sizes}
    return {v: n for v, n in values.items() if n is not None}


def _places(sizes: Collection[Var], shapes: Shapes) -> dict[Var, tuple[object, ...]]:
    """The source of each size: in the graph's inputs, or else among the arguments after them."""
    places: dict[Var, tuple[object, ...]] = {}
    for i, shape in enumerate(shapes):
        for d, n in enumerate(shape):
            if isinstance(n, Var):
                places.setdefault(n, ("size", i, d))
    for argument, v in enumerate(sorted(set(sizes) - set(places), key=lambda v: v.uid)):
        places[v] = ("input", len(shapes) + argument)
    return places


def _fix(error: SizeDecidesError, fixed: dict[Var, int], order: Collection[Var]) -> bool:
    """Record that the sizes of the error are 1; false if they are not variables of their own."""
    if not error.sizes or not all(isinstance(n, Var) and n in order and n not in fixed for n in error.sizes):
        return False
    fixed.update({n: 1 for n in error.sizes if isinstance(n, Var)})
    return True


def _refusal(error: TaskmapError) -> Refusal:
    where = error.where if isinstance(error.where, str) else ""
    what = error.what.removeprefix(f"{where}: ")
    return Refusal(where, what if not error.why else f"{what}: {error.why}")


def _of_sizes_only(outcome: Stopped, assumed: Assumptions) -> Refusal | None:
    """The refusal if a value to be computed first depends only on sizes: with static sizes it is known."""
    step = outcome.step
    tensors = list(outcome.needs) if step is None else step_tensors(step)
    unknown = [t for t in tensors if t.known is None or t.is_symbolic]
    if not unknown or any(depends_on(t.node()) for t in unknown):
        return None
    return Refusal(assumed.node, "a value computed from sizes decides which operators are imported")


def _live(frames: list[Scope], outcome: Stopped, is_open: bool) -> list[Tensor]:
    """The tensors needed after the segment, except those that a host step takes."""
    drop_dead(frames)
    found = [t for t in tensors_of(frames) if t.known is None and t.made is not None]
    varies = varying(t.made for t in found if t.made is not None)
    folding = Folding()
    live = [t for t in found if t.made in varies or (is_open and folding.fold(t) is None)]
    return live + [t for t in outcome.needs if t not in live]


def _wanted(frames: list[Scope], outcome: Finished | Stopped, is_open: bool) -> list[Tensor]:
    """The tensors that the segment computes."""
    if isinstance(outcome, Finished):
        return [t for v in outcome.outputs for t in tensors_in(v)]
    return [*_live(frames, outcome, is_open), *step_tensors(outcome.step)]


def _after_open(segment: Segment, structure: Any, made: Sequence[Array]) -> Point:
    """As ``after``, for all sizes: the sizes of host results are new ones."""
    point = after(segment, structure)
    assert segment.guard is not None
    assert segment.shapes is not None
    order = list(segment.guard.order)
    point.shapes, point.forms = list(segment.shapes), segment.forms
    told = segment.step.shapes if isinstance(segment.step, HostStep) else ()
    for i, tensor in enumerate(made):
        fresh = [Var(f"n{len(order) + d}") for d in range(tensor.ndim)]
        order += fresh
        known = told[i] if i < len(told) and len(told[i]) == tensor.ndim else (None,) * tensor.ndim
        point.shapes.append(tuple(v if n is None else n for v, n in zip(fresh, known, strict=True)))
    point.order = tuple(order)
    return point


def _note_values(point: Point, outcome: Stopped, inputs: list[InputNode], tensors: Sequence[Array]) -> bool:
    """True if the needed values follow from the values of small inputs, which are recorded."""
    sources = {n for t in outcome.needs for n in depends_on(t.node())}
    places = {i for i, n in enumerate(inputs) if n in sources}
    if not places or any(tensors[i].size > SMALL or i in point.valued for i in places):
        return False
    # A float in the model's data is used for computing, unless its own value is asked for.
    direct = {t.node() for t in outcome.needs}
    if any(_is_float(tensors[i]) and inputs[i] not in direct and tensors[i].size > 16 for i in places):
        return False
    point.valued |= places
    return True


def _is_float(x: Array) -> bool:
    return x.dtype.kind not in "biu"
