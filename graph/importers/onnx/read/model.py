"""The model file, checked as a graph before any operator is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, defs

from taskmap.graph.importers.onnx.contract import CONTRACTS, DEFINITIONS, REFUSED
from taskmap.graph.importers.onnx.read.elements import OnnxTensorType
from taskmap.graph.importers.onnx.read.lacking import Missing, lacking
from taskmap.graph.importers.onnx.read.library import (
    CONTROL,
    FunctionKey,
    FunctionLibrary,
    all_nodes,
    described,
    domain_of,
    function_library,
    has_body,
    name_of,
)
from taskmap.graph.importers.onnx.read.ordering import ordered
from taskmap.graph.importers.onnx.read.protos import graphs_of, shown
from taskmap.graph.importers.onnx.read.table import find
from taskmap.ir.errors import ImportGraphError, UnsupportedError

DEEPEST = 32
"""The largest nesting depth of graphs and functions."""
MOST_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model. ``pair``: the element types of the keys and of the values of a map, or of each
    map in a sequence."""

    name: str
    kind: str
    type: OnnxTensorType | None
    pair: tuple[int, int] | None = None

    @property
    def is_tensor(self) -> bool:
        """True if its value is a tensor, as opposed to a sequence or an optional."""
        return self.kind == "tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A checked model."""

    proto: ModelProto
    graph: GraphProto
    library: FunctionLibrary
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def load(source: str | Path | bytes | ModelProto) -> Model:
    """The model in a file, in bytes, or in a ModelProto.

    Raises ImportGraphError for an invalid model, and an UnsupportedError that lists every unsupported operator with its
    nodes.
    """
    folder: Path | None = None
    if isinstance(source, ModelProto):
        proto = source
    elif isinstance(source, bytes):
        proto = _parse(source, "the given bytes")
    else:
        path = Path(source)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ImportGraphError(
                f"cannot read the model {shown(str(source))}", why=error.strerror or str(error)
            ) from error
        proto, folder = _parse(data, shown(str(source))), path.parent
    return checked(proto, folder)


