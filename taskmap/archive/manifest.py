"""An archive's manifest: the machine it is for, its weights, its kernels, and its plans.

The dataclasses are the manifest; ``to_json`` writes its text and ``manifest_from`` reads it. docs/archive-format.md
specifies it.
Input is checked: every index is in range, every size is valid, and symbols are names of kernels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskmap.archive.json import Json, parsed
from taskmap.archive.sizes import record_of, size_from
from taskmap.backend.program.memory_plan import ALIGNMENT, MemoryPlan, MemoryRegion
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.util.lazy import lazily

if TYPE_CHECKING:
    from taskmap.backend.cuda.cuda_source import CudaSource

# An archive for the CPU need not wait for imports that only GPUs need.
_check_launches: Callable[[Mapping[str, CudaSource], Program], None] = lazily(
    "taskmap.archive.kernels", "check_launches"
)
_kernel_from: Callable[[Json, str], CudaSource] = lazily("taskmap.archive.kernels", "kernel_from")
_kernel_record: Callable[[CudaSource], dict[str, Any]] = lazily("taskmap.archive.kernels", "kernel_record")

FORMAT = 1
KINDS = ("cpu", "cuda", "cuda-sim")
"""The targets of archives: the last two hold kernels of a GPU."""
HELD = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")
"""The types of tensors in memory."""
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16"),
    *("uint8", "bool", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
)
"""The types that a caller sees, by their names in numpy or ml_dtypes."""
_MOST_RANK = 64
_HEX = re.compile(r"[0-9a-f]{64}")
_SYMBOL = re.compile(r"(tm|taskmap)_[a-zA-Z0-9_]{1,500}")
_VARIABLE = re.compile(r"n[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that kernels need, as in Python's sys.platform, platform.machine() and sys.byteorder. ``isa``
    executes them; ``abi`` is the version of their calling convention; ``threads`` is the planned number. ``gpu``: the
    instruction set of the GPU that kernels are written for, real or simulated; empty for the CPU."""

    kind: str
    isa: str
    vector_bytes: int
    os: str
    machine: str
    byteorder: str
    abi: int
    threads: int
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class PortRecord:
    """An input or output of the model: ``dtype`` as the caller sees it, ``held`` as it is in memory."""

    name: str
    dtype: str
    held: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A shared object, or a GPU's machine code, and the functions that may be looked up in it."""

    entry: str
    bytes: int
    sha256: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """``bytes`` bytes at ``offset`` of the weights: a tensor with a shape, and strides in elements."""

    held: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a call: input ``index``, weight ``index``, or the ``index``-th tensor that the plan makes."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that a call makes."""

    held: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A result: a view of ``source``, with strides and offset in elements."""

    source: Source
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True, slots=True)
class ArchivedPlan:
    """One graph for inputs of these shapes.

    ``sizes``: for each symbolic size, the input and axis that it is read from, or an expression in the sizes before
    it. ``positive`` sizes must be positive, and all ``checks`` (eq or ge, a, b) must hold. ``launch``: the functions
    that run the program's segments; only for a CPU. ``io`` and ``constants``: the entries of the program's tables.
    ``work``: the minimum of bytes that each step moves, and its arithmetic operations; empty if they depend on
    symbolic sizes.
    """

    sizes: dict[Var, tuple[int, int] | Dim]
    shapes: tuple[tuple[Dim, ...], ...]
    positive: tuple[Dim, ...]
    checks: tuple[tuple[str, Dim, Dim], ...]
    program: Program
    memory: MemoryPlan
    launch: tuple[str, ...]
    made: tuple[Made, ...]
    io: tuple[Source, ...]
    constants: tuple[int, ...]
    outputs: tuple[Output, ...]
    schedules: tuple[str, ...] = ()
    work: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of an archive except its bytes. ``kernels``: the launch parameters of GPU kernels, by symbol."""

    taskmap: str
    machine: Machine
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    objects: tuple[KernelObject, ...]
    weights: tuple[Weight, ...]
    weight_bytes: int
    plans: tuple[ArchivedPlan, ...] = field(default=())
    kernels: Mapping[str, CudaSource] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The text of the manifest."""
        m = self.machine
        text = {
            "format": FORMAT,
            "taskmap": self.taskmap,
            "target": {name: getattr(m, name) for name in Machine.__slots__ if name != "gpu" or m.gpu},
            "inputs": [_port_record(p) for p in self.inputs],
            "outputs": [_port_record(p) for p in self.outputs],
            "objects": [{**_fields(o), "symbols": list(o.symbols)} for o in self.objects],
            "weight_bytes": self.weight_bytes,
            "weights": [{**_fields(w), "shape": list(w.shape), "strides": list(w.strides)} for w in self.weights],
            "plans": [_plan_record(p) for p in self.plans],
            **({"kernels": [_kernel_record(k) for k in self.kernels.values()]} if m.gpu else {}),
        }
        return json.dumps(text, indent=1, allow_nan=False).encode()


def manifest_from(document: Json, weights_size: int) -> Manifest:
    """The manifest of a document. Raises ValueError for an invalid one, and if it does not fit the weights entry."""
    weight_bytes = document.field("weight_bytes").number()
    if weight_bytes != weights_size:
        raise ValueError(f"the weights are {weights_size} bytes, not {weight_bytes}.")
    inputs, outputs = (document.field(name).each(_port) for name in ("inputs", "outputs"))
    objects = document.field("objects").each(_object)
    symbols = [s for o in objects for s in o.symbols]
    if len(set(symbols)) != len(symbols):
        raise ValueError("two kernels of the manifest have one name.")
    weights = document.field("weights").each(lambda j: _weight(j, weight_bytes))
    version, machine = document.field("taskmap").text(), machine_from(document)
    kernels = _kernels(document, machine)
    known = _Known(inputs, outputs, weights, frozenset(symbols), kernels if machine.gpu else None)
    plans = document.field("plans").each(known.plan)
    if not plans:
        raise ValueError("the manifest has no plan.")
    return Manifest(version, machine, inputs, outputs, objects, weights, weight_bytes, plans, kernels)


def _kernels(document: Json, machine: Machine) -> dict[str, CudaSource]:
    if not machine.gpu:
        return {}
    found = document.field("kernels").each(lambda j: _kernel_from(j, machine.gpu))
    kernels = {k.symbol: k for k in found}
    if len(kernels) != len(found):
        raise ValueError("two kernels of the manifest have one name.")
    return kernels


def read_format(document: Json) -> int:
    """The version of the document's format."""
    return document.field("format").number()


