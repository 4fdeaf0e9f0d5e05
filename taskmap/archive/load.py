"""Loads and runs archives: numpy and native code, without a compiler, torch or onnx."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskmap import __version__
from taskmap.archive.file import WEIGHTS, ArchiveFile, digest
from taskmap.archive.machine import default_threads, difference
from taskmap.archive.manifest import (
    FORMAT,
    Manifest,
    PlanRecord,
    PortRecord,
    document_of,
    machine_from,
    manifest_from,
    read_format,
)
from taskmap.archive.place import CpuPlace, Place, Weights
from taskmap.archive.plan import PlanSizes, Resolved, Shape, sound_plans
from taskmap.backend.cpu.team import PARALLEL, have_team, load_team
from taskmap.backend.image import load_image
from taskmap.backend.library import have_openmp
from taskmap.backend.program.arrays import address_of, array_dtype, first_line, laid_out, new_bytes, numpy_dtype
from taskmap.backend.program.binding import View
from taskmap.backend.program.executable import Executable, TimedRun
from taskmap.ir.errors import InputError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.named_inputs import as_array, in_order

# An archive for the CPU need not wait for imports that only GPUs need.
if TYPE_CHECKING:
    from taskmap.archive.conditions import refusal_of as _refusal_of
    from taskmap.archive.cuda import cuda_place as _cuda_place
    from taskmap.archive.found_weights import from_files as _from_files
    from taskmap.archive.found_weights import prepared as _prepared
    from taskmap.archive.sim import sim_place as _sim_place
    from taskmap.onnx.kept_models import Stamp
else:
    _from_files = lazily("taskmap.archive.found_weights", "from_files")
    _prepared = lazily("taskmap.archive.found_weights", "prepared")
    _cuda_place = lazily("taskmap.archive.cuda", "cuda_place")
    _sim_place = lazily("taskmap.archive.sim", "sim_place")
    _refusal_of = lazily("taskmap.archive.conditions", "refusal_of")

Array = NDArray[Any]
_Key = tuple[tuple[Shape, ...], tuple[str, ...]]
"""Shapes of the inputs, and the values of those that decide."""
_MOST_SHAPES = 4096


@dataclass(slots=True, eq=False)
class _Ready:
    """A plan that can be run at given sizes."""

    plan: PlanRecord
    resolved: Resolved
    run: Executable
    constants: array[int]


@dataclass(slots=True, eq=False)
class ArchivedModel:
    """A compiled model: ``model(x, y)`` or ``model({"x": x})`` gives its outputs as a list of arrays, in order.

    Threads may call it at once. Raises InputError for inputs that do not fit, and IndexOutOfRangeError when an index
    from data lies outside its dimension. ``threads``: threads per call; None leaves the number to the OpenMP runtime.
    """

    manifest: Manifest
    threads: int | None
    profile: bool
    file: ArchiveFile = field(repr=False)
    place: Place = field(init=False, repr=False)
    _weights: memoryview = field(init=False, repr=False)
    _outside: Weights = field(init=False, repr=False, default_factory=dict)
    _sizes: tuple[PlanSizes, ...] = field(init=False, repr=False)
    _runs: dict[int, Executable] = field(init=False, repr=False, default_factory=dict)
    _ready: dict[_Key, _Ready] = field(init=False, repr=False, default_factory=dict)
    _deciding: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        m = self.manifest
        self._weights = self.file.entry(WEIGHTS)
        try:
            self._sizes = sound_plans(m)
        except ValueError as error:
            raise self.file.error("contradicts itself", str(error)) from error
        self._deciding = tuple(sorted({i for plan in m.plans for i, _ in plan.values}))

    @property
    def inputs(self) -> tuple[PortRecord, ...]:
        """The inputs, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[PortRecord, ...]:
        """The outputs, in order."""
        return self.manifest.outputs

    def __call__(self, *args: Any, **named: Any) -> list[Array]:
        """The outputs, for inputs given in order, by name, or as one mapping from names."""
        ordered = in_order([p.name for p in self.inputs], (), args, named, ascii)
        given = [_held(p, x) for p, x in zip(self.inputs, ordered, strict=True)]
        ready = self._for(given)
        made = [_new(size) for size in ready.resolved.made]
        if ready.plan.program.steps:
            self.place.run(ready.run, ready.plan.binding.io, given, made, ready.resolved.dims, ready.constants)
        arrays, taken = [*given, *made], set[int]()
        return [self._output(p, i, ready, arrays, taken) for i, p in enumerate(self.outputs)]

    def has_plan(self, *inputs: Any) -> bool:
        """True if a plan accepts these inputs, given in order. Raises ArchiveError for a plan that contradicts itself,
        and InputError for inputs of other types than the model's."""
        given = [_held(p, x) for p, x in zip(self.inputs, inputs, strict=True)]
        try:
            self._for(given)
        except InputError:
            return False
        return True

    def deciding_values(self, inputs: Sequence[Any]) -> list[str]:
        """The bytes of the inputs, given in order, whose values decide which plan runs, in hexadecimal."""
        return [_held(self.inputs[i], inputs[i]).tobytes().hex() for i in self._deciding]

    def held_values(self, results: Sequence[Array], numbers: Sequence[int]) -> list[str]:
        """The bytes of the results with these numbers, as they lie in memory while a model runs, in hexadecimal."""
        return [_held(self.outputs[i], results[i]).tobytes().hex() for i in numbers]

    def timed_runs(self) -> list[tuple[PlanRecord, deque[TimedRun]]]:
        """With ``profile``: the seconds of every step in the latest runs, by plan."""
        return [(self.manifest.plans[i], run.runs) for i, run in self._runs.items()]

    def _for(self, given: Sequence[Array]) -> _Ready:
        shapes = tuple(x.shape for x in given)
        values = {i: given[i].tobytes().hex() for i in self._deciding}
        key = shapes, tuple(values.values())
        found = self._ready.get(key)
        if found is not None:
            return found
        if len(self._ready) >= _MOST_SHAPES:
            self._ready.clear()
        # A plan for exactly these sizes comes first.
        for number in sorted(range(len(self._sizes)), key=lambda i: bool(self._sizes[i].plan.binding.dims)):
            if any(values[i] != wanted for i, wanted in self.manifest.plans[number].values):
                continue
            try:
                resolved = self._sizes[number].resolve(shapes)
            except ValueError as error:
                raise self.file.error("contradicts itself", str(error)) from error
            if resolved is not None:
                return self._ready.setdefault(key, self._made_ready(number, resolved))
        raise InputError(
            f"the archive has no plan for inputs of shapes {', '.join(str(list(s)) for s in shapes)}",
            why=_refusal_of(self.manifest, shapes),
            hint="Compile the model for these sizes, too: taskmap compile model.onnx --shape DIM=SIZE,SIZE",
        )

    def _made_ready(self, number: int, resolved: Resolved) -> _Ready:
        plan = self.manifest.plans[number]
        if number not in self._runs:
            try:
                self._runs[number] = self.place.executable(plan)
            except ValueError as error:
                raise self.file.error("contradicts itself", str(error)) from error
        constants = array("q", [self._address(slot - plan.weights_from) for slot in plan.binding.constants])
        return _Ready(plan, resolved, self._runs[number], constants)

    def find_weights(self, files: Mapping[str, Stamp | None]) -> None:
        """Find the weights outside the archive, in ``files`` of these stamps. Raises ValueError and OSError."""
        self._outside.update(_from_files(self.manifest, files))
        self._outside.update(_prepared(self.manifest, self.place, self._address, _new))

    def _address(self, number: int) -> int:
        """The address of a weight on the device."""
        if number in self._outside:
            return address_of(self._outside[number])
        return self.place.weights + self.manifest.weights[number].offset

    def _bytes(self, number: int) -> Array | memoryview:
        if number in self._outside:
            return self._outside[number]
        w = self.manifest.weights[number]
        return self._weights[w.offset : w.offset + w.bytes]

    def _output(self, port: PortRecord, number: int, ready: _Ready, arrays: Sequence[Array], taken: set[int]) -> Array:
        """Output ``number``; memory that is made becomes the first output's that lies there, and ``taken``."""
        view = ready.plan.binding.outputs[number]
        assert isinstance(view, View)
        assert view.spec is not None
        shape, strides, offset = ready.resolved.outputs[number]
        dtype, slot = array_dtype(view.spec.dtype), view.slot
        if slot < len(arrays):
            base: Any = arrays[slot]
        else:
            base = self._bytes(slot - len(arrays))
        x = laid_out(base, offset * dtype.itemsize, dtype, shape, strides)
        is_its_own = slot in ready.plan.binding.made and slot not in taken
        if is_its_own:
            taken.add(slot)
        return _seen(x, port, is_its_own)


