"""Calling a compiled graph from PyTorch: tensors in, tensors out, one native call between extern calls."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._dynamo import guards
from torch.autograd import profiler as _profiler

from taskmap.backend.program.binding import Binding, DimSource, Place, Places, View, span
from taskmap.backend.program.sizes import sizes_function
from taskmap.compile.assemble import BoundProgram
from taskmap.compile.constant_memory import ConstantMemory
from taskmap.compile.output_pool import SMALLEST, KeptOutputs
from taskmap.compile.profiling import with_ranges
from taskmap.graph.importers.torch.types import dtype_of, torch_dtype
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.targets.on_gpu import on_gpu
from taskmap.targets.platform import Runs
from taskmap.util.metrics import COUNTERS

CPU = torch.device("cpu")
_EMPTY = getattr(guards, "_empty_strided_cpu", None)  # a tenth of the cost of torch.empty_strided
_REINTERPRET = getattr(guards, "_reinterpret_tensor", None)


class CompiledGraph:
    """A compiled graph as AOTAutograd calls it: with a list of arguments, which it empties; it returns a list.

    Threads may call it at once. Raises IndexOutOfRangeError when an index from data lies outside its dimension, and
    DeviceMemoryError when a GPU has no memory left.
    """

    def __init__(
        self, bound: BoundProgram, executable: Runs, device: torch.device = CPU, alignment: int | None = None
    ) -> None:
        """``alignment``: the address of every tensor used by native code must be a multiple of this many bytes."""
        self._boxed_call = True  # on the instance, where wrappers of callables look for it
        self.binding = binding = bound.binding
        self._calls = bound.calls
        self.executable = executable
        self.device = device
        self._alignment = alignment
        self._empty = _allocator(device)
        self._specs = _Specs(binding)
        self._with_ranges: Runs | None = None
        self.kept: KeptOutputs | ConstantMemory = KeptOutputs()
        self._large = self._specs.large() if device.type == "cpu" else frozenset()
        self.read_dims = _dims_reader(binding)
        self.fixed = {s: t if self._is_usable(t) else self._conform(t, t.stride()) for s, t in bound.fixed.items()}
        self.tail: list[torch.Tensor | None] = [self.fixed.get(i) for i in range(binding.inputs, binding.slots)]
        self.constants = array("q", [self.fixed[s].data_ptr() for s in binding.constants if s in self.fixed])

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
        if self.device.type == "cpu" and sizes:
            self.kept, self._large = ConstantMemory(sizes), frozenset(sizes)

    def run(self, values: list[Any], constants: array[int]) -> list[Any]:
        """The outputs, given all slots filled before the call and the addresses of the constants."""
        if self.device.type != "cuda":
            return self._run(values, constants)
        with on_gpu(self.device):
            return self._run(values, constants)

    def _run(self, values: list[Any], constants: array[int]) -> list[Any]:
        dims = self.read_dims(values)
        places = self.places(dims)
        self.execute(values, constants, dims, places)
        return self.results(values, places, dims)

    def places(self, dims: Sequence[int]) -> dict[int, Place]:
        """The place of everything at these sizes."""
        return self._specs.static or self._specs.resolve(dims)

    def execute(self, values: list[Any], constants: array[int], dims: Sequence[int], places: dict[int, Place]) -> None:
        """Run all steps; their results go into their slots of ``values``."""
        binding, specs = self.binding, self._specs
        for slot in specs.checked:
            given, strides = values[slot], places[slot][1]
            if given.stride() != strides or given.is_neg() or not (self._alignment is None or self._is_usable(given)):
                values[slot] = self._conform(given, strides)
        for slot, dtype in specs.allocate:
            shape, strides, _ = places[slot]
            make = self._empty if slot not in self._large else partial(self.kept.take, slot)
            values[slot] = make(shape, strides, dtype)
        executable = self._ranged() if _profiler._is_profiler_enabled else self.executable
        if not binding.externs:
            io = array("q", [values[s].data_ptr() for s in binding.io])
            if 0 in io and self._fill_zero_tensors(values, places):
                io = array("q", [values[s].data_ptr() for s in binding.io])
            executable(io, dims, constants)
            return
        self._fill_zero_tensors(values, places)
        io = array("q", [_address(values[s]) for s in binding.io])

        def extern(index: int, io: array[int]) -> None:
            self._extern(index, values, places, dims)
            for entry, slot in enumerate(binding.io):
                io[entry] = _address(values[slot])

        executable(io, dims, constants, extern)

    def _fill_zero_tensors(self, values: list[Any], places: dict[int, Place]) -> bool:
        """Give memory to inputs without any, in which autograd passes gradients that are zero; false if there are none.
        Empty tensors have the address 0, too."""
        found = [slot for slot in self._specs.checked if values[slot]._is_zerotensor()]
        for slot in found:
            values[slot] = self._conform(values[slot], places[slot][1])
        return bool(found)

    def _ranged(self) -> Runs:
        """The executable for calls under torch.profiler."""
        if self._with_ranges is None:
            self._with_ranges = with_ranges(self.executable)
        return self._with_ranges

    def results(self, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> list[Any]:
        """The graph's results, given all slots."""
        specs = self._specs
        if specs.plain is not None:
            return [values[s] for s in specs.plain]
        results = [self._output(out, values, places, dims) for out in specs.outputs]
        for i, whole, out in specs.parts:
            shape, strides, offset = places[id(out)]
            base = results[whole]
            results[i] = _part(base, shape, strides, offset - base.storage_offset())  # a copy begins at its storage's
        return results[: specs.visible]

    def _extern(self, index: int, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> None:
        step = self.binding.externs[index]
        result: Any = self._calls[index]([_view(view, values, places) for view in step.reads], dims)
        for part in step.results:
            tensor = result if part.item is None else result[part.item]
            if part.spec is not None:
                shape, strides, _ = places[part.slot]
                if tuple(tensor.shape) != shape or dtype_of(tensor.dtype) != part.spec.dtype:
                    raise GraphError(
                        f"{step.name} returned {tensor.dtype}{list(tensor.shape)}",
                        where=step.where or None,
                        why=f"it was compiled to return {torch_dtype(part.spec.dtype)}{list(shape)}.",
                    )
                if tensor.stride() != strides or tensor.is_neg() or not self._is_usable(tensor):
                    tensor = self._conform(tensor, strides)
            values[part.slot] = tensor
        for slot in step.dead:
            values[slot] = None
        for slot in step.allocate:
            shape, strides, _ = places[slot]
            values[slot] = self._empty(shape, strides, torch_dtype(self.binding.made[slot].dtype))

    def _is_usable(self, tensor: torch.Tensor) -> bool:
        """True if native code can use the tensor in place. A tensor without dimensions may be on the CPU."""
        if self._alignment is None:
            return True
        return tensor.device == self.device and tensor.data_ptr() % self._alignment == 0

    def _conform(self, given: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """A copy with the strides that native code expects, in memory that it can use."""
        shape = tuple(given.shape)
        if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
            # Elements that share memory cannot be written one by one: copy each once, then expand.
            first = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
            one = given[tuple(slice(0, n) for n in first)]
            return self._conform(one, strides).expand(shape)
        return torch.empty_strided(shape, strides, dtype=given.dtype, device=self.device).copy_(given)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor with the same layout."""
        made = tensor.clone()
        return made if made.stride() == tensor.stride() else self._conform(tensor, tensor.stride())

    def _output(self, out: View | Dim | None, values: list[Any], places: dict[int, Place], dims: Sequence[int]) -> Any:
        if isinstance(out, View):
            if out.of is not None:
                return None
            tensor = values[out.slot] if out.spec is None else _view(out, values, places)
            return self._copy(tensor) if out.copy else tensor
        return self._specs.sizes[out](dims)[0] if isinstance(out, Expr) else out


class _Specs:
    """The decisions of a call that depend on a binding alone."""

    def __init__(self, binding: Binding) -> None:
        places = Places(binding)
        self.static, self.resolve = places.static, places.resolve
        self.checked = tuple(binding.checked)
        self.allocate = [(slot, torch_dtype(binding.made[slot].dtype)) for slot in binding.allocate]
        self.outputs = binding.outputs
        dims = [var for var, _ in binding.dims]
        self.sizes = {out: sizes_function([out], dims) for out in self.outputs if isinstance(out, Expr)}
        self.parts = [(i, o.of, o) for i, o in enumerate(self.outputs) if isinstance(o, View) and o.of is not None]
        # If every result is a whole slot, a call has nothing to decide.
        self.visible = len(self.outputs) - binding.hidden
        seen = self.outputs[: self.visible]
        plain = [o.slot for o in seen if isinstance(o, View) and o.spec is None and not o.copy]
        self.plain = plain if len(plain) == len(seen) else None

    def sizes_of_results(self) -> dict[int, int]:
        """The bytes of the results that a call allocates, by slot; nothing if their sizes depend on the call."""
        if self.static is None:
            return {}
        return {slot: span(*self.static[slot][:2]) * dtype.itemsize for slot, dtype in self.allocate}

    def large(self) -> frozenset[int]:
        """The slots for which reusing memory pays: large ones of static size."""
        return frozenset(slot for slot, size in self.sizes_of_results().items() if size >= SMALLEST)


def _dims_reader(binding: Binding) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """The function that reads the symbolic sizes from the arguments."""
    parts = [f"{_dim_text(var, source)}, " for var, source in binding.dims]
    # The text holds only numbers.
    reader: Callable[[Sequence[Any]], tuple[int, ...]] = eval(f"lambda a: ({''.join(parts)})", {"int": int, "max": max})
    return reader


def _dim_text(var: Var, source: DimSource) -> str:
    match source:
        case ("input", int(i)):
            return f"int(a[{i}])"
        case ("size", int(i), int(d)):
            return f"a[{i}].size({d})"
        case ("stride", int(i), int(d)):
            return f"a[{i}].stride({d})"
        case ("offset", int(i)):
            return f"a[{i}].storage_offset()"
        case ("line", int(slope), int(start), *place):
            return f"max({slope} * {_dim_text(var, tuple(place))} + {start}, 1)"
    raise GraphError(f"the size {var!r} comes from {source!r}, which no argument of a call provides")


def _address(value: torch.Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()


def _allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """The function from shape, strides and dtype to a new tensor."""
    if device.type == "cpu" and _EMPTY is not None:
        made: Callable[..., torch.Tensor] = _EMPTY
        return made
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _view(view: View, values: list[Any], places: dict[int, Place]) -> torch.Tensor:
    base: torch.Tensor = values[view.slot]
    if view.spec is None:
        return base
    shape, strides, offset = places[id(view)]
    return _part(base, shape, strides, offset)


def _part(base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A part of a tensor's memory, ``offset`` elements from its first. For autograd it is not a view: a
    detached result that is a view would require the gradient that ``base`` requires."""
    if _REINTERPRET is not None:
        made: torch.Tensor = _REINTERPRET(base, shape, strides, offset)
        return made
    return base.detach().as_strided(shape, strides, base.storage_offset() + offset)
