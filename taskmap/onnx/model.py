"""An ONNX model that can be called with numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from taskmap.compile.session import Session, new_session
from taskmap.graph.importers.onnx import Model, Port, load
from taskmap.graph.importers.onnx.read.elements import STRING, elem_name, numpy_type
from taskmap.graph.importers.onnx.read.frames import first_frame
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.importers.onnx.strings import STRINGS
from taskmap.ir.errors import ImportGraphError, InputError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.direct_call import DirectCall, Key, key_of
from taskmap.onnx.direct_chain import DirectChain, direct_way
from taskmap.onnx.engines import compiled_by
from taskmap.onnx.named_inputs import as_array, as_strings, in_order
from taskmap.onnx.points import Refusal, Segment
from taskmap.onnx.program import Engine, HostOperator, OnnxProgram
from taskmap.onnx.values import Given, arrays, given
from taskmap.options import Options
from taskmap.targets.devices import CPU
from taskmap.util.gc_pause import collector_paused
from taskmap.util.progress import waiting

# It needs PyTorch, which only GPUs need.
if TYPE_CHECKING:
    from taskmap.targets.torch_devices import current_gpu as _current_gpu
else:
    _current_gpu = lazily("taskmap.targets.torch_devices", "current_gpu")

Array = NDArray[Any]


MOST_DIRECT = 64
"""The number of combinations of shapes and types whose direct call is kept."""


class OnnxModel:
    """A model: ``model(x, y)`` or ``model({"x": x})`` gives its outputs as a list of arrays, in order.

    Graphs are compiled at the first call with inputs of a kind, if possible for all sizes of named dimensions (unless
    ``general`` is false). ``named``: such a graph has names for the sizes inside it.
    Raises InputError for inputs that do not fit, and the errors of compiling.
    """

    def __init__(
        self, model: Model, engine: Engine, session: Session | None = None, *, general: bool = True, named: bool = True
    ) -> None:
        self.model = model
        self.session = session
        self.program = OnnxProgram(
            lambda values: first_frame(model, {k: v for k, v in values.items() if v is not None}),
            [port.name for port in model.inputs],
            engine,
            [port.type.shape if port.type is not None else None for port in model.inputs] if general else None,
            named,
        )
        self._names = [port.name for port in model.inputs]
        self._named = set(self._names)
        on_cpu = session is not None and session.platform.device.type == "cpu" and not session.options.profile
        self._is_plain = on_cpu and all(port.kind == "tensor" for port in (*model.inputs, *model.outputs))
        self._direct: dict[Key, DirectCall | DirectChain | None] = {}
        self._deciding: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs, in order."""
        return self.model.outputs

    @property
    def host_operators(self) -> int:
        """The number of operators in the graphs made so far that run on the host."""
        return len(self.on_host)

    @property
    def on_host(self) -> tuple[HostOperator, ...]:
        """The operators in the graphs made so far that run on the host, with reasons."""
        return tuple(self.program.on_host())

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The reasons why graphs were made only for the given sizes: the nodes that prevent one graph for all sizes."""
        return tuple(self.program.refusals())

    @property
    def graphs(self) -> tuple[int, int]:
        """The number of graphs made so far, and how many of them serve more than one set of sizes."""
        made = self.program.segments()
        return len(made), sum(s.guard is not None for s in made)

    def generalise(self, arrays: Sequence[Any]) -> Segment | None:
        """The graph for all sizes, with example inputs whose values are not used; None if there is none."""
        values = [_given(port, array) for port, array in zip(self.inputs, arrays, strict=True)]
        self._check_names(values)
        return self.program.generalise(values)

    def __call__(self, *args: Any, **named: Any) -> list[Any]:
        """The outputs, for inputs given in order, by name, or as one mapping from names."""
        inputs = self._plain_inputs(args, named)
        key = None if inputs is None else key_of(inputs, self._deciding)
        if key is None or inputs is None:
            return self._call(args, named)[1]
        direct = self._direct.get(key)
        found = None if direct is None else direct(inputs)
        if found is not None:
            return found
        values, outputs = self._call(args, named)
        self._deciding = self.program.deciding(values)
        key = key_of(inputs, self._deciding)
        if key is not None and key not in self._direct and len(self._direct) < MOST_DIRECT:
            elems = [0 if p.type is None else p.type.elem for p in self.outputs]
            self._direct[key] = direct_way(self.program, values, inputs, elems)
        elif isinstance(direct, DirectChain):
            direct.learn(inputs)
        return outputs

    def _plain_inputs(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any] | None:
        """The inputs in order, if all are given in order or in one mapping; None if they need a closer look."""
        if named or not self._is_plain:
            return None
        if len(args) == 1 and isinstance(args[0], dict):
            return [args[0][name] for name in self._names] if args[0].keys() == self._named else None
        return args if len(args) == len(self._names) else None

    def _call(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The inputs as the program takes them, and the outputs."""
        with STRINGS.in_use():
            values = [_given(port, array) for port, array in zip(self.inputs, self._ordered(args, named), strict=True)]
            self._check_names(values)
            results = _of_their_own(self.program(values), values)
            for port, result in zip(self.outputs, results, strict=True):
                _check_result(port, result)
            return values, [arrays(v) for v in results]

    def _ordered(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        optional = [port.name for port in self.inputs if port.kind == "optional"]
        return in_order([port.name for port in self.inputs], optional, args, named, shown)

    def _check_names(self, values: Sequence[Any]) -> None:
        """Checks that each named dimension has one size."""
        sizes: dict[str, tuple[int, str]] = {}
        for port, value in zip(self.inputs, values, strict=True):
            if not port.is_tensor or port.type is None or port.type.shape is None:
                continue
            for wanted, size in zip(port.type.shape, value.tensor.shape, strict=True):
                if not isinstance(wanted, str):
                    continue
                known, where = sizes.setdefault(wanted, (int(size), port.name))
                if known != size:
                    raise InputError(
                        f"the dimension {shown(wanted)} is {size} in the input {shown(port.name)}",
                        why=f"it is {known} in the input {shown(where)}.",
                    )


def _of_their_own(results: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The results; one that is an input or another result is copied: the caller may write to each."""
    seen = {id(v.tensor) for v in values if isinstance(v, Given)}

    def own(result: Any) -> Any:
        if isinstance(result, list):
            return [own(item) for item in result]
        if not isinstance(result, Given):
            return result
        if id(result.tensor) in seen:
            return Given(result.elem, result.tensor.copy())
        seen.add(id(result.tensor))
        return result

    return [own(result) for result in results]


def _check_result(port: Port, result: Any) -> None:
    """Raises ImportGraphError if a result differs from the model's declaration in kind or element type."""
    structured = result is None or isinstance(result, list)
    if (port.kind == "tensor" and structured) or (port.kind == "sequence" and not isinstance(result, list)):
        raise ImportGraphError(f"the output {shown(port.name)} is not a {port.kind}", why="the model declares one.")
    declared = port.type.elem if port.type is not None else 0
    if isinstance(result, Given) and declared not in (0, result.elem):
        raise ImportGraphError(
            f"the output {shown(port.name)} is of {elem_name(result.elem)}",
            why=f"the model declares {elem_name(declared)}.",
        )


def _given(port: Port, array: Any) -> Any:
    """An input, checked against the model's declaration."""
    name = shown(port.name)
    if not port.is_tensor:
        return _structured(port, array)
    assert port.type is not None
    elem = port.type.elem
    if array is None or (isinstance(array, (list, tuple)) and elem != STRING and not _is_numeric(array)):
        raise InputError(f"the input {name} must be an array")
    if elem == STRING:
        array = as_strings(name, array)
    else:
        wanted = numpy_type(elem)
        array = as_array(name, array, wanted, f"{wanted} ({elem_name(elem)})")
    if port.type.shape is not None:
        _check_shape(name, array.shape, port.type.shape)
    return given(array, elem)


def _is_numeric(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "fiub"
    except ValueError:
        return False


def _check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> None:
    text = ", ".join("?" if n is None else str(n) for n in wanted)
    if len(shape) != len(wanted):
        raise InputError(f"the input {name} has shape {list(shape)}", why=f"the model takes [{text}].")
    for size, n in zip(shape, wanted, strict=True):
        if isinstance(n, int) and n != size:
            raise InputError(f"the input {name} has shape {list(shape)}", why=f"the model takes [{text}].")


def _structured(port: Port, value: Any) -> Any:
    """A sequence, an optional or a map: its arrays determine the element types; a map is its keys and its values."""
    if value is None:
        return None
    if port.pair is not None and isinstance(value, Mapping):
        return [given(a, e) for a, e in zip(_pairs(shown(port.name), value, port.pair), port.pair, strict=True)]
    if port.kind == "map":
        raise InputError(f"the input {shown(port.name)} must be a dict")
    if isinstance(value, (list, tuple)):
        return [_structured(port, v) for v in value]
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return given(as_strings(shown(port.name), array), STRING)
    return given(array, elem_of(array.dtype))


def _pairs(name: str, value: Mapping[Any, Any], elems: tuple[int, int]) -> list[Array]:
    """The keys of a map, in order, and their values, each as an array of one of the element types ``elems``."""
    try:
        keys = sorted(value)
        listed = (keys, [value[k] for k in keys])
        return [
            as_strings(name, np.array(items, object)) if elem == STRING else np.array(items, numpy_type(elem))
            for items, elem in zip(listed, elems, strict=True)
        ]
    except (TypeError, ValueError, OverflowError) as error:
        kinds = " to ".join(map(elem_name, elems))
        raise InputError(f"the input {name} is not a map from {kinds}", why=str(error)) from error


def elem_of(dtype: np.dtype[Any]) -> int:
    """The element type of an array. Raises InputError for one that ONNX lacks."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError) as error:
        raise InputError(f"an array of {dtype} is not an ONNX tensor") from error


def load_model(
    source: str | Path | bytes | ModelProto, options: Options | None = None, *, engine: Engine | None = None
) -> OnnxModel:
    """The model in a file, in bytes, or as an object, ready to be called.

    Raises ImportGraphError for an invalid model, UnsupportedError that names every missing operator, and
    NoDeviceError for the target "cuda" without a GPU.
    """
    with waiting("reading the model"), collector_paused():
        model = load(source)
    if engine is not None:
        return OnnxModel(model, engine)
    options = options or Options()
    session = new_session(options, _current_gpu() if options.target == "cuda" else CPU)
    return OnnxModel(model, compiled_by(session), session)