def machine_from(document: Json) -> Machine:
    """The machine that a document is for."""
    t = document.field("target")
    kind, isa, system, machine, order = (t.field(n).text() for n in ("kind", "isa", "os", "machine", "byteorder"))
    width, abi = t.field("vector_bytes").number(1, 1 << 16), t.field("abi").number()
    gpu = t.field("gpu").text() if kind in KINDS[1:] else ""
    return Machine(kind, isa, width, system, machine, order, abi, t.field("threads").number(1, 1 << 16), gpu)


def document_of(text: bytes) -> Json:
    """The text of a manifest, parsed. Raises ValueError."""
    return parsed(text)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}


def _port_record(p: PortRecord) -> dict[str, Any]:
    return {**_fields(p), "shape": None if p.shape is None else list(p.shape)}


def _plan_record(p: ArchivedPlan) -> dict[str, Any]:
    names = {var: f"n{i}" for i, var in enumerate(p.sizes)}

    def sizes(dims: Sequence[Dim]) -> list[Any]:
        return [record_of(d, names) for d in dims]

    steps = []
    for step in p.program.steps:
        assert isinstance(step, Launch)
        record = {"kernel": step.symbol, "buffers": list(step.buffers), "sizes": sizes(step.dims)}
        said = {"error": step.needs_error, "label": step.label, "where": step.where}
        steps.append({**record, **said, **({"indexing": step.indexing} if step.indexing else {})})
    memory = p.memory
    return {
        "sizes": {names[v]: list(at) if isinstance(at, tuple) else record_of(at, names) for v, at in p.sizes.items()},
        "shapes": [sizes(s) for s in p.shapes],
        "positive": sizes(p.positive),
        "checks": [[op, *sizes([a, b])] for op, a, b in p.checks],
        "made": [{"held": m.held, "shape": sizes(m.shape), "strides": sizes(m.strides)} for m in p.made],
        "buffers": [{"kind": b.kind.value, "bytes": record_of(b.bytes, names)} for b in p.program.buffers],
        "steps": steps,
        "schedules": list(p.schedules),
        "work": [list(w) for w in p.work],
        "regions": [{"factor": record_of(r.factor, names), "units": r.units} for r in memory.regions],
        "places": [[buffer, region, offset] for buffer, (region, offset) in memory.places.items()],
        "launch": list(p.launch),
        "io": [[s.kind, s.index] for s in p.io],
        "constants": list(p.constants),
        "outputs": [
            {"source": [o.source.kind, o.source.index], "shape": sizes(o.shape), "strides": sizes(o.strides),
             "offset": record_of(o.offset, names)}
            for o in p.outputs
        ],
    }  # fmt: skip


