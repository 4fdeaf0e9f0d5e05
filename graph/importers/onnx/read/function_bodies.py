"""Definitions of operators by other operators: the standard's own, and those composed for ONNX Runtime's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from onnx import FunctionProto, TypeProto, helper

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.composition import composed_body
from taskmap.graph.importers.onnx.read.library import FunctionLibrary, schema_of
from taskmap.graph.importers.onnx.read.values import OptionalValue, SequenceValue, Tensor, Value
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError


def body_of(call: OnnxCall) -> tuple[FunctionProto, FunctionLibrary]:
    """The function that defines the call's operator, and the library that its nodes refer to.

    Raises UnsupportedError if there is no definition for this operator and these types.
    """
    own = composed_body(call)
    if own is not None:
        return own, call.library
    asked = call.library.version(call.domain)
    schema: Any = schema_of(call.op, asked, call.domain)
    if schema is None:
        raise UnsupportedError(f"the operator {call.op}")
    if schema.has_function:
        data = _plain_body(call.op, asked, call.domain)
        if data is not None:
            return _parsed(data), call.library
    if schema.has_context_dependent_function:
        types = [_type(v) for v in call.inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= max(asked, call.version)]
        if versions:
            data = schema.get_context_dependent_function_with_opset_version(
                max(versions), call.proto.SerializeToString(), [t.SerializeToString() for t in types]
            )
            if data:
                return _parsed(data), call.library
    raise UnsupportedError(f"the operator {call.op}", why="neither taskmap nor the standard defines it for these types")


@lru_cache(maxsize=512)
def _plain_body(name: str, asked: int, domain: str) -> bytes | None:
    schema: Any = schema_of(name, asked, domain)
    if schema is None:
        return None
    versions = [v for v in schema.function_opset_versions if v <= max(asked, schema.since_version)]
    if not versions:
        return None
    body = schema.get_function_with_opset_version(max(versions))
    return body if isinstance(body, bytes) else body.SerializeToString()


def _parsed(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _type(value: Value | None) -> TypeProto:
    if value is None:
        return TypeProto()
    if isinstance(value, Tensor):
        return helper.make_tensor_type_proto(value.elem, [static_size(n) for n in value.shape])
    if isinstance(value, SequenceValue):
        inner = _type(value.items[0]) if value.items else helper.make_tensor_type_proto(value.elem or 1, None)
        return helper.make_sequence_type_proto(inner)
    if not isinstance(value, OptionalValue):
        return TypeProto()
    return helper.make_optional_type_proto(_type(value.value))
