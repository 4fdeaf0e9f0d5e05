"""The FX reader: graphs of ATen operators, as AOTAutograd makes them, become taskmap's graph.

Every operator is lowered to native nodes, or becomes one extern node that PyTorch runs. The reader checks each
lowering's result against PyTorch's own (``meta["val"]``), so a lowering with a wrong type or shape leads to an extern
node, never to a wrong answer.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from taskmap.graph.extern import Slot
from taskmap.graph.importers.torch.aten import ATEN
from taskmap.graph.importers.torch.empty_tensors import settle_empty_tensors
from taskmap.graph.importers.torch.homes import Homes, viewed_arguments
from taskmap.graph.importers.torch.long_attention import left_to_pytorch
from taskmap.graph.importers.torch.origin import origin_of
from taskmap.graph.importers.torch.results import read_results
from taskmap.graph.importers.torch.storage import dense_order, storage_root
from taskmap.graph.importers.torch.symbols import Symbols
from taskmap.graph.importers.torch.table import AtenEntry, Out
from taskmap.graph.importers.torch.types import CPU, dtype_of, refusal
from taskmap.graph.nodes import (
    ConstantNode,
    ExternNode,
    Graph,
    InputNode,
    ItemNode,
    Node,
    OperatorNode,
    Origin,
    OriginContext,
    SizeNode,
    rebuilt,
    topological,
)
from taskmap.graph.ops.rearrange import strided_view
from taskmap.graph.ops.views import copy
from taskmap.ir.construct import static_size
from taskmap.ir.errors import GraphError, ImportGraphError, TypeMismatchError, UnsupportedError
from taskmap.ir.nodes import Dim, Expr
from taskmap.ir.types import DType, i64

IGNORED_OPTIONS = frozenset({"layout", "device", "pin_memory", "memory_format", "requires_grad"})
"""Options for where a result is stored: placement is decided later, and outputs get their strides from PyTorch."""
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
OPAQUE = DType("tuple", 0, "x")


def import_fx(
    gm: fx.GraphModule, example_inputs: Sequence[Any], constant_inputs: Iterable[int] = (), device: torch.device = CPU
) -> Graph:
    """The graph of ``gm``, a functional graph of ATen operators.

    ``example_inputs`` describe inputs without ``meta["val"]``. ``constant_inputs`` are the positions of inputs that
    stay the same from call to call. Tensors that are not on ``device`` are left to PyTorch. Raises ImportGraphError for
    a graph with mutation or with sizes that depend on data.
    """
    return read_fx(gm, example_inputs, constant_inputs, device)[0]


def read_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    constant_inputs: Iterable[int] = (),
    device: torch.device = CPU,
    kept: Sequence[fx.Node] = (),
    free: Container[fx.Node] = (),
) -> tuple[Graph, Symbols]:
    """As import_fx, but also returns its symbols in PyTorch's terms. ``kept``: values that become the last outputs.
    ``free``: results that may have any strides."""
    settle_empty_tensors(gm)
    reader = _Reader(gm, example_inputs, device, kept, free)
    for node in gm.graph.nodes:
        reader.read(node)
    symbols = reader.symbols
    outputs = reader.laid_outputs()
    graph = Graph(reader.inputs, outputs, symbols.dims(), frozenset(constant_inputs), dict(symbols.hints))
    return graph, symbols


class _Reader:
    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        device: torch.device,
        kept: Sequence[fx.Node],
        free: Container[fx.Node],
    ) -> None:
        self.gm = gm
        self.kept = kept
        self.free = free
        self.device = device
        self.example_inputs = example_inputs
        self.symbols = Symbols()
        self.inputs: list[InputNode] = []
        self.outputs: list[Node | None] = []
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[str, Any] = {}
        self.results: dict[fx.Node, Node] = {}
        self.laid: dict[Node, tuple[Dim, ...]] = {}
        self.homes = Homes(gm)

    def read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self._placeholder(node)
        elif node.op == "get_attr":
            self.values[node] = self._attribute(str(node.target))
        elif node.op == "call_function":
            self.values[node] = self._call(node)
        elif node.op == "output":
            self._outputs(node)
        else:
            raise ImportGraphError(f"the graph calls {node.target} by {node.op}", why="only ATen operators can be read")

    # Inputs and constants.

    def _placeholder(self, node: fx.Node) -> Any:
        place = len(self.inputs)
        value = node.meta.get("val", self.example_inputs[place] if place < len(self.example_inputs) else None)
        node.meta.setdefault("val", value)
        if isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                self.symbols.find(size, ("size", place, d))
            strides = self._strides(value)
            made = InputNode((), self._shape(value), dtype_of(value.dtype), place, strides=strides)
            self.inputs.append(made)
            self.homes.note(made, value)
            return made
        self.symbols.find(value, ("input", place))
        self.inputs.append(InputNode((), (), i64, place, is_size=True))
        return self._number(value) if isinstance(value, SYMBOLIC) else value

    def _attribute(self, name: str) -> Any:
        if name not in self.constants:
            value: Any = self.gm
            for part in name.split("."):
                value = getattr(value, part)
            self.constants[name] = self._constant(value) if isinstance(value, torch.Tensor) else value
        return self.constants[name]

    def _constant(self, value: torch.Tensor) -> Node:
        with unset_fake_temporarily():
            value = value.detach()
        return ConstantNode((), self._shape(value), dtype_of(value.dtype), value, strides=self._strides(value))

    def _nothing(self, like: torch.Tensor) -> Node:
        """A tensor without elements."""
        with unset_fake_temporarily():
            return self._constant(torch.empty(like.shape, dtype=like.dtype, device=self.device))

    # Operators.

    def _call(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self._item(node, value)
        if isinstance(value, SYMBOLIC):
            return self._number(value)
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise ImportGraphError(f"the graph mutates a tensor by {node.target}", why="the graph must be functional")
        origin = origin_of(node)
        with OriginContext(origin):
            try:
                return self._at_home(self._lowered(node, value, origin), value)
            except (UnsupportedError, GraphError, TypeMismatchError) as refused:
                return self._extern(node, value, refused.what)

    def _lowered(self, node: fx.Node, value: Any, origin: Origin) -> Any:
        if node.target is torch.ops.aten.as_strided.default:
            return self._strided(node, value)
        name = str(node.target).removeprefix("aten.")
        entry = ATEN.entries.get(name)
        if entry is None:
            raise UnsupportedError("no taskmap operator")
        left = left_to_pytorch(node, self.device)
        if left is not None:
            raise UnsupportedError(left)
        if entry.first_only and read_results(node) - {0}:
            raise UnsupportedError("a result other than the first is read")
        self._refuse(node, value, entry)
        args, kwargs = self._positional(node)
        arguments = [self._argument(a) for a in args]
        options = {key: self._argument(a) for key, a in kwargs.items() if key not in IGNORED_OPTIONS}
        if entry.wants_read:
            options["read"] = read_results(node)
        outs = self._outs(value)
        made = entry.function(outs, *arguments, **options) if entry.wants_out else entry.function(*arguments, **options)
        forms: dict[Node, tuple[Dim, ...]] = {}
        made = self._verified(made, value, outs, forms)
        return _in_forms(made, forms, origin) if forms else made

    def _at_home(self, made: Any, value: Any) -> Any:
        """``made``, or a copy of it if the caller could notice that it shares another value's memory."""
        if isinstance(made, (list, tuple)):
            return [self._at_home(m, v) for m, v in zip(made, value, strict=True)]
        if not isinstance(made, Node) or not isinstance(value, torch.Tensor) or made.dtype.kind == "x":
            return made
        if not self.homes.is_strange(made, value):
            return made
        made = replace(copy(made), strides=self._strides(value))
        self.homes.note(made, value)
        return made

    def _strided(self, node: fx.Node, value: torch.Tensor) -> Node:
        """as_strided addresses the storage behind its argument: here, the elements of the tensor that fills it."""
        root = storage_root(node.all_input_nodes[0])
        order = dense_order(root.meta["val"])
        self._refuse(node, value, AtenEntry(strided_view))
        if order is None or root.meta["val"].dtype != value.dtype:
            raise UnsupportedError("as_strided of an input that is a part of its storage")
        strides = self._strides(value)
        offset = self.symbols.dim(value.storage_offset())
        return strided_view(self.values[root], order, self._shape(value), strides or (), offset)

    def _refuse(self, node: fx.Node, value: Any, entry: AtenEntry) -> None:
        """Raises UnsupportedError for tensors with which taskmap cannot compute."""
        for source in node.all_input_nodes:
            for tensor in _tensors(source.meta.get("val")):
                reason = refusal(tensor, entry.empty, self.device, read=True, moved=entry.moves)
                if reason is not None:
                    raise UnsupportedError(reason)
        results = _tensors(value)
        for tensor in results:
            reason = refusal(tensor, len(results) > 1, self.device, moved=entry.moves)
            if reason is not None:
                raise UnsupportedError(reason)

    def _positional(self, node: fx.Node) -> tuple[Sequence[Any], dict[str, Any]]:
        """The call's arguments, with options moved to their positions unless the schema makes them keyword-only."""
        schema = getattr(node.target, "_schema", None)
        if not node.kwargs or schema is None:
            return node.args, node.kwargs
        args, kwargs = list(node.args), dict(node.kwargs)
        for place, parameter in enumerate(schema.arguments):
            if parameter.kwarg_only or not any(p.name in kwargs for p in schema.arguments[place:] if not p.kwarg_only):
                break
            if place >= len(args):
                args.append(kwargs.pop(parameter.name, parameter.default_value))
        return args, kwargs

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, complex):
            raise UnsupportedError("a complex number")
        return value

    def _outs(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Out(self._shape(value), dtype_of(value.dtype))
        return [self._outs(v) for v in value] if isinstance(value, (list, tuple)) else None

    def _verified(self, made: Any, value: Any, outs: Any, forms: dict[Node, tuple[Dim, ...]]) -> Any:
        """``made``, each node checked against PyTorch's type and shape. ``forms`` receives PyTorch's shapes where it
        writes them in another form."""
        if isinstance(outs, list):
            return [self._verified(m, v, o, forms) for m, v, o in zip(made, value, outs, strict=True)]
        if outs is None:
            return made
        if any(n == 0 for n in outs.shape):
            if not all(isinstance(n, int) for n in outs.shape):
                raise UnsupportedError("a tensor without elements, of symbolic sizes")
            return self._nothing(value)
        if made is None:
            return None
        known = [static_size(n) for n in made.shape]
        right = len(known) == len(outs.shape) and all(
            a is None or not isinstance(b, int) or a == b for a, b in zip(known, outs.shape, strict=True)
        )
        if made.dtype != outs.dtype or not right:
            raise UnsupportedError(
                f"its lowering gives {made.dtype}{list(made.shape)}, PyTorch {outs.dtype}{list(outs.shape)}"
            )
        if made.shape != outs.shape and isinstance(made, OperatorNode):
            forms[made] = outs.shape
        return made

    # Calls made by PyTorch.

    def _extern(self, node: fx.Node, value: Any, reason: str) -> Any:
        inputs: list[Node] = []
        if (
            node.target is torch.ops.aten.as_strided.default
            and storage_root(node.all_input_nodes[0]).op != "placeholder"
        ):
            raise ImportGraphError(f"{node.name} addresses storage that does not belong to a tensor of the graph")
        args, kwargs = self._slots(node.args, inputs), self._slots(dict(node.kwargs), inputs)
        shape: tuple[Dim, ...] = ()
        dtype, strides = OPAQUE, None
        if isinstance(value, torch.Tensor):
            shape, dtype, strides = self._shape(value), dtype_of(value.dtype), self._strides(value)
        call = (node.target, args, kwargs, reason)
        slot = next((args[k] for k in viewed_arguments(node.target) if k < len(args)), None)
        view_of = slot.index if isinstance(slot, Slot) else None
        return ExternNode(tuple(inputs), shape, dtype, *call, view_of=view_of, strides=strides)

    def _slots(self, value: Any, inputs: list[Node]) -> Any:
        if isinstance(value, fx.Node):
            known = self.values[value]
            return self._slots(self._as_eager(value, known) if isinstance(known, Node) else known, inputs)
        if isinstance(value, Node):
            if value not in inputs:
                inputs.append(value)
            return Slot(inputs.index(value))
        if isinstance(value, dict):
            return {key: self._slots(v, inputs) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self._slots(v, inputs) for v in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _item(self, node: fx.Node, value: Any) -> Any:
        source, place = node.args
        assert isinstance(place, int)
        whole = self.values[source]  # type: ignore[index]  # the first argument of getitem is a node
        if not isinstance(whole, Node):
            return whole[place]
        if isinstance(value, SYMBOLIC):
            return self._number(value)
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            raise ImportGraphError(f"{source} returns a value that is neither a tensor nor a size")
        strides = self._strides(value)
        return ItemNode(
            (whole,), self._shape(value), dtype_of(value.dtype), place, strides=strides, origin=whole.origin
        )

    # Results.

    def _outputs(self, node: fx.Node) -> None:
        owners: dict[Node, fx.Node] = {}
        returned = node.args[0]
        for result in [*(returned if isinstance(returned, (tuple, list)) else [returned]), *self.kept]:
            self.outputs.append(self._output(result, owners))

    def _output(self, result: Any, owners: dict[Node, fx.Node]) -> Node | None:
        if not isinstance(result, fx.Node):
            return None if result is None else self._size(result)
        value = self.values[result]
        if not isinstance(value, Node):
            return None if value is None else self._size(value)
        if result not in self.results:
            own = value if result in self.free and value.is_compute else self._as_eager(result, value)
            renamed = isinstance(own, InputNode) and result.op != "placeholder"
            if renamed or owners.setdefault(own, result) is not result:
                own = self._copied(own, result)
            self.results[result] = own
        return self.results[result]

    def _size(self, value: Any) -> Node:
        return SizeNode((), (), i64, value if isinstance(value, Expr) else self._number(value))

    def _as_eager(self, source: fx.Node, node: Node) -> Node:
        """``node`` with the strides that PyTorch gives it, on which an extern and a caller may rely."""
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or node.dtype.kind == "x":
            return node
        strides = self._strides(value)
        if node.strides is None and strides is not None:
            self.laid.setdefault(node, strides)
        return node if self.laid.get(node, node.strides) == strides else self._copied(node, source)

    def _copied(self, node: Node, source: fx.Node) -> Node:
        """A copy of ``node`` with the strides and the origin of ``source``."""
        return replace(copy(node), strides=self._strides(source.meta["val"]), origin=origin_of(source))

    def laid_outputs(self) -> list[Node | None]:
        """The outputs of the graph in which every value has the strides that it was found to need (``laid``)."""
        nodes = topological(n for n in self.outputs if n is not None)
        made = rebuilt(nodes, lambda now, was: replace(now, strides=self.laid[was]) if was in self.laid else now)
        return [None if n is None else made[n] for n in self.outputs]

    # Sizes.

    def _number(self, value: Any) -> Any:
        """A number as Python has it if it is known, for a size that guards have fixed too; else an expression."""
        if isinstance(value, torch.SymInt):
            return self.symbols.dim(value)
        return value if isinstance(value, (int, float)) else self.symbols.number(value)

    def _shape(self, value: torch.Tensor) -> tuple[Dim, ...]:
        return tuple(self.symbols.dim(n) for n in value.shape)

    def _strides(self, value: torch.Tensor) -> tuple[Dim, ...] | None:
        if value.layout != torch.strided:
            return None
        return tuple(self.symbols.dim(n) for n in value.stride())


def _in_forms(made: Any, forms: Mapping[Node, tuple[Dim, ...]], origin: Origin) -> Any:
    """The results ``made`` with the shapes ``forms`` of those nodes that the operator of ``origin`` added."""

    def visit(now: Node, was: Node) -> Node:
        if was not in forms or not isinstance(now, OperatorNode) or was.origin is not origin:
            return now
        return replace(now, shape=forms[was], define=replace(now.define, shape=forms[was]))

    nodes = topological(_tree(made), lambda n: n.origin is not origin)
    return _replaced(made, rebuilt(nodes, visit))


def _replaced(made: Any, now: Mapping[Node, Node]) -> Any:
    if isinstance(made, (list, tuple)):
        return [_replaced(m, now) for m in made]
    return now[made] if isinstance(made, Node) else made


def _tree(made: Any) -> list[Node]:
    if isinstance(made, Node):
        return [made]
    return [n for m in made for n in _tree(m)] if isinstance(made, (list, tuple)) else []


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