def load(
    path: str | Path, *, threads: int | None = None, sha256: str | None = None, profile: bool = False
) -> ArchivedModel:
    """The model of an archive, ready to be called; its native code runs in this process: load only what you trust.

    ``threads``: threads per call; by default as planned, limited to the CPUs of this machine. ``sha256``:
    load the file only if it has this checksum. ``profile``: time every kernel. Raises ArchiveError for an invalid
    archive, or one for another machine, before any of its code runs; InputError for a file that cannot be read.
    """
    model = _loaded(ArchiveFile(Path(path), sha256), threads, profile)
    if any(w.is_outside for w in model.manifest.weights):
        raise model.file.error("belongs to a model that taskmap keeps", "it does not hold all weights.")
    return model


def load_kept(path: Path, threads: int | None, files: Mapping[str, Stamp | None]) -> ArchivedModel:
    """The archive of a kept model that was made from ``files``. Raises ArchiveError and InputError, as `load` does."""
    model = _loaded(ArchiveFile(path), threads, False)
    if any(w.is_outside for w in model.manifest.weights):
        try:
            model.find_weights(files)
        except (ValueError, OSError) as error:
            raise model.file.error("lacks weights", str(error)) from error
    return model


def _loaded(file: ArchiveFile, threads: int | None, profile: bool) -> ArchivedModel:
    """The model of an archive, without weights outside it."""
    try:
        document = document_of(file.manifest)
        version = read_format(document)
        if version != FORMAT:
            raise file.error("has another format", f"its version is {version}, and this taskmap reads {FORMAT}.")
        machine = machine_from(document)
        foreign = difference(machine, document.field("taskmap").text())
        if foreign is not None:
            hint = "Run it there, or make one for this machine: taskmap compile model.onnx -o model.taskmap"
            raise file.error("is for another machine", foreign, hint)
        manifest = manifest_from(document, len(file.entry(WEIGHTS)))
    except ValueError as error:
        raise file.error("has an invalid manifest", str(error)) from error
    objects = _verified(file, manifest)
    threads = default_threads(machine.threads) if threads is None else threads
    model = ArchivedModel(manifest, threads, profile, file)  # checks its plans
    model.place = _place(model, objects)
    return model


