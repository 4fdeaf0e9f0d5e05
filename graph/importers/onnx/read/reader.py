"""The reader: the operators of a model, each by its lowering or its function body, become a Graph.

Reading continues until the results exist or something must be computed first: the value of a tensor that decides a
shape or a branch, or an operator whose result's size depends on data. The graph then ends there, and reading can resume
from the same place, with the computed values as new inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto
from onnx.defs import OpSchema

from taskmap.graph.importers.onnx.read.assumptions import Assumptions
from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall, ValuesNeededError
from taskmap.graph.importers.onnx.read.control import ControlStep, begin, next_iteration
from taskmap.graph.importers.onnx.read.elements import MASKS, PLAIN, elem_name, held_in
from taskmap.graph.importers.onnx.read.folding import Folding
from taskmap.graph.importers.onnx.read.function_bodies import body_of
from taskmap.graph.importers.onnx.read.library import CONTROL, FunctionLibrary, described, domain_of, function_library
from taskmap.graph.importers.onnx.read.new_nodes import NewNodes
from taskmap.graph.importers.onnx.read.protos import attribute_value, shown
from taskmap.graph.importers.onnx.read.shape_values import fold_symbolic
from taskmap.graph.importers.onnx.read.state import Scope, lookup, remapped
from taskmap.graph.importers.onnx.read.symbolic import check_symbolic
from taskmap.graph.importers.onnx.read.table import Lowering, find
from taskmap.graph.importers.onnx.read.typing_rules import check_attributes, check_inputs, output_elem
from taskmap.graph.importers.onnx.read.values import PresentedValue, Tensor, Value
from taskmap.graph.nodes import Node, Origin, OriginContext
from taskmap.graph.ops.pointwise import pointwise
from taskmap.ir.construct import binary, const, static_size
from taskmap.ir.errors import GraphError, ImportGraphError, TaskmapError, TypeMismatchError, UnsupportedError
from taskmap.ir.nodes import Dim

DEEPEST = 64
WRAPPING = frozenset({
    "Add", "Sub", "Mul", "Neg", "BitShift", "BitwiseNot", "Pow", "MatMul", "Sum", "ReduceSum", "ReduceProd",
    "ReduceSumSquare", "ReduceL1", "CumSum", "Gemm",
})  # fmt: skip
"""Operators whose results can leave the range of an integer type that is held in a wider one."""


SHAPE_KEEPING = frozenset({
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization",
    "PRelu", "Clip", "QuantizeLinear", "DequantizeLinear",
})  # fmt: skip
"""Operators whose parameters must not make the result larger than the first input."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole model has been read; the results."""

    outputs: list[Value | None]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Something must be computed first: values, an operator on the host, or control flow on the host."""

    needs: tuple[Tensor, ...] = ()
    step: HostStep | ControlStep | None = None
    binds: Sequence[str] = ()
    origin: Origin | None = None


class Reader:
    """Reads on from ``frames``, which it modifies. ``sizes`` collects the assumptions about symbolic sizes."""

    def __init__(self, frames: list[Scope], sizes: Assumptions | None = None) -> None:
        self.frames = frames
        self.sizes = sizes or Assumptions()
        self.folding = Folding()
        self.new_nodes = NewNodes(self.sizes.names)

    def run(self) -> Finished | Stopped:
        """Reads to the end, or until something must be computed first.

        Raises ImportGraphError and UnsupportedError with the node as their place.
        """
        while True:
            frame = self.frames[-1]
            if frame.at == len(frame.nodes):
                try:
                    outputs = self._leave(frame)
                except ValuesNeededError as need:
                    return Stopped(need.tensors)
                if outputs is not None:
                    return Finished(outputs)
                continue
            node = frame.nodes[frame.at]
            self.sizes.node = described(node)
            try:
                stopped = self._read(frame, node)
            except ValuesNeededError as need:
                return Stopped(need.tensors)
            except TaskmapError as error:
                raise error.at(described(node)) from error.__cause__
            except RecursionError as error:
                raise ImportGraphError(f"{described(node)} is nested too deep") from error
            except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, MemoryError) as error:
                raise ImportGraphError(
                    f"{described(node)} cannot be read", why=f"{type(error).__name__}: {error}"
                ) from error
            if stopped is not None:
                return stopped

    def _leave(self, frame: Scope) -> list[Value | None] | None:
        """Ends a frame, or starts the next iteration of its loop. Returns the results if it was the outermost frame."""
        outputs = [self._returned(frame, i, name) for i, name in enumerate(frame.outputs)]
        if frame.loop is not None:
            with OriginContext(frame.loop.origin):
                finished = next_iteration(self, frame, outputs)
            if finished is None:
                return None
            outputs = finished
        self.frames.pop()
        if not self.frames:
            return outputs
        self.bind(frame.binds, outputs)
        return None

    def bind(self, names: Sequence[str], values: Sequence[Value | None]) -> None:
        """Binds names in the topmost frame to values."""
        for name, value in zip(names, values, strict=False):
            if name:
                self.frames[-1].values[name] = value

    def _returned(self, frame: Scope, index: int, name: str) -> Value | None:
        """A result of a frame. A function may leave out a result that its caller does not use."""
        inner = len(self.frames) > 1 and frame.loop is None
        if inner and not frame.sees and (index >= len(frame.binds) or not frame.binds[index]):
            return frame.values.get(name)
        return self._value(name)

    def _value(self, name: str) -> Value | None:
        try:
            return lookup(self.frames, name)
        except KeyError:
            raise ImportGraphError(f"the value {shown(name)} is read, but was never made") from None

    def _read(self, frame: Scope, node: NodeProto) -> Stopped | None:
        call = self._call(frame, node)
        if domain_of(node) == "" and node.op_type in CONTROL:
            check_attributes(call)
            check_inputs(call)
            with OriginContext(call.origin):
                step = begin(self, frame, call)
            if step is not None:
                frame.at += 1
                return Stopped(step=step, binds=list(node.output), origin=call.origin)
            return None
        function = frame.library.function(node)
        if function is not None:
            _check_function_attributes(call, function)
            self._enter(frame, call, list(function.node), function.input, function.output, frame.library)
            return None
        made = self._lowered(call)
        if made is None:
            body, library = body_of(call)
            inner = function_library(body, library)
            self._enter(frame, call, list(body.node), body.input, body.output, inner)
            return None
        frame.at += 1
        if isinstance(made, HostStep):
            return Stopped(step=made, binds=list(node.output), origin=call.origin)
        self.bind(list(node.output), made)
        return None

    def _call(self, frame: Scope, node: NodeProto) -> OnnxCall:
        domain = domain_of(node)
        inputs = [self._value(name) if name else None for name in node.input]
        attributes: dict[str, Any] = {}
        for attribute in node.attribute:
            given: AttributeProto | None = attribute
            if attribute.ref_attr_name:
                given = frame.attributes.get(attribute.ref_attr_name)
            if given is not None:
                attributes[attribute.name] = attribute_value(given, frame.library.folder)
        schema = frame.library.schema(node)
        version = schema.since_version if schema is not None else 0
        if any(a.ref_attr_name for a in node.attribute):
            node = _resolved(node, frame)
        return OnnxCall(node, domain, version, inputs, attributes, frame.library, self.folding.fold, self.sizes)

    def _enter(
        self,
        frame: Scope,
        call: OnnxCall,
        nodes: Sequence[NodeProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
        library: FunctionLibrary,
    ) -> None:
        """Enters the body of a function."""
        if len(self.frames) > DEEPEST:
            raise ImportGraphError("functions are nested too deep")
        if len(call.inputs) > len(inputs):
            raise call.error(f"it has {len(call.inputs)} inputs, but the function takes {len(inputs)}")
        given = [*call.inputs, *[None] * (len(inputs) - len(call.inputs))]
        values: dict[str, Value | None] = dict(zip(inputs, given, strict=True))
        attributes = _attributes(frame, call)
        inner = library if library is not frame.library else self._function_library(frame, call)
        frame.at += 1
        self.frames.append(
            Scope(nodes, list(outputs), list(call.proto.output), values, inner, sees=False, attributes=attributes)
        )

    def _function_library(self, frame: Scope, call: OnnxCall) -> FunctionLibrary:
        function = frame.library.function(call.proto)
        assert function is not None
        return function_library(function, frame.library)

    def _lowered(self, call: OnnxCall) -> list[Value | None] | HostStep | None:
        """The results of the operator's lowering; None if its function body must be read instead."""
        check_attributes(call)
        check_inputs(call)
        folded = fold_symbolic(call)
        if folded is not None:
            return [folded]
        function = find(call.domain, call.op, call.version)
        if function is None:
            return None
        check_symbolic(call, function)
        with OriginContext(call.origin):
            return self._lowered_by(function, call)

    def _lowered_by(self, function: Lowering, call: OnnxCall) -> list[Value | None] | HostStep | None:
        try:
            made = function(call)
        except (UnsupportedError, GraphError, TypeMismatchError) as refused:
            try:
                body_of(call)
            except UnsupportedError:
                if isinstance(refused, UnsupportedError):
                    raise refused from None
                raise ImportGraphError(f"{described(call.proto)}: {refused.what}", why=refused.why) from refused
            return None
        return made if isinstance(made, HostStep) else self._results(call, made)

    def _results(self, call: OnnxCall, made: Any) -> list[Value | None]:
        listed = list(made) if isinstance(made, (list, tuple)) else [made]
        return [None if m is None else self._result(call, i, m) for i, m in enumerate(listed)]

    def _result(self, call: OnnxCall, index: int, made: Node | Value) -> Value:
        if isinstance(made, PresentedValue):
            shown_as = self._result(call, index, made.tensor)
            assert isinstance(shown_as, Tensor)
            return PresentedValue(shown_as, made.present)
        if not isinstance(made, (Node, Tensor)):
            others = remapped(made, self.completed)
            assert others is not None
            return others
        if isinstance(made, Tensor):
            if made.made is None or made.made.define is None:
                return self.completed(made)
            node, elem = made.made, made.elem
        else:
            node = made
            known = output_elem(call, index)
            elem = known if known is not None else PLAIN[node.dtype]
        if node.dtype != held_in(elem):
            raise UnsupportedError(f"a result of {elem_name(elem)} that is computed as {node.dtype}")
        if elem in MASKS and call.op in WRAPPING:
            mask = MASKS[elem]
            node = pointwise("wrap", (node,), lambda a: binary("and", a, const(mask, a.dtype)))
        node = self.new_nodes.completed(node)
        if index == 0 and call.op in SHAPE_KEEPING and isinstance(call.inputs[0], Tensor):
            _check_kept(call, call.inputs[0].shape, node.shape)
        return Tensor(elem, node.shape, made=node)

    def completed(self, tensor: Tensor) -> Tensor:
        """``tensor`` with its new nodes completed; see NewNodes."""
        node = None if tensor.made is None else self.new_nodes.completed(tensor.made)
        return tensor if node is None or node is tensor.made else Tensor(tensor.elem, node.shape, node, tensor.known)


