"""The scope of a model's nodes: versions of operator sets, functions, and the definitions of operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from onnx import FunctionProto, NodeProto, defs

from taskmap.graph.importers.onnx.contract import CONTRACTS
from taskmap.graph.importers.onnx.read.protos import graphs_of, shown
from taskmap.ir.errors import ImportGraphError

CONTROL = frozenset({"If", "Loop", "Scan"})
"""The operators that hold graphs: the reader handles them itself."""
FunctionKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionLibrary:
    """The names that nodes of one scope refer to: operator-set versions, functions, and the folder of external data."""

    opsets: Mapping[str, int]
    functions: Mapping[FunctionKey, FunctionProto] = field(default_factory=dict)
    folder: Path | None = None

    def version(self, domain: str) -> int:
        """The version of a domain's operator set. Raises ImportGraphError if the model does not declare one."""
        if domain not in self.opsets:
            raise ImportGraphError(f"the model does not say which version of the operator set {shown(domain)} it uses")
        return self.opsets[domain]

    def function(self, node: NodeProto) -> FunctionProto | None:
        """The function of the model that a node calls, or None."""
        return self.functions.get((domain_of(node), node.op_type, getattr(node, "overload", "")))

    def schema(self, node: NodeProto) -> defs.OpSchema | None:
        """The definition of a node's operator in its version, or None if the standard has none."""
        return schema_of(node.op_type, self.version(domain_of(node)), domain_of(node))


@lru_cache(maxsize=8192)
def schema_of(name: str, version: int, domain: str) -> defs.OpSchema | None:
    """The standard's definition of an operator, or else ONNX Runtime's contract, or None."""
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return CONTRACTS.get((domain, name))


def has_body(schema: Any) -> bool:
    """True if the standard defines an operator by others (onnx does not declare these members of OpSchema)."""
    return bool(schema.has_function or schema.has_context_dependent_function)


def domain_of(node: NodeProto | Any) -> str:
    """The domain of a node; "ai.onnx" denotes the default one."""
    return "" if node.domain == "ai.onnx" else str(node.domain)


def function_library(function: FunctionProto, base: FunctionLibrary) -> FunctionLibrary:
    """The library for the nodes of a function; operator sets that it does not declare are the model's."""
    opsets = dict(base.opsets)
    for entry in function.opset_import:
        opsets["" if entry.domain == "ai.onnx" else entry.domain] = int(entry.version)
    return FunctionLibrary(opsets, base.functions, base.folder)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """The nodes, and the nodes of the graphs inside them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                yield from all_nodes(graph.node)


def described(node: NodeProto) -> str:
    """A node for a message."""
    return f"the {shown(node.op_type)[1:-1]} node {shown(name_of(node))}"


def name_of(node: NodeProto) -> str:
    """A node's name, or that of its first result."""
    return node.name or next((n for n in node.output if n), "")