def _port(j: Json) -> PortRecord:
    shape = j.field("shape")
    sizes = None if shape.value is None else shape.each(_port_size)
    return PortRecord(
        j.field("name").text(), j.field("dtype").one_of(DTYPES), j.field("held").one_of(HELD), sizes
    )  # fmt: skip


def _port_size(j: Json) -> int | str | None:
    return None if j.value is None else j.text() if isinstance(j.value, str) else j.number()


def _object(j: Json) -> KernelObject:
    symbols = j.field("symbols").each(_symbol)
    return KernelObject(j.field("entry").text(), j.field("bytes").number(), _sha256(j.field("sha256")), symbols)


def _weight(j: Json, total: int) -> Weight:
    shape, strides = (j.field(n).each(Json.number) for n in ("shape", "strides"))
    held, offset, size = j.field("held").one_of(HELD), j.field("offset").number(), j.field("bytes").number()
    if offset % ALIGNMENT or offset + size > total:
        raise ValueError(f"{j.path} does not lie within the weights.")
    if len(shape) != len(strides) or span(shape, strides) * item_bytes(held) > size:
        raise ValueError(f"{j.path} is larger than its bytes.")
    return Weight(held, shape, strides, offset, size, _sha256(j.field("sha256")))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def item_bytes(held: str) -> int:
    """The size of an element in memory."""
    return 1 if held == "bool" else int(held.lstrip("bfiu")) // 8


def _sha256(j: Json) -> str:
    if not _HEX.fullmatch(j.text()):
        raise j.wrong("a SHA-256")
    return j.text()


def _symbol(j: Json) -> str:
    if not _SYMBOL.fullmatch(j.text()):
        raise j.wrong("the name of a kernel")
    return j.text()