def _parse(data: bytes, what: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf raises errors of several kinds
        raise ImportGraphError(f"{what} is not an ONNX model", why=f"{type(error).__name__}: {error}") from error
    return proto


def checked(proto: ModelProto, folder: Path | None) -> Model:
    """``proto`` as a Model. Raises the errors of ``load``."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise ImportGraphError(
            "the file is not an ONNX model", why="it has no graph, or names no operator set.", hint="Is it complete?"
        )
    proto = ordered(proto)
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        opsets["" if entry.domain == "ai.onnx" else entry.domain] = int(entry.version)
    _check_versions(opsets)
    functions = {_key(f): f for f in proto.functions}
    if len(functions) != len(proto.functions):
        raise ImportGraphError("the model defines a function twice")
    library = FunctionLibrary(opsets, functions, folder)
    missing: Missing = {}
    _check_graph(proto.graph, library, (), missing, 0)
    _check_functions(functions, library, missing)
    if missing:
        raise lacking(missing)
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    inputs = tuple(_port(v) for v in proto.graph.input if v.name not in stored)
    return Model(proto, proto.graph, library, inputs, tuple(_port(v) for v in proto.graph.output))


def _key(function: FunctionProto) -> FunctionKey:
    return domain_of(function), function.name, getattr(function, "overload", "")


def _check_versions(opsets: Mapping[str, int]) -> None:
    newest = defs.onnx_opset_version()
    version = opsets.get("", newest)
    if not 1 <= version <= newest:
        raise UnsupportedError(
            f"the model uses version {version} of the operator set",
            why=f"the installed onnx {onnx.__version__} knows versions up to {newest}.",
            hint="Install a newer onnx." if version > newest else None,
        )


def _check_graph(
    graph: GraphProto, library: FunctionLibrary, outer: tuple[set[str], ...], missing: Missing, depth: int
) -> None:
    if depth > DEEPEST:
        raise ImportGraphError("the graphs of the model are nested too deep")
    own: set[str] = set()

    def define(name: str, what: str) -> None:
        if name in own:
            raise ImportGraphError(f"the name {shown(name)} is given to two values", where=what)
        own.add(name)

    _check_text(*(p.name for p in [*graph.input, *graph.output, *graph.initializer]))
    for port in graph.input:
        define(port.name, "the inputs")
    inputs = frozenset(own)
    for tensor in [*graph.initializer, *(s.values for s in graph.sparse_initializer)]:
        if tensor.name not in inputs:
            define(tensor.name, "the initializers")
    _check_nodes(graph.node, library, own, define, outer, missing, depth)
    for port in graph.output:
        if not any(port.name in names for names in (own, *outer)):
            raise ImportGraphError(f"no node makes the output {shown(port.name)}")


def _check_nodes(
    nodes: Sequence[NodeProto],
    library: FunctionLibrary,
    own: set[str],
    define: Any,
    outer: tuple[set[str], ...],
    missing: Missing,
    depth: int,
) -> None:
    if len(nodes) > MOST_NODES:
        raise ImportGraphError(f"a graph of the model has {len(nodes)} nodes")
    for node in nodes:
        _check_text(node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute))
        for name in node.input:
            if name and name not in own and not any(name in names for names in outer):
                _refuse_unknown(name, node, nodes)
        if (reason := _lacks(node, library)) is not None:
            missing.setdefault(reason, []).append(name_of(node))
        for attribute in node.attribute:
            for inner in graphs_of(attribute):
                _check_graph(inner, library, (own, *outer), missing, depth + 1)
        for name in node.output:
            if name:
                define(name, f"the outputs of {described(node)}")


def _check_text(*names: object) -> None:
    """Raises ImportGraphError for a name that is not valid text, which protobuf returns as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ImportGraphError("a name in the model is not valid text", where=repr(name)[:100])


def _refuse_unknown(name: str, node: NodeProto, nodes: Sequence[NodeProto]) -> None:
    maker = next((n for n in nodes if name in n.output), None)
    why = "no input, initializer or node has that name."
    if maker is not None:
        why = f"{described(maker)} makes it later: the nodes form a cycle."
    raise ImportGraphError(f"{described(node)} reads {shown(name)}, which does not exist", why=why)


def _lacks(node: NodeProto, library: FunctionLibrary) -> str | None:
    """The operator, with the reason if there is one, if nothing can run it; else None."""
    domain = domain_of(node)
    if library.function(node) is not None:
        return None
    label = f"{domain + '.' if domain else ''}{node.op_type}"
    if (refused := REFUSED.get((domain, node.op_type)) or REFUSED.get((domain, ""))) is not None:
        return f"{label} ({refused})"
    if domain not in library.opsets:
        return f"{label} (its operator set is not declared)"
    schema = library.schema(node)
    if schema is None:
        return f"{label} (the standard's version {library.version(domain)} does not have it)"
    is_control = domain == "" and node.op_type in CONTROL
    if is_control or find(domain, node.op_type, schema.since_version) is not None:
        return None
    is_composed = schema is CONTRACTS.get((domain, node.op_type)) and (domain, node.op_type) in DEFINITIONS
    return None if is_composed or has_body(schema) else label


def _check_functions(functions: Mapping[FunctionKey, FunctionProto], base: FunctionLibrary, missing: Missing) -> None:
    for function in functions.values():
        library = function_library(function, base)
        own: set[str] = set(function.input)
        if len(own) != len(function.input):
            raise ImportGraphError(f"the function {shown(function.name)} gives two inputs the same name")

        def define(name: str, what: str, own: set[str] = own) -> None:
            if name in own:
                raise ImportGraphError(f"the name {shown(name)} is given to two values", where=what)
            own.add(name)

        _check_nodes(function.node, library, own, define, (), missing, 0)
        for name in function.output:
            if name not in own:
                raise ImportGraphError(f"no node makes the output {shown(name)} of a function")
    _refuse_recursion(functions, base)


def _refuse_recursion(functions: Mapping[FunctionKey, FunctionProto], base: FunctionLibrary) -> None:
    depth: dict[FunctionKey, int] = {}

    def visit(key: FunctionKey, above: tuple[FunctionKey, ...]) -> int:
        if key in above:
            raise ImportGraphError(f"the function {shown(key[1])} calls itself")
        if len(above) > DEEPEST:
            raise ImportGraphError("the functions of the model call each other too deeply")
        if key not in depth:
            called = [k for n in all_nodes(functions[key].node) if (k := _called(n)) in functions]
            depth[key] = 1 + max((visit(k, (*above, key)) for k in called), default=0)
        return depth[key]

    for key in functions:
        visit(key, ())


def _called(node: NodeProto) -> FunctionKey:
    return domain_of(node), node.op_type, getattr(node, "overload", "")


def _port(value: ValueInfoProto) -> Port:
    kind = value.type.WhichOneof("value") or "nothing"
    if kind == "tensor_type":
        return Port(value.name, "tensor", tensor_type(value.type.tensor_type))
    kinds = {"sequence_type": "sequence", "optional_type": "optional", "map_type": "map"}
    inner = value.type.sequence_type.elem_type if kind == "sequence_type" else value.type
    pair = None
    if inner.HasField("map_type"):
        pair = inner.map_type.key_type, inner.map_type.value_type.tensor_type.elem_type
    return Port(value.name, kinds.get(kind, kind), None, pair)


def tensor_type(proto: TypeProto.Tensor) -> OnnxTensorType:
    """The element type and shape of a tensor type. A size of -1, or a placeholder for a name, stands for any size.

    Raises ImportGraphError for other negative sizes.
    """
    if not proto.HasField("shape"):
        return OnnxTensorType(proto.elem_type, None)
    sizes: list[int | str | None] = []
    for dim in proto.shape.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value" and dim.dim_value < -1:
            raise ImportGraphError(f"an input has the size {dim.dim_value}")
        if which == "dim_value":
            sizes.append(None if dim.dim_value == -1 else dim.dim_value)
        else:
            sizes.append(dim.dim_param if _is_name(dim.dim_param) else None)
    return OnnxTensorType(proto.elem_type, tuple(sizes))


def _is_name(text: str) -> bool:
    """True if a dimension's name denotes one size wherever it occurs; converters also write "?", "-1" and "None"."""
    return text not in ("None", "none", "-1") and any(c.isalnum() for c in text)
