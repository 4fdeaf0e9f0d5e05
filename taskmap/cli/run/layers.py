"""`taskmap run --layers`: compares every node of an ONNX model with another runner, and finds the first node that
differs.

All results between nodes are made outputs and compared at once. Keeping all values changes the fusion; if a
model's outputs differ, but nothing does with all values kept, the model is cut after a node, and the node is found by
bisection: it is the first after which the cut model, fused as usual, differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from taskmap.cli.output import clipped, plain, table
from taskmap.cli.run.compare import Array, Comparison, compare
from taskmap.graph.importers.onnx.read.elements import numpy_type
from taskmap.ir.errors import ImportGraphError, InputError, TaskmapError

Run = Callable[[ModelProto, Mapping[str, Array]], list[Any]]
"""A function from a model and its inputs to its outputs."""
_WORST = 10


@dataclass(frozen=True, slots=True)
class Layer:
    """One compared result of a node."""

    node: NodeProto
    verdict: Comparison

    def content(self) -> dict[str, Any]:
        """The result as JSON data."""
        v, n = self.verdict, self.node
        return {
            "value": v.name, "node": n.name, "operator": n.op_type, "inputs": list(n.input), "equal": v.equal,
            "absolute": v.absolute, "relative": v.relative, "differing": v.differing, "why": v.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layers:
    """The compared results, in the order of the nodes; the first that differs, or None. fused: it differs
    only if the nodes before it are fused, and was found by bisection."""

    compared: Sequence[Layer]
    first: Layer | None
    fused: bool = False

    def content(self) -> dict[str, Any]:
        """The results as JSON data."""
        first = None if self.first is None else self.first.content()
        return {"first": first, "fused": self.fused, "compared": [layer.content() for layer in self.compared]}

    def __str__(self) -> str:
        worst = sorted(self.compared, key=lambda layer: -layer.verdict.relative)[:_WORST]
        shown = [layer for layer in self.compared if layer in worst or layer is self.first]
        rows = [
            (_name(layer.node), layer.node.op_type, layer.verdict.name, f"{layer.verdict.absolute:.3g}",
             f"{layer.verdict.relative:.3g}", "equal" if layer.verdict.equal else "different")
            for layer in shown
        ]  # fmt: skip
        header = ("node", "operator", "value", "absolute", "relative", "")
        lines = [f"{len(self.compared)} values compared; the {len(shown)} with the largest errors, in order:"]
        lines.append(table(header, rows, left=3))
        if self.first is None:
            lines.append("no node differs")
            return "\n".join(lines)
        node = self.first.node
        how = ", only if the nodes before it are fused (found by bisection)" if self.fused else ""
        reads = ", ".join(plain(name) for name in node.input if name)
        lines.append(f"the first node that differs: {plain(_name(node))}, {plain(node.op_type)} of {reads}{how}")
        return "\n".join(lines)


def compare_layers(
    path: Path, inputs: Mapping[str, Array], ours: Run, theirs: Run, *, rtol: float, atol: float, differs: bool
) -> Layers:
    """Compare the results of the nodes of the model in ``path``, by ``ours`` and by ``theirs``.

    ``differs``: the model's outputs differ. Raises InputError for a model without any comparable result
    between nodes, and the errors of either runner.
    """
    model = _read(path)
    kept = _values(model)
    if not kept:
        raise InputError("no node's result can be compared", where=str(path), why="none is a tensor of a known type.")

    def judged(names: Sequence[str]) -> list[Layer]:
        cut = _with_outputs(model, [(name, kept[name][1]) for name in names])
        verdicts = compare(names, ours(cut, inputs), theirs(cut, inputs), rtol, atol)
        return [Layer(kept[v.name][0], v) for v in verdicts]

    layers = judged(list(kept))
    first = next((layer for layer in layers if not layer.verdict.equal), None)
    if first is not None or not differs:
        return Layers(layers, first)
    found = bisected(list(kept), lambda name: judged([name])[0])
    return Layers(layers, found, fused=True)


def bisected(names: Sequence[str], judge: Callable[[str], Layer]) -> Layer | None:
    """The first of ``names`` that differs, given that all after it differ, too; None if the last is equal."""
    found: Layer | None = None
    low, high = 0, len(names) - 1
    if judge(names[high]).verdict.equal:
        return None
    while low <= high:
        middle = (low + high) // 2
        layer = judge(names[middle])
        if layer.verdict.equal:
            low = middle + 1
        else:
            found, high = layer, middle - 1
    return found


def onnxruntime_run(threads: int | None) -> Run:
    """ONNX Runtime without optimisations, so that every node runs as written."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise InputError("ONNX Runtime is not installed", hint="pip install onnxruntime") from error

    def run(model: ModelProto, inputs: Mapping[str, Array]) -> list[Any]:
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            found: list[Any] = session.run(None, dict(inputs))
        except Exception as error:  # its errors, and protobuf's, have no common class
            raise InputError("ONNX Runtime cannot run the model node by node", why=f"{error}".strip()) from error
        return found

    return run


def _read(path: Path) -> ModelProto:
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf and the reader of external data raise anything
        raise ImportGraphError(f"cannot read the model {str(path)!r}", why=f"{error}".strip()) from error
    try:
        return shape_inference.infer_shapes(model)
    except Exception:  # if inference fails, some values still have declared types
        return model


def _values(model: ModelProto) -> dict[str, tuple[NodeProto, int]]:
    """The comparable results of nodes, with their nodes and element types."""
    typed = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.output)}
    found: dict[str, tuple[NodeProto, int]] = {}
    for node in model.graph.node:
        if node.op_type == "Constant":
            continue
        for name in node.output:
            if name and _is_compared(typed.get(name, TensorProto.UNDEFINED)):
                found[name] = (node, typed[name])
    return found


def _is_compared(elem: int) -> bool:
    if elem in (TensorProto.UNDEFINED, TensorProto.STRING):
        return False
    try:
        return numpy_type(elem).kind in "biuf"
    except (TaskmapError, KeyError, TypeError, ValueError):
        return False


def _with_outputs(model: ModelProto, outputs: Sequence[tuple[str, int]]) -> ModelProto:
    """The model with other outputs, reduced to the nodes that they need."""
    made = ModelProto()
    made.CopyFrom(model)
    del made.graph.output[:]
    made.graph.output.extend(helper.make_tensor_value_info(name, elem, None) for name, elem in outputs)
    needed = {name for name, _ in outputs}
    kept = []
    for node in reversed(made.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for name in _reads(node))
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _reads(node: NodeProto) -> list[str]:
    """The inputs of a node, including those of its inner graphs."""
    inner = [g for a in node.attribute for g in (a.g, *a.graphs)]
    return [
        *node.input,
        *(name for g in inner for n in g.node for name in _reads(n)),
        *(o.name for g in inner for o in g.output),
    ]


def _name(node: NodeProto) -> str:
    return clipped(node.name or f"{node.op_type} of {node.output[0]}", 60)
