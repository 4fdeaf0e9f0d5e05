"""Models for tests of archives, and archives that were changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from taskmap.archive.file import MANIFEST, PAGE, WEIGHTS, ArchiveEntry, ArchiveFile, write_archive
from tests.onnx.models import BOOL, FLOAT, INT64, model

Change = Callable[[Any], None]
UINT64, BF16 = int(TensorProto.UINT64), int(TensorProto.BFLOAT16)


def kinds() -> onnx.ModelProto:
    """Outputs of all kinds: computed, an input as it is, one result twice, constant, without dimensions."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["row"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["u"], ["whole"]),
        helper.make_node("Cast", ["x"], ["short"], to=BF16),
        helper.make_node("Greater", ["x", "zero"], ["c"]),
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Identity", ["square"], ["again"]),
        helper.make_node("Identity", ["zero"], ["known"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
    ]
    stored = {"table": np.arange(12, dtype=np.float32).reshape(4, 3), "zero": np.array(0, np.float32)}
    outputs = ["row", "same", "whole", "short", "c", "square", "again", "known", "total"]
    return model(nodes, {"x": (FLOAT, [2, 3]), "i": (INT64, [2]), "u": (UINT64, [2])}, outputs, stored)


def host_operators() -> onnx.ModelProto:
    """Two operators that run on the host, and one whose result's size depends on data."""
    nodes = [
        helper.make_node("TopK", ["x", "most"], ["top", "where"]),
        helper.make_node("Pow", ["i", "i"], ["powers"]),
        helper.make_node("NonZero", ["x"], ["places"]),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, [400]), "i": (INT64, [2])}
    return model(nodes, inputs, ["top", "where", "powers", "places"], {"most": np.array([50])})


def flags() -> onnx.ModelProto:
    """An If whose condition is an input."""
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], ["t"])], op, [], [helper.make_empty_tensor_value_info("t")])
        for op in ("Neg", "Abs")
    )
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    return model([node], {"x": (FLOAT, [3]), "flag": (BOOL, [])}, ["y"])


def splits() -> onnx.ModelProto:
    """A Split whose parts are an input; those of size zero, which an archive is tried with, are wrong."""
    node = helper.make_node("Split", ["x", "parts"], ["a", "b"], axis=0)
    return model([node], {"x": (FLOAT, [6]), "parts": (INT64, [2])}, ["a", "b"])


def changed(source: Path, target: Path, change: Change) -> Path:
    """A sound archive with another manifest: ``change`` is given the manifest to write into."""
    archive = ArchiveFile(source)
    document = json.loads(archive.manifest)
    change(document)
    return rewritten(archive, target, json.dumps(document).encode())


def rewritten(archive: ArchiveFile, target: Path, manifest: bytes, without: str = "") -> Path:
    """The entries of an archive, but for ``without``, with another manifest."""
    names = [n for n in archive.entries if n not in (MANIFEST, without)]
    sizes = {n: archive.entries[n][1] for n in names}
    write_archive(
        target, manifest, [ArchiveEntry(n, sizes[n], [archive.entry(n)], PAGE if n == WEIGHTS else 64) for n in names]
    )
    return target