@dataclass(frozen=True, slots=True)
class _Known:
    """The objects that plans refer to."""

    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    weights: tuple[Weight, ...]
    symbols: frozenset[str]
    kernels: Mapping[str, CudaSource] | None = None

    def plan(self, j: Json) -> ArchivedPlan:
        """One plan, with everything that it refers to in range."""
        names, sizes = self._variables(j.field("sizes"))
        shapes = j.field("shapes").each(lambda s: _sizes(s, names))
        if [len(s) for s in shapes] != [len(p.shape or ()) for p in self.inputs]:
            raise ValueError(f"{j.path} does not match the model's inputs.")
        made = j.field("made").each(lambda m: _made(m, names))
        program = self._program(j, names)
        places = _places(j, program)
        regions = j.field("regions").each(lambda r: _region(r, names))
        if any(region >= len(regions) for region, _ in places.values()):
            raise ValueError(f"{j.path} places a buffer in an unknown region.")
        io, constants = j.field("io").each(lambda s: self._source(s, len(made))), j.field("constants")
        if any(s.kind == "weight" for s in io):  # weights are read-only and belong among the constants
            raise j.field("io").wrong("of inputs and of tensors that the plan makes")
        if self.kernels is not None:
            _check_launches(self.kernels, program)
        launches = len(program.segments()) if self.kernels is None else 0
        counts = (len(program.io), len(program.constants), launches)
        launch = j.field("launch").each(self._symbol)
        if counts != (len(io), len(constants.items()), len(launch)):
            raise ValueError(f"{j.path} has tables whose lengths differ from its program's.")
        outputs = j.field("outputs").each(lambda o: self._output(o, len(made), names))
        if len(outputs) != len(self.outputs):
            raise ValueError(f"{j.path} makes {len(outputs)} outputs, but the model has {len(self.outputs)}.")
        return ArchivedPlan(
            sizes, shapes, _sizes(j.field("positive"), names), j.field("checks").each(lambda c: _check(c, names)),
            program, MemoryPlan(regions, places, {}), launch, made, io,
            constants.each(lambda c: c.number(0, len(self.weights))), outputs, j.field("schedules").each(Json.text),
            j.field("work").each(_work),
        )  # fmt: skip

    def _variables(self, j: Json) -> tuple[dict[str, Var], dict[Var, tuple[int, int] | Dim]]:
        if not isinstance(j.value, dict) or not all(_VARIABLE.fullmatch(name) for name in j.value):
            raise j.wrong("an object of sizes")
        names = {name: Var(name) for name in j.value}
        found: dict[Var, tuple[int, int] | Dim] = {}
        for name, var in names.items():
            size = j.field(name)
            if not isinstance(size.value, list) or (size.value and isinstance(size.value[0], str)):
                found[var] = _size(size, {v.name: v for v in found})
                continue
            port, axis = _several(size, 2)
            number = port.number(0, len(self.inputs))
            found[var] = (number, axis.number(0, len(self.inputs[number].shape or ())))
        return names, found

    def _program(self, j: Json, names: Mapping[str, Var]) -> Program:
        kinds = [k.value for k in BufferKind if k is not BufferKind.TENSOR]
        buffers = tuple(
            ProgramBuffer(BufferKind(b.field("kind").one_of(kinds)), _size(b.field("bytes"), names))
            for b in j.field("buffers").items()
        )
        steps = tuple(self._step(s, len(buffers), names) for s in j.field("steps").items())
        return Program(buffers, steps, tuple(names.values()))

    def _step(self, j: Json, buffers: int, names: Mapping[str, Var]) -> Launch:
        return Launch(
            self._symbol(j.field("kernel")),
            j.field("buffers").each(lambda b: b.number(0, buffers)),
            _sizes(j.field("sizes"), names),
            j.field("error").flag(),
            j.field("label").text(),
            j.field("where").text(),
            j.field("indexing").text() if j.has("indexing") else "",
        )

    def _symbol(self, j: Json) -> str:
        if j.text() not in self.symbols:
            raise j.wrong("the name of a kernel of the archive")
        return j.text()

    def _source(self, j: Json, made: int) -> Source:
        kind, number = _several(j, 2)
        counts = {"input": len(self.inputs), "made": made, "weight": len(self.weights)}
        return Source(kind.one_of(tuple(counts)), number.number(0, counts[kind.text()]))

    def _output(self, j: Json, made: int, names: Mapping[str, Var]) -> Output:
        shape, strides = (_sizes(j.field(n), names) for n in ("shape", "strides"))
        if len(shape) != len(strides):
            raise j.field("strides").wrong("as long as the shape")
        return Output(self._source(j.field("source"), made), shape, strides, _size(j.field("offset"), names))


def _several(j: Json, count: int) -> list[Json]:
    if len(j.items()) != count:
        raise j.wrong(f"a list of {count}")
    return j.items()


def _size(j: Json, names: Mapping[str, Var]) -> Dim:
    try:
        return size_from(j.value, names)
    except ValueError as error:
        raise ValueError(f"{j.path}: {error}") from error


def _sizes(j: Json, names: Mapping[str, Var]) -> tuple[Dim, ...]:
    return j.each(lambda s: _size(s, names))


def _made(j: Json, names: Mapping[str, Var]) -> Made:
    shape, strides = (_sizes(j.field(n), names) for n in ("shape", "strides"))
    if len(shape) != len(strides) or len(shape) > _MOST_RANK:
        raise j.field("strides").wrong("as long as the shape")
    return Made(j.field("held").one_of(HELD), shape, strides)


def _work(j: Json) -> tuple[int, int]:
    moved, computed = (part.number() for part in _several(j, 2))
    return moved, computed


def _check(j: Json, names: Mapping[str, Var]) -> tuple[str, Dim, Dim]:
    op, a, b = _several(j, 3)
    return op.one_of(("eq", "ge")), _size(a, names), _size(b, names)


def _region(j: Json, names: Mapping[str, Var]) -> MemoryRegion:
    units = j.field("units").number()
    if units % ALIGNMENT:
        raise j.field("units").wrong(f"a multiple of {ALIGNMENT}")
    return MemoryRegion(_size(j.field("factor"), names), units)


def _places(j: Json, program: Program) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for place in j.field("places").items():
        buffer, region, offset = (part.number() for part in _several(place, 3))
        if buffer >= len(program.buffers) or program.buffers[buffer].kind is not BufferKind.ARENA or buffer in found:
            raise place.wrong("the place of a temporary buffer")
        found[buffer] = (region, offset)
    used = {b for step in program.steps for b in step.buffers if program.buffers[b].kind is BufferKind.ARENA}
    if used - set(found):
        raise ValueError(f"{j.path} does not place a temporary buffer.")
    return found
