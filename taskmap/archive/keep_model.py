"""Keeps a compiled ONNX model as archives in the kernel store (see kept_models)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, TensorProto

from taskmap.archive.kept_parts import parts_of
from taskmap.archive.outside_weights import OutsideWeights
from taskmap.archive.refusals import check_archivable
from taskmap.archive.session import ArchiveSession, Binary, features_used
from taskmap.archive.write import ArchiveWriter
from taskmap.backend.cpu.compile import team_file
from taskmap.backend.cpu.team import PARALLEL
from taskmap.backend.store.inventory import stored_objects
from taskmap.compile.session import Compilation, Fallback
from taskmap.ir.errors import TaskmapError
from taskmap.onnx.kept_models import SYMBOL, Request, Stamp, facts_of, stamps
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
    files: Mapping[str, Stamp | None],
    model: OnnxModel,
    record: Sequence[Compilation | Fallback],
    inputs: Mapping[str, Array],
) -> bool:
    """Keep a model that has run on these inputs, if archives can hold it; ``files``: its source files.

    Errors are not raised, because the model has already run.
    """
    try:
        session = model.session
        assert session is not None
        platform = session.platform
        assert isinstance(platform, CpuPlatform)
        check_archivable(model.model)
        parts = parts_of(model, record, [inputs[port.name] for port in model.inputs])

        def binaries(needed: Collection[str]) -> list[Binary]:
            objects = stored_objects(platform.store.path)
            found = [(o.path, tuple(sorted(s for s in set(o.symbols) if s in needed))) for o in objects]
            team = team_file(platform.toolchain, platform.store).read_bytes(), (PARALLEL,)
            return [*((path.read_bytes(), symbols) for path, symbols in found if symbols), team]

        def features(needed: Collection[str]) -> tuple[str, ...]:
            return features_used(platform.store.path, needed)

        made = ArchiveSession(session, ".so", binaries, features)
        if parts[0].graph.shapes is None:
            request = request.for_all_sizes
        # The last part first: a part is found only through those before it.
        for part in reversed(parts):
            wanted = replace(request, path=part.path)
            outside = OutsideWeights(files, part.graph.compilation)
            write = partial(_write, ArchiveWriter(part.model, made, [part.graph], outside))
            facts = facts_of(files, part.deciding)
            wanted.store().keep_file(wanted.key, SYMBOL, {"model": str(request.model)}, facts, write)
    except (TaskmapError, OSError, ValueError, AssertionError) as error:
        _log.debug("the model is not kept: %s", error)
        return False
    return True


def _write(writer: ArchiveWriter, path: Path) -> None:
    writer.write(path, {})


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                yield a.t
            yield from a.tensors
            for inner in (*((a.g,) if a.type == AttributeProto.GRAPH else ()), *a.graphs):
                yield from _tensors(inner)


def run_files(request: Request) -> dict[str, Stamp | None] | None:
    """The files that a run is about to read; None if they cannot be known for sure."""
    try:
        store = request.store()
        return stamps([*model_files(request.model), store.path / "tuning.sqlite"])
    except (OSError, TaskmapError, ValueError, DecodeError):  # reading the model will report the error
        return None
