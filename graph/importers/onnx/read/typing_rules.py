"""The types of a call's inputs and results, by the standard's definition of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onnx import AttributeProto, TensorProto, defs

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import elem_name
from taskmap.graph.importers.onnx.read.library import schema_of
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.importers.onnx.read.values import Tensor

VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_KINDS = {int(v): str(AttributeProto.AttributeType.Name(v)) for v in AttributeProto.AttributeType.values()}
_FIELDS = dict(enumerate((
    "f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs", "sparse_tensor", "sparse_tensors",
    "tp", "type_protos",
), start=1))  # fmt: skip
"""For each type of attribute, the field that holds its value."""
_FLAGS = frozenset({
    "align_corners", "allowzero", "ceil_mode", "center_point_box", "count_include_pad", "exclusive", "fmod",
    "interleaved", "inverse", "is_causal", "keepdims", "largest", "noop_with_empty_axes", "onesided", "reverse",
    "saturate", "select_last_index", "sorted", "transA", "transB",
})  # fmt: skip
"""Attributes whose only values are 0 and 1."""
_WORDS = {
    ("DepthToSpace", "mode"): (b"DCR", b"CRD"),
    ("GridSample", "padding_mode"): (b"zeros", b"border", b"reflection"),
    ("Pad", "mode"): (b"constant", b"reflect", b"edge", b"wrap"),
    ("Resize", "mode"): (b"nearest", b"linear", b"cubic"),
    ("RoiAlign", "mode"): (b"avg", b"max"),
    ("TensorScatter", "mode"): (b"linear", b"circular"),
    ("Upsample", "mode"): (b"nearest", b"linear", b"bilinear"),
}
"""Allowed values of string attributes in which an unknown word would otherwise be misread."""
_ELEMS = {
    f"tensor({name})": elem
    for name, elem in (*((str(TensorProto.DataType.Name(v)).lower(), int(v)) for v in TensorProto.DataType.values()),)
}


def _schema(name: str, version: int, domain: str) -> defs.OpSchema:
    schema = schema_of(name, version, domain)
    assert schema is not None, f"{name} was checked when the model was loaded"
    return schema


@lru_cache(maxsize=4096)
def _parameters(name: str, version: int, domain: str) -> tuple[list[tuple[str, frozenset[str]]], bool, int, int]:
    schema = _schema(name, version, domain)
    inputs = [(p.type_str, frozenset(p.types)) for p in schema.inputs]
    last = bool(schema.inputs) and schema.inputs[-1].option == VARIADIC
    return inputs, last and not schema.inputs[-1].is_homogeneous, schema.min_input, schema.max_input


def check_attributes(call: OnnxCall) -> None:
    """Raises ImportGraphError for an attribute that the operator lacks or that has another type."""
    known = _attributes(call.op, call.version, call.domain)
    for attribute in call.proto.attribute:
        if attribute.name not in known:
            raise call.error(
                f"it has the attribute {shown(attribute.name)}",
                f"{call.op} of version {call.version} has no such attribute.",
            )
        if attribute.type != known[attribute.name]:
            wanted = _KINDS[known[attribute.name]]
            raise call.error(f"its attribute {shown(attribute.name)} is not of the type {wanted}")
        if attribute.name in _FLAGS and attribute.type == AttributeProto.INT and attribute.i not in (0, 1):
            raise call.error(f"its attribute {attribute.name} is {attribute.i}, neither 0 nor 1")
        words = _WORDS.get((call.op, attribute.name))
        if words is not None and attribute.s not in words:
            raise call.error(f"its attribute {attribute.name} is {shown(attribute.s.decode(errors='replace'))}")
        held = {field.name for field, _ in attribute.ListFields()} & set(_FIELDS.values())
        if held - {_FIELDS[attribute.type]}:
            raise call.error(f"its attribute {shown(attribute.name)} has values of several types")


@lru_cache(maxsize=4096)
def _attributes(name: str, version: int, domain: str) -> dict[str, int]:
    schema: Any = _schema(name, version, domain)
    return {n: int(a.type) for n, a in schema.attributes.items()}


def check_inputs(call: OnnxCall) -> None:
    """Raises ImportGraphError if the number or the types of inputs do not match the operator."""
    parameters, mixed, fewest, most = _parameters(call.op, call.version, call.domain)
    if not fewest <= len(call.inputs) <= most:
        raise call.error(f"it has {len(call.inputs)} inputs, but takes {fewest} to {most}")
    bound: dict[str, int] = {}
    for place, value in enumerate(call.inputs):
        if not isinstance(value, Tensor):
            continue
        variable, allowed = parameters[min(place, len(parameters) - 1)]
        name = f"tensor({elem_name(value.elem)})"
        if name not in allowed and any(t.startswith("tensor(") for t in allowed):
            raise call.error(
                f"{call.named(place)} is of {elem_name(value.elem)}", "the operator does not take that type."
            )
        if mixed and place >= len(parameters) - 1:
            continue
        if bound.setdefault(variable, value.elem) != value.elem:
            raise call.error(
                f"{call.named(place)} is of {elem_name(value.elem)}",
                f"another input of the same type is of {elem_name(bound[variable])}.",
            )


def output_elem(call: OnnxCall, index: int) -> int | None:
    """The element type of result ``index`` if the inputs determine it, else None."""
    schema = _schema(call.op, call.version, call.domain)
    if not schema.outputs:
        return None
    variable = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    if variable in _ELEMS:
        return _ELEMS[variable]
    return _bound(call, schema.inputs, variable)


def _bound(call: OnnxCall, parameters: Sequence[defs.OpSchema.FormalParameter], variable: str) -> int | None:
    for place, value in enumerate(call.inputs):
        formal = parameters[min(place, len(parameters) - 1)]
        if formal.type_str == variable and isinstance(value, Tensor):
            return value.elem
    return None
