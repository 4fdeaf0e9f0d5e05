"""Calling a compiled graph: tensors in, tensors out, one native call between extern calls.

`BoundGraph` holds everything that does not depend on the library of the tensors. `arrays` calls a graph with numpy's
arrays, and `taskmap.compile.runtime` with PyTorch's tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from taskmap.backend.program.binding import Binding, DimSource, Place, Places, View, span
from taskmap.backend.program.sizes import sizes_function
from taskmap.calls.bound import AnyTensor, BoundProgram
from taskmap.calls.memory import SMALLEST, ConstantBlock, OutputPool
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.types import DType
from taskmap.ir.util.lazy import lazily
from taskmap.targets.platform import Runs
from taskmap.util.metrics import COUNTERS

# Few calls are profiled.
if TYPE_CHECKING:
    from taskmap.calls.profiling import with_ranges as _with_ranges
else:
    _with_ranges = lazily("taskmap.calls.profiling", "with_ranges")

TypeOf = Callable[[DType], Any]
"""The type that a library's tensors have for one of taskmap's."""


class BoundGraph:
    """A compiled graph, called with a list of arguments, which it empties; it returns a list.

    Threads may call it at once. Raises IndexOutOfRangeError when an index from data lies outside its dimension.
    """

    FACTS: ClassVar[Mapping[str, str]] = {}
    """Python's text for each fact of an argument that a symbolic size may come from."""
    profiler: ClassVar[Any]
    """PyTorch's profiler, torch.autograd.profiler, or an object that asks it; while it is on, kernels are ranges."""
    kept: OutputPool | ConstantBlock
    """The memory of large results."""

    def __init__(self, bound: BoundProgram, executable: Runs, on_cpu: bool) -> None:
        """``on_cpu``: tensors lie in the CPU's memory."""
        self.binding = binding = bound.binding
        self.executable = executable
        self._calls = bound.calls
        self._on_cpu = on_cpu
        self._with_ranges: Runs | None = None
        self._specs = Specs(binding, self.type_of)
        self._large = self._specs.large() if on_cpu else frozenset[int]()
        self.read_dims = dims_reader(binding, self.FACTS)
        self.fixed = {s: self.fitted(t, None) for s, t in bound.fixed.items()}
        self.tail: list[AnyTensor] = [self.fixed.get(i) for i in range(binding.inputs, binding.slots)]
        self.constants = array("q", [self.address(self.fixed[s]) for s in binding.constants if s in self.fixed])

    # The library of the tensors.

    @staticmethod
    def type_of(dtype: DType) -> Any:
        """The type of tensors that hold ``dtype``."""
        raise NotImplementedError

    @staticmethod
    def address(tensor: AnyTensor) -> int:
        """The address of a tensor's first element; 0 for None."""
        raise NotImplementedError

    def new(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> AnyTensor:
        """An uninitialised tensor."""
        raise NotImplementedError

    def fitted(self, tensor: AnyTensor, strides: tuple[int, ...] | None) -> AnyTensor:
        """The tensor with the strides that native code expects (None: its own), in memory that it can use: itself, or a
        copy."""
        raise NotImplementedError

    def copied(self, tensor: AnyTensor) -> AnyTensor:
        """A copy of the tensor with the same layout."""
        raise NotImplementedError

    @staticmethod
    def part(base: AnyTensor, place: Place) -> AnyTensor:
        """A part of a tensor's memory; its offset is relative to the tensor's first element."""
        raise NotImplementedError

    def part_of_copy(self, copy: AnyTensor, place: Place) -> AnyTensor:
        """A part of a tensor that ``copied`` made."""
        return self.part(copy, place)

    def fit_arguments(self, values: list[Any], places: Mapping[int, Place]) -> None:
        """Replace the arguments that native code cannot use in place."""
        for slot in self._specs.checked:
            values[slot] = self.fitted(values[slot], places[slot][1])

    def shown(self, given: AnyTensor, used: AnyTensor) -> AnyTensor:
        """The argument that results are views of: as it was given, or the copy that native code used."""
        return used

    def table(self, values: list[Any], places: Mapping[int, Place]) -> array[int]:
        """The addresses of the program's table."""
        return array("q", [self.address(values[s]) for s in self.binding.io])

    # Common to all.

    def __call__(self, args: list[Any]) -> list[Any]:
        """The graph's outputs for ``args``."""
        COUNTERS.count_call()
        values = [*args, *self.tail]
        args.clear()
        return self.run(values, self.constants)

    def keep_together(self, results: Container[int]) -> None:
        """Place the numbered ``results`` of known sizes in one block of memory from now on: they are constants."""
        slots = {o.slot for i, o in enumerate(self.binding.outputs) if i in results and isinstance(o, View)}
        sizes = {slot: size for slot, size in self._specs.sizes_of_results().items() if slot in slots}
        if self._on_cpu and sizes:
            self.kept, self._large = self.block(sizes), frozenset(sizes)

    @staticmethod
    def block(sizes: Mapping[int, int]) -> ConstantBlock:
        """One block of memory for constants of these sizes, by slot."""
        raise NotImplementedError

    def run(self, values: list[Any], constants: array[int]) -> list[Any]:
        """The outputs, given all slots filled before the call and the addresses of the constants."""
        return self._run(values, constants)

    def _run(self, values: list[Any], constants: array[int]) -> list[Any]:
        dims = self.read_dims(values)
        places = self.places(dims)
        given = [(slot, values[slot]) for slot in self._specs.shown]
        self.execute(values, constants, dims, places)
        for slot, tensor in given:
            values[slot] = self.shown(tensor, values[slot])
        return self.results(values, places, dims)

    def places(self, dims: Sequence[int]) -> dict[int, Place]:
        """The place of everything at these sizes."""
        return self._specs.static or self._specs.resolve(dims)

    def execute(self, values: list[Any], constants: array[int], dims: Sequence[int], places: dict[int, Place]) -> None:
        """Run all steps; their results go into their slots of ``values``."""
        self.fit_arguments(values, places)
        for slot, dtype in self._specs.allocate:
            shape, strides, _ = places[slot]
            kept = slot in self._large
            values[slot] = self.kept.take(slot, shape, strides, dtype) if kept else self.new(shape, strides, dtype)
        executable = self._ranged() if self.profiler._is_profiler_enabled else self.executable
        if not self.binding.externs:
            executable(self.table(values, places), dims, constants)
            return

        def extern(index: int, io: array[int]) -> None:
            self._extern(index, values, places, dims)
            for entry, slot in enumerate(self.binding.io):
                io[entry] = self.address(values[slot])

        executable(self.table(values, places), dims, constants, extern)

    def _ranged(self) -> Runs:
        """The executable for calls under torch.profiler."""
        if self._with_ranges is None:
            self._with_ranges = _with_ranges(self.executable)
        return self._with_ranges

    def results(self, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> list[Any]:
        """The graph's results, given all slots."""
        specs = self._specs
        if specs.plain is not None:
            return [values[s] for s in specs.plain]
        results = [self._output(out, values, places, dims) for out in specs.outputs]
        for i, whole, out in specs.parts:
            results[i] = self.part_of_copy(results[whole], places[id(out)])
        return results[: specs.visible]

    def _extern(self, index: int, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> None:
        step = self.binding.externs[index]
        result: Any = self._calls[index]([self._view(view, values, places) for view in step.reads], dims)
        for part in step.results:
            tensor = result if part.item is None else result[part.item]
            if part.spec is not None:
                shape, strides, _ = places[part.slot]
                wanted = self.type_of(part.spec.dtype)
                if tuple(tensor.shape) != shape or tensor.dtype != wanted:
                    raise GraphError(
                        f"{step.name} returned {tensor.dtype}{list(tensor.shape)}",
                        where=step.where or None,
                        why=f"it was compiled to return {wanted}{list(shape)}.",
                    )
                tensor = self.fitted(tensor, strides)
            values[part.slot] = tensor
        for slot in step.dead:
            values[slot] = None
        for slot in step.allocate:
            shape, strides, _ = places[slot]
            values[slot] = self.new(shape, strides, self.type_of(self.binding.made[slot].dtype))

    def _view(self, view: View, values: list[Any], places: dict[int, Place]) -> AnyTensor:
        base = values[view.slot]
        return base if view.spec is None else self.part(base, places[id(view)])

    def _output(self, out: View | Dim | None, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> Any:
        if isinstance(out, View):
            if out.of is not None:
                return None
            tensor = self._view(out, values, places)
            return self.copied(tensor) if out.copy else tensor
        return self._specs.sizes[out](dims)[0] if isinstance(out, Expr) else out


class Specs:
    """The decisions of a call that depend on a binding alone."""

    def __init__(self, binding: Binding, type_of: TypeOf) -> None:
        places = Places(binding)
        self.static, self.resolve = places.static, places.resolve
        self.checked = tuple(binding.checked)
        self.allocate = [(slot, type_of(binding.made[slot].dtype)) for slot in binding.allocate]
        self.outputs = binding.outputs
        dims = [var for var, _ in binding.dims]
        self.sizes = {out: sizes_function([out], dims) for out in self.outputs if isinstance(out, Expr)}
        self.parts = [(i, o.of, o) for i, o in enumerate(self.outputs) if isinstance(o, View) and o.of is not None]
        viewed = {o.slot for o in self.outputs if isinstance(o, View) and o.of is None and not o.copy}
        self.shown = tuple(slot for slot in self.checked if slot in viewed)
        # If every result is a whole slot, a call has nothing to decide.
        self.visible = len(self.outputs) - binding.hidden
        seen = self.outputs[: self.visible]
        plain = [o.slot for o in seen if isinstance(o, View) and o.spec is None and not o.copy]
        self.plain = plain if len(plain) == len(seen) else None

    def sizes_of_results(self) -> dict[int, int]:
        """The bytes of the results that a call allocates, by slot; nothing if their sizes depend on the call."""
        if self.static is None:
            return {}
        return {slot: span(*self.static[slot][:2]) * int(dtype.itemsize) for slot, dtype in self.allocate}

    def large(self) -> frozenset[int]:
        """The slots for which reusing memory pays: large ones of static size."""
        return frozenset(slot for slot, size in self.sizes_of_results().items() if size >= SMALLEST)


def dims_reader(binding: Binding, facts: Mapping[str, str]) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """The function that reads the symbolic sizes from the arguments. ``facts``: see BoundGraph.FACTS."""
    parts = [f"{_dim_text(var, source, facts)}, " for var, source in binding.dims]
    # The text holds only numbers.
    reader: Callable[[Sequence[Any]], tuple[int, ...]] = eval(f"lambda a: ({''.join(parts)})", {"int": int, "max": max})
    return reader


def _dim_text(var: Var, source: DimSource, facts: Mapping[str, str]) -> str:
    match source:
        case ("input", int(i)):
            return f"int(a[{i}])"
        case ("size" | "stride", int(i), int(d)) if (fact := str(source[0])) in facts:
            return f"a[{i}].{facts[fact].format(d)}"
        case ("offset", int(i)) if "offset" in facts:
            return f"a[{i}].{facts['offset']}"
        case ("line", int(slope), int(start), *place):
            return f"max({slope} * {_dim_text(var, tuple(place), facts)} + {start}, 1)"
    raise GraphError(f"the size {var!r} comes from {source!r}, which no argument of a call provides")