def _place(model: ArchivedModel, objects: Sequence[bytes]) -> Place:
    """The archive's device, with its kernels. Raises ArchiveError if they cannot be loaded."""
    manifest, weights = model.manifest, model.file.entry(WEIGHTS)
    start = address_of(np.frombuffer(weights, np.uint8)) if len(weights) else 0
    if manifest.machine.kind == "cuda":
        return _cuda_place(manifest, objects, weights, start, model.profile)
    try:
        if manifest.machine.kind == "cuda-sim":
            return _sim_place(manifest, objects, start, model.threads or os.cpu_count() or 1, model.profile)
        same = manifest.taskmap == __version__
        return CpuPlace(start, _addresses(manifest, objects), model.threads, model.profile, same)
    except (OSError, AttributeError) as error:
        raise model.file.error("cannot be loaded", f"{error}.") from error


def _verified(file: ArchiveFile, manifest: Manifest) -> list[bytes]:
    """Checks every byte that is used against its checksum; returns copies of the shared objects, which are loaded."""
    weights = file.entry(WEIGHTS)
    wanted: list[tuple[str, memoryview, str]] = []
    for o in manifest.objects:
        if len(file.entry(o.entry)) != o.bytes:
            raise file.error("is damaged", f"the entry {o.entry} has another size than the manifest says.")
        wanted.append((o.entry, memoryview(bytes(file.entry(o.entry))), o.sha256))
    places = {(w.offset, w.bytes, w.sha256) for w in manifest.weights if not w.is_outside}
    wanted += [(f"{WEIGHTS} at {start}", weights[start : start + n], sha) for start, n, sha in sorted(places)]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for (name, _, sha), found in zip(wanted, pool.map(lambda part: digest(part[1]), wanted), strict=True):
            if found != sha:
                raise file.error("is damaged", f"the checksum of {name} does not match.")
    return [bytes(content) for _, content, _ in wanted[: len(manifest.objects)]]


def _addresses(manifest: Manifest, objects: Sequence[bytes]) -> dict[str, int]:
    """Load the kernels. Raises OSError and AttributeError that name the entry."""
    found: dict[str, int] = {}
    have_openmp()  # without it, loops are serial
    team = next((c for o, c in zip(manifest.objects, objects, strict=True) if PARALLEL in o.symbols), None)
    if team is not None and not have_team():
        load_team(team)  # first: the other objects are bound to it
    for o, content in zip(manifest.objects, objects, strict=True):
        if content is team:
            continue
        try:
            library = load_image(content)
            found.update({symbol: library.address(symbol) for symbol in o.symbols})
        except (OSError, AttributeError) as error:
            raise type(error)(f"{o.entry}: {error}") from error
    return found


def _held(port: PortRecord, value: Any) -> Array:
    """An input with the type and order that it has in memory."""
    wanted = numpy_dtype(port.dtype)
    x = as_array(ascii(port.name), value, wanted, str(wanted))
    shape = port.shape
    if shape is not None and (
        len(shape) != x.ndim or any(isinstance(n, int) and n != m for n, m in zip(shape, x.shape, strict=True))
    ):
        text = ", ".join("?" if n is None else str(n) for n in shape)
        raise InputError(f"the input {port.name!a} has shape {list(x.shape)}", why=f"the model takes [{text}].")
    held = array_dtype(port.held)
    x = x.view(np.int64) if wanted == np.uint64 else x.astype(held, copy=False)
    return (
        np.require(x, requirements=["C", "A"]) if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="), order="C")
    )


def _seen(x: Array, port: PortRecord, is_its_own: bool) -> Array:
    """An output with the type that the caller sees, in memory owned by the caller: a copy unless ``is_its_own``."""
    wanted = numpy_dtype(port.dtype)
    x = x.view(np.uint64) if wanted == np.uint64 else x.astype(wanted, copy=False)
    return x if is_its_own else x.copy()


def _new(size: int) -> Array:
    """Memory for a tensor of ``size`` bytes, aligned to a cache line."""
    memory = new_bytes(size)
    return memory[first_line(memory) :][:size]