def _check_function_attributes(call: OnnxCall, function: FunctionProto) -> None:
    known = {*function.attribute, *(a.name for a in function.attribute_proto)}
    for name in call.attributes:
        if name not in known:
            raise call.error(f"it has the attribute {shown(name)}", "the function that it calls has no such attribute.")


def _resolved(node: NodeProto, frame: Scope) -> NodeProto:
    """The node with attributes that refer to the enclosing function replaced by their values."""
    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        given = frame.attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is not None:
            own = made.attribute.add()
            own.CopyFrom(given)
            own.name = attribute.name
    return made


def _attributes(frame: Scope, call: OnnxCall) -> dict[str, AttributeProto]:
    """The attributes to which the body of a function may refer: the given ones and the defaults."""
    found: dict[str, AttributeProto] = {}
    function = frame.library.function(call.proto)
    if function is not None:
        found.update({a.name: a for a in function.attribute_proto})
    else:
        schema = frame.library.schema(call.proto)
        if schema is not None:
            found.update({n: a.default_value for n, a in schema.attributes.items() if _has_default(a)})
    found.update({a.name: a for a in call.proto.attribute})
    return found


def _check_kept(call: OnnxCall, before: Sequence[Dim], after: Sequence[Dim]) -> None:
    known = [(static_size(a), static_size(b)) for a, b in zip(before, after, strict=False)]
    if len(before) != len(after) or any(a != b for a, b in known if a is not None and b is not None):
        raise call.error(f"its parameters do not fit a tensor of shape {list(before)}")


def _has_default(attribute: OpSchema.Attribute) -> bool:
    return attribute.default_value is not None and attribute.default_value.type != AttributeProto.UNDEFINED
