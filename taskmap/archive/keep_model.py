"""Keeps a compiled ONNX model as an archive in the kernel store (see kept_models)."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, TensorProto

from taskmap.archive.graph import GraphRecord
from taskmap.archive.refusals import check_archivable, check_segments
from taskmap.archive.targets import ArchiveSession, Binary, features_used
from taskmap.archive.write import ArchiveWriter
from taskmap.backend.cpu.compile import team_file
from taskmap.backend.cpu.team import PARALLEL
from taskmap.backend.store.inventory import stored_objects
from taskmap.compile.session import Compilation, Fallback
from taskmap.graph.importers.onnx.read.elements import to_held
from taskmap.ir.errors import TaskmapError, UnsupportedError
from taskmap.onnx.kept_models import SYMBOL, Request, stamps
from taskmap.onnx.model import OnnxModel
from taskmap.targets.cpu import CpuPlatform

Array = NDArray[Any]
_log = logging.getLogger(__name__)


def model_files(path: Path) -> list[Path]:
    """The file of an ONNX model, and the files of its external data. Raises OSError, DecodeError."""
    graph = onnx.load(path, load_external_data=False).graph
    named = {e.value for t in _tensors(graph) for e in t.external_data if e.key == "location"}
    return [path, *(path.parent / name for name in sorted(named))]


def keep(
    request: Request,
    files: Mapping[str, list[int] | None],
    model: OnnxModel,
    record: Sequence[Compilation | Fallback],
    inputs: Mapping[str, Array],
) -> bool:
    """Keep a model that has run on these inputs, if an archive can hold it; ``files``: its source files.

    Errors are not raised, because the model has already run.
    """
    try:
        session = model.session
        assert session is not None
        platform = session.platform
        assert isinstance(platform, CpuPlatform)
        check_archivable(model.model)
        graph = _graph(model, record, [inputs[port.name] for port in model.inputs])

        def binaries(needed: Collection[str]) -> list[Binary]:
            objects = stored_objects(platform.store.path)
            found = [(o.path, tuple(sorted(s for s in set(o.symbols) if s in needed))) for o in objects]
            team = team_file(platform.toolchain, platform.store).read_bytes(), (PARALLEL,)
            return [*((path.read_bytes(), symbols) for path, symbols in found if symbols), team]

        def features(needed: Collection[str]) -> tuple[str, ...]:
            return features_used(platform.store.path, needed)

        writer = ArchiveWriter(model.model, ArchiveSession(session, ".so", binaries, features), [graph])
        if graph.shapes is None:
            request = request.for_all_sizes
        request.store().keep_file(
            request.key, SYMBOL, {"model": str(request.model)}, {"files": json.dumps(files)},
            lambda path: _write(writer, path),
        )  # fmt: skip
    except (TaskmapError, OSError, ValueError, AssertionError) as error:
        _log.debug("the model is not kept: %s", error)
        return False
    return True


def _write(writer: ArchiveWriter, path: Path) -> None:
    writer.write(path, {})


def _graph(model: OnnxModel, record: Sequence[Compilation | Fallback], inputs: Sequence[Array]) -> GraphRecord:
    """The model's single graph. Raises UnsupportedError if there are several."""
    program = model.program
    deciding = sorted({i for point, _ in program.roots.values() for i in point.valued})
    segments = program.segments()
    check_segments(segments, ())
    if len(segments) != 1:
        raise UnsupportedError("the model is several graphs")
    (segment,) = segments
    compiled = {id(c.imported): c for c in record if isinstance(c, Compilation)}
    compilation = None if segment.graph is None else compiled[id(segment.graph)]
    elems = [0 if port.type is None else port.type.elem for port in model.inputs]
    values = tuple((i, to_held(inputs[i], elems[i]).tobytes().hex()) for i in deciding)
    if segment.guard is not None:
        return GraphRecord(segment, compilation, None, tuple(segment.guard.checks), segment.guard.forms, values)
    return GraphRecord(segment, compilation, tuple(x.shape for x in inputs), values=values)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                yield a.t
            yield from a.tensors
            for inner in (*((a.g,) if a.type == AttributeProto.GRAPH else ()), *a.graphs):
                yield from _tensors(inner)


def run_files(request: Request) -> dict[str, list[int] | None] | None:
    """The files that a run is about to read; None if they cannot be known for sure."""
    try:
        store = request.store()
        return stamps([*model_files(request.model), store.path / "tuning.sqlite"])
    except (OSError, TaskmapError, ValueError, DecodeError):  # reading the model will report the error
        return None
