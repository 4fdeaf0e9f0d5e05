"""Compiling an ONNX model into an archive."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import taskmap
from taskmap.archive.file import PAGE, WEIGHTS, ArchiveEntry, check_writable, digest, write_archive
from taskmap.archive.graph import GraphRecord, recorded
from taskmap.archive.machine import machine_of
from taskmap.archive.manifest import KernelObject, Manifest, PortRecord, Weight, document_of, manifest_from
from taskmap.archive.outside_weights import Outside, OutsideWeights, span_bytes
from taskmap.archive.plan import sound_plans
from taskmap.archive.refusals import check_archivable, check_segments
from taskmap.archive.session import ArchiveSession, Binary
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.program.arrays import address_of, element_strides
from taskmap.backend.program.memory_plan import ALIGNMENT
from taskmap.backend.program.structure import Launch
from taskmap.backend.store.scratch import Scratch
from taskmap.compile.session import Compilation, Session
from taskmap.graph.importers.onnx import Model, Port, load
from taskmap.graph.importers.onnx.read.assumptions import Check
from taskmap.graph.importers.onnx.read.elements import held_in, numpy_type
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import ExternNode
from taskmap.ir.errors import InputError, TaskmapError, UnsupportedError
from taskmap.ir.types import DType
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.engines import compiled_by
from taskmap.onnx.model import OnnxModel
from taskmap.onnx.points import Segment
from taskmap.options import Options
from taskmap.targets.threads import calls_on, planned_threads
from taskmap.util.progress import waiting

# Runs that keep a model compile nothing for an archive: they need not wait for the targets of archives.
if TYPE_CHECKING:
    from taskmap.archive.targets import archive_session as _archive_session
else:
    _archive_session = lazily("taskmap.archive.targets", "archive_session")

Array = NDArray[Any]
Sizes = Mapping[str, Sequence[int]]
Progress = Callable[[str, int, int], None]
EXAMPLES = (64, 224, 16, 2, 640, 16000, 1)
"""Candidate sizes for reading a graph for all sizes when none are given; the first that the model accepts is used."""

MOST_EXAMPLE = 1 << 28
"""The limit on the number of elements that are read at such sizes."""


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Written:
    """A written archive: its size, and how many of its bytes are kernels and weights. ``assumed``: the sizes taken for
    dimensions that the caller left open."""

    path: Path
    manifest: Manifest
    bytes: int
    kernel_bytes: int
    assumed: Mapping[str, int]


def compile_onnx(
    source: str | Path,
    output: str | Path,
    *,
    sizes: Sizes | None = None,
    options: Options | None = None,
    progress: Progress = _silent,
) -> Written:
    """Compile the ONNX model in ``source`` and write the archive ``output`` atomically.

    ``sizes`` gives for named dimensions the sizes to plan for; every combination gets a plan. A model that can be
    compiled for all sizes at once gets a plan for all sizes, too; for any other, sizes must be given, and those that
    are not are 1. ``options``: of the compilation; an archive runs on its planned number of ``threads``. For
    the target "cuda", ``gpu`` names the GPU; by default this machine's GPU, and without one, sm_80.
    ``progress`` is called with the current work, the amount done and the total.

    Raises ImportGraphError and UnsupportedError for a model that cannot be compiled or archived, naming every operator
    that is the reason, InputError when the archive cannot be written, and CompilerNotFoundError.
    """
    options, output = options or Options(), Path(output)
    check_writable(output)
    with waiting("reading the model"):
        model = load(source)
    check_archivable(model)
    with calls_on(options.threads), Scratch() as folder:
        made = _archive_session(options, folder)
        graphs, assumed = _graphs(model, made.session, sizes or {}, progress)
        return ArchiveWriter(model, made, graphs).write(output, assumed, progress)


def _graphs(
    model: Model, session: Session, sizes: Sizes, progress: Progress
) -> tuple[list[GraphRecord], dict[str, int]]:
    """The graphs of the model, compiled."""
    record: list[Any] = []
    session.record = record
    runner = OnnxModel(model, compiled_by(session), session, named=False)
    names = _dimensions(model.inputs)
    for name in sizes:
        if name not in names:
            raise InputError(f"the model has no dimension {name!a}", why=f"it has {', '.join(names) or 'none'}.")
    combinations = [dict(zip(sizes, c, strict=True)) for c in itertools.product(*sizes.values())]
    kept: list[tuple[Segment, tuple[tuple[int, ...], ...] | None, tuple[Check, ...]]] = []
    if names:
        progress("compiling for all sizes", 0, 1)
        kept += _general(runner, model, combinations[0])
    needs_sizes = bool(names) and not kept
    assumed = {name: 1 for name in names if name not in sizes} if needs_sizes or sizes else {}
    if not kept or sizes:
        runner = OnnxModel(model, compiled_by(session), session, general=False)  # graphs for these sizes only
        for done, combination in enumerate(combinations):
            progress("compiling", done, len(combinations))
            shapes = [_shape(p, combination) for p in model.inputs]
            try:
                kept.append((_of_shapes(runner, model, shapes), tuple(shapes), ()))
            except TaskmapError as error:
                error.hint = error.hint if not assumed else _taken(assumed, error.hint)
                raise
    by_graph = {id(c.imported): c for c in record if isinstance(c, Compilation)}
    found = [
        GraphRecord(s, None if s.graph is None else by_graph[id(s.graph)], shapes, checks) for s, shapes, checks in kept
    ]
    return found, assumed


def _taken(assumed: Mapping[str, int], hint: str | None) -> str:
    """The hint of an error that may follow from assumed sizes."""
    sizes = ", ".join(f"{shown(name)} {n}" for name, n in assumed.items())
    text = f"Dimensions without a size were taken to be: {sizes}. Give them: --shape {next(iter(assumed))}=SIZE"
    return f"{text}\n{hint}" if hint else text


def _general(
    runner: OnnxModel, model: Model, sizes: Mapping[str, int]
) -> list[tuple[Segment, None, tuple[Check, ...]]]:
    """The graph for all sizes, and its conditions; None if there is no such graph."""
    for assumed in EXAMPLES:
        shapes = [_shape(p, sizes, assumed) for p in model.inputs]
        if sum(map(prod, shapes)) > MOST_EXAMPLE:
            continue
        made = runner.generalise(_zeros(model, shapes))
        if made is None or made.graph is None or any(isinstance(n, ExternNode) for n in made.graph.nodes()):
            continue
        assert made.guard is not None
        if len(made.guard.open) == len(made.guard.order):
            return [(made, None, tuple(made.guard.checks))]
    return []


def _of_shapes(runner: OnnxModel, model: Model, shapes: Sequence[tuple[int, ...]]) -> Segment:
    """The graph for inputs of these shapes. Raises UnsupportedError if there is no single graph."""
    try:
        runner(*_zeros(model, shapes))
    except TaskmapError:
        check_segments([], _deciding(runner, model))  # zeros may not be valid values for the model
        raise
    check_segments(runner.program.used, _deciding(runner, model))
    (segment,) = runner.program.used
    return segment


def _deciding(runner: OnnxModel, model: Model) -> list[str]:
    """The inputs whose values determined the graph."""
    return [model.inputs[i].name for point, _ in runner.program.roots.values() for i in sorted(point.valued)]


def _zeros(model: Model, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    found = []
    for port, shape in zip(model.inputs, shapes, strict=True):
        assert port.type is not None
        try:
            found.append(np.zeros(shape, numpy_type(port.type.elem)))
        except (MemoryError, ValueError) as error:
            raise InputError(
                f"the input {shown(port.name)} of shape {list(shape)} is too large", why=f"{error}."
            ) from error
    return found


def _dimensions(ports: Sequence[Port]) -> list[str]:
    """The dimensions that the model leaves open, by name; one without a name is called INPUT.AXIS."""
    found: list[str] = []
    for p in ports:
        shape = () if p.type is None else p.type.shape or ()
        found += [n or f"{p.name}.{axis}" for axis, n in enumerate(shape) if not isinstance(n, int)]
    return list(dict.fromkeys(found))


def _shape(port: Port, sizes: Mapping[str, int], assumed: int = 1) -> tuple[int, ...]:
    assert port.type is not None
    shape = port.type.shape or ()
    return tuple(
        n if isinstance(n, int) else sizes.get(n or f"{port.name}.{axis}", assumed) for axis, n in enumerate(shape)
    )  # fmt: skip


class ArchiveWriter:
    """An archive under construction: weights of equal content are stored once, and those ``outside`` not at all."""

    def __init__(
        self, model: Model, made: ArchiveSession, graphs: Sequence[GraphRecord], outside: OutsideWeights | None = None
    ) -> None:
        self.model, self.made, self.outside = model, made, outside
        self.weights: list[Weight] = []
        self.contents: list[memoryview] = []
        self.keep: list[object] = []
        self.size = 0
        self._known: dict[tuple[object, ...], int] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self.elems = [v.elem if isinstance(v, Tensor) else 0 for v in graphs[0].segment.finished or ()]
        self.plans = [recorded(graph, self.weight) for graph in graphs]
        results = 1 + max((w.offset for w in self.weights if w.made), default=-1)
        self.prepare = None if outside is None else outside.plan(results, self.weight)
        compiled = [k for graph in graphs if graph.compilation is not None for k in graph.compilation.kernels.values()]
        self.sources = {k.source.symbol: k.source for k in compiled if isinstance(k.source, CudaSource)}

    def weight(self, tensor: Array, held: DType) -> int:
        """The number of a constant tensor among the weights."""
        place = None if self.outside is None else self.outside.place_of(tensor)
        if place is not None:
            return self._outside(tensor, held, place)
        size = span_bytes(tensor)
        content = memoryview((ctypes.c_char * size).from_address(address_of(tensor)) if size else b"").cast("B")
        sha = digest(content)
        key = (held, tuple(tensor.shape), element_strides(tensor), sha)
        if key in self._known:
            return self._known[key]
        if (sha, size) not in self._offsets:
            self._offsets[sha, size] = self.size
            self.contents += [content, memoryview(bytes(-size % ALIGNMENT))]
            self.keep.append(tensor)
            self.size += size + -size % ALIGNMENT
        offset = self._offsets[sha, size]
        self._known[key] = len(self.weights)
        self.weights.append(Weight(held, tuple(tensor.shape), element_strides(tensor), offset, size, sha))
        return self._known[key]

    def _outside(self, tensor: Array, held: DType, place: Outside) -> int:
        key = (held, tuple(tensor.shape), element_strides(tensor), place)
        if key not in self._known:
            self._known[key] = len(self.weights)
            size = span_bytes(tensor)
            shape, strides = tuple(tensor.shape), element_strides(tensor)
            self.weights.append(Weight(held, shape, strides, place.offset, size, "", place.file, not place.file))
        return self._known[key]

    def write(self, output: Path, assumed: Mapping[str, int], progress: Progress = _silent) -> Written:
        """Write the archive."""
        plans = [*self.plans, *([] if self.prepare is None else [self.prepare])]
        needed = {s.symbol for p in plans for s in p.program.steps if isinstance(s, Launch)}
        launched = {symbol: self.sources[symbol] for symbol in sorted(needed) if symbol in self.sources}
        needed |= {name for p in plans for name in p.launch}
        objects, contents = _objects(self.made.binaries(needed), self.made.suffix)
        session = self.made.session
        kind = session.options.target or "cpu"
        threads = 1 if kind == "cuda" else planned_threads()
        manifest = Manifest(
            taskmap.__version__, machine_of(session.target, kind, threads, self.made.features(needed)),
            tuple(_port(p, p.type.elem if p.type is not None else 0) for p in self.model.inputs),
            tuple(_port(p, elem) for p, elem in zip(self.model.outputs, self.elems, strict=True)),
            tuple(objects), tuple(self.weights), self.size, tuple(self.plans), launched, self.prepare,
        )  # fmt: skip
        text = manifest.to_json(for_people=self.outside is None)  # nobody reads that of a kept model
        _check_sound(text, self.size)
        entries = [ArchiveEntry(o.entry, o.bytes, [content]) for o, content in zip(objects, contents, strict=True)]
        entries.append(ArchiveEntry(WEIGHTS, self.size, self.contents, PAGE))
        total = sum(e.size for e in entries) + len(text)
        write_archive(output, text, entries, lambda done: progress("writing", done, total))
        return Written(output, manifest, output.stat().st_size, sum(o.bytes for o in objects), assumed)


def _check_sound(text: bytes, weight_bytes: int) -> None:
    """Raises UnsupportedError if the reader would refuse the manifest, so that no such archive is written."""
    try:
        sound_plans(manifest_from(document_of(text), weight_bytes))
    except ValueError as error:
        raise UnsupportedError(
            "the model cannot be archived", why=str(error), hint="Run the model itself: taskmap run model.onnx"
        ) from error


def _objects(binaries: Sequence[Binary], suffix: str) -> tuple[list[KernelObject], list[bytes]]:
    """The entries of kernels, in an order that depends only on their content."""
    found = sorted((digest(content), content, symbols) for content, symbols in binaries)
    objects = [KernelObject(f"kernels/{i}{suffix}", len(c), sha, symbols) for i, (sha, c, symbols) in enumerate(found)]
    return objects, [content for _, content, _ in found]


def _port(port: Port, elem: int) -> PortRecord:
    return PortRecord(
        port.name, numpy_type(elem).name, held_in(elem), None if port.type is None else port.type.shape
    )  # fmt: skip
