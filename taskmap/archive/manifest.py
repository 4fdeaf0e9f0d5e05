"""An archive's manifest: the machine it is for, its weights, its kernels, and its plans.

The dataclasses are the manifest; ``to_json`` writes its text and ``manifest_from`` reads it. docs/archive-format.md
specifies it.
Input is checked: every index is in range, every size is valid, and symbols are names of kernels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from taskmap.backend.program.binding import Binding, DimSource, TensorSpec, View, axis_of, span
from taskmap.backend.program.memory_plan import ALIGNMENT, MemoryPlan, MemoryRegion
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.ir.expressions import Dim, Expr, Var
from taskmap.ir.types import ALL_DTYPES, DType, dtype_named
from taskmap.ir.util.codec import FLAG, TEXT, Codec, Json, many, matching, one_of, optional, parsed, record, row, whole
from taskmap.ir.util.lazy import lazily
from taskmap.util.size_codec import size_codec

if TYPE_CHECKING:
    from taskmap.backend.cuda.source import CudaSource

# An archive for the CPU need not wait for imports that only GPUs need.
if TYPE_CHECKING:
    from taskmap.archive.kernels import check_launches as _check_launches
    from taskmap.archive.kernels import kernel_codec as _kernel_codec
else:
    _check_launches = lazily("taskmap.archive.kernels", "check_launches")
    _kernel_codec = lazily("taskmap.archive.kernels", "kernel_codec")

FORMAT = 1
KINDS = ("cpu", "cuda", "cuda-sim")
"""The targets of archives: the last two hold kernels of a GPU."""
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16"),
    *("uint8", "bool", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
)
"""The types that a caller sees, by their names in numpy or ml_dtypes."""
_MOST_RANK = 64
_HEX = re.compile(r"[0-9a-f]{64}")
_BYTES = re.compile(r"(?:[0-9a-f]{2})*")
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
    held: DType
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
    """``bytes`` bytes at ``offset`` of the weights: a tensor with a shape, and strides in elements.

    Only in kept models, and without a checksum: in ``file`` of the ONNX model, or ``made``: the result at position
    ``offset`` of the manifest's ``prepare``.
    """

    held: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    bytes: int
    sha256: str
    file: str = ""
    made: bool = False

    @property
    def is_outside(self) -> bool:
        """True if the archive does not hold its bytes."""
        return self.made or bool(self.file)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One compiled graph for inputs of these shapes: a program, and the binding of its buffers to arrays.

    ``positive`` sizes must be positive, and all ``checks`` (eq or ge, a, b) must hold. The binding's slots are the
    model's inputs, then the tensors that a call makes, then the archive's weights; every output has a spec. ``launch``:
    the functions that run the program's segments; only for a CPU. ``work``: the minimum of bytes that each step moves,
    and its arithmetic operations; empty if they depend on symbolic sizes. ``values``: (input, its bytes in hexadecimal)
    for the inputs whose values decided what the graph computes.
    """

    shapes: tuple[tuple[Dim, ...], ...]
    positive: tuple[Dim, ...]
    checks: tuple[tuple[str, Dim, Dim], ...]
    program: Program
    memory: MemoryPlan
    binding: Binding
    launch: tuple[str, ...]
    schedules: tuple[str, ...] = ()
    work: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[int, str], ...] = ()

    @property
    def weights_from(self) -> int:
        """The slot of the archive's first weight."""
        return self.binding.inputs + len(self.binding.made)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of an archive except its bytes. ``kernels``: the launch parameters of GPU kernels, by symbol. ``prepare``:
    only in kept models, a plan without inputs; its results are weights of the other plans."""

    taskmap: str
    machine: Machine
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    objects: tuple[KernelObject, ...]
    weights: tuple[Weight, ...]
    weight_bytes: int
    plans: tuple[PlanRecord, ...] = field(default=())
    kernels: Mapping[str, CudaSource] = field(default_factory=dict)
    prepare: PlanRecord | None = None

    def to_json(self, *, for_people: bool = True) -> bytes:
        """The text of the manifest, in lines ``for_people``: those take ten times as long to write."""
        plans = _Known(self.inputs, len(self.outputs), self.weights).plan
        text = {
            "format": FORMAT,
            "taskmap": self.taskmap,
            "target": _machine(bool(self.machine.gpu)).write(self.machine),
            "inputs": _PORTS.write(self.inputs),
            "outputs": _PORTS.write(self.outputs),
            "objects": _OBJECTS.write(self.objects),
            "weight_bytes": self.weight_bytes,
            "weights": _weights(self.weight_bytes).write(self.weights),
            "plans": many(plans).write(self.plans),
        }
        if self.prepare is not None:
            text["prepare"] = _preparing(self.weights).write(self.prepare)
        if self.machine.gpu:
            text["kernels"] = many(_kernel_codec(self.machine.gpu)).write(tuple(self.kernels.values()))
        return json.dumps(text, indent=1 if for_people else None, allow_nan=False).encode()


def manifest_from(document: Json, weights_size: int) -> Manifest:
    """The manifest of a document. Raises ValueError for an invalid one, and if it does not fit the weights entry."""
    weight_bytes = document.field("weight_bytes").number()
    if weight_bytes != weights_size:
        raise ValueError(f"the weights are {weights_size} bytes, not {weight_bytes}.")
    inputs, outputs = (_PORTS.read(document.field(name)) for name in ("inputs", "outputs"))
    objects = _OBJECTS.read(document.field("objects"))
    symbols = [s for o in objects for s in o.symbols]
    if len(set(symbols)) != len(symbols):
        raise ValueError("two kernels of the manifest have one name.")
    weights = _weights(weight_bytes).read(document.field("weights"))
    version, machine = document.field("taskmap").text(), machine_from(document)
    kernels = _kernels(document, machine)
    known = _Known(inputs, len(outputs), weights, frozenset(symbols), kernels if machine.gpu else None)
    plans = many(known.plan).read(document.field("plans"))
    if not plans:
        raise ValueError("the manifest has no plan.")
    codec = _preparing(weights, frozenset(symbols))
    prepare = codec.read(document.field("prepare")) if document.has("prepare") else None
    if prepare is None and any(w.made for w in weights):
        raise ValueError("the manifest does not say how a weight is made.")
    return Manifest(version, machine, inputs, outputs, objects, weights, weight_bytes, plans, kernels, prepare)


def _preparing(weights: tuple[Weight, ...], symbols: frozenset[str] = frozenset()) -> Codec[PlanRecord]:
    """A plan that makes weights of the others."""
    return _Known((), 1 + max((w.offset for w in weights if w.made), default=-1), weights, symbols).plan


def _kernels(document: Json, machine: Machine) -> dict[str, CudaSource]:
    if not machine.gpu:
        return {}
    found = many(_kernel_codec(machine.gpu)).read(document.field("kernels"))
    kernels = {k.symbol: k for k in found}
    if len(kernels) != len(found):
        raise ValueError("two kernels of the manifest have one name.")
    return kernels


def read_format(document: Json) -> int:
    """The version of the document's format."""
    return document.field("format").number()


def machine_from(document: Json) -> Machine:
    """The machine that a document is for."""
    target = document.field("target")
    return _machine(target.field("kind").text() in KINDS[1:]).read(target)


def document_of(text: bytes) -> Json:
    """The text of a manifest, parsed. Raises ValueError."""
    return parsed(text)


_SHA256 = matching(_HEX, "a SHA-256")
_NAMES = one_of([t.name for t in ALL_DTYPES])
_HELD: Codec[DType] = Codec(lambda dtype: dtype.name, lambda j: dtype_named(_NAMES.read(j)))
_WHOLES = many(whole())
_PORT_SIZE: Codec[int | str | None] = Codec(
    lambda size: size, lambda j: None if j.value is None else j.text() if isinstance(j.value, str) else j.number()
)
_PORTS = many(record(PortRecord, name=TEXT, dtype=one_of(DTYPES), held=_HELD, shape=optional(many(_PORT_SIZE))))
_AS_SHAPE = "as long as the shape"
_SYMBOLS = many(matching(_SYMBOL, "the name of a kernel"))
_OBJECTS = many(record(KernelObject, entry=TEXT, bytes=whole(), sha256=_SHA256, symbols=_SYMBOLS))


def _machine(gpu: bool) -> Codec[Machine]:
    own: dict[str, Codec[str]] = {"gpu": TEXT} if gpu else {}
    return record(
        Machine, kind=TEXT, isa=TEXT, vector_bytes=whole(1, 1 << 16), os=TEXT, machine=TEXT, byteorder=TEXT,
        abi=whole(), threads=whole(1, 1 << 16), **own,
    )  # fmt: skip


def _weights(total: int) -> Codec[tuple[Weight, ...]]:
    """Tensors in ``total`` bytes."""

    def check(w: Weight, j: Json) -> None:
        if not w.is_outside and (w.offset % ALIGNMENT or w.offset + w.bytes > total):
            raise ValueError(f"{j.path} does not lie within the weights.")
        if w.is_outside == bool(w.sha256) or (w.made and w.file):
            raise ValueError(f"{j.path} has no checksum, or lies in two places.")
        if len(w.shape) != len(w.strides) or span(w.shape, w.strides) * w.held.bytes > w.bytes:
            raise ValueError(f"{j.path} is larger than its bytes.")

    one = record(
        Weight, held=_HELD, shape=_WHOLES, strides=_WHOLES, offset=whole(), bytes=whole(), sha256=_SHA256.omitted(""),
        file=TEXT.omitted(""), made=FLAG.omitted(False),
    ).checked(check)  # fmt: skip
    return many(one)


@dataclass(frozen=True, slots=True)
class _Known:
    """The objects that plans refer to, and the number of their outputs."""

    inputs: tuple[PortRecord, ...]
    outputs: int
    weights: tuple[Weight, ...]
    symbols: frozenset[str] = frozenset()
    kernels: Mapping[str, CudaSource] | None = None

    @property
    def plan(self) -> Codec[PlanRecord]:
        """One plan, with everything that it refers to in range."""
        return Codec(self._write, self._read)

    def _program(self, size: Codec[Dim], buffers: int) -> dict[str, Codec[Any]]:
        """The fields of a plan besides its binding; ``buffers``: the number of its program's."""
        sizes = many(size)
        symbol = TEXT.where(self.symbols.__contains__, "the name of a kernel of the archive")
        kinds = one_of([k.value for k in BufferKind if k is not BufferKind.TENSOR])
        return {
            "shapes": many(sizes),
            "positive": sizes,
            "checks": many(row(one_of(("eq", "ge")), size, size)),
            "buffers": many(
                record(ProgramBuffer, kind=Codec(lambda k: k.value, lambda j: BufferKind(kinds.read(j))), bytes=size)
            ),
            "steps": many(
                record(
                    Launch, kernel=symbol.of("symbol"), buffers=many(whole(0, buffers)), sizes=sizes.of("dims"),
                    error=FLAG.of("needs_error"), label=TEXT, where=TEXT, indexing=TEXT.omitted(""),
                )
            ),
            "schedules": many(TEXT),
            "work": many(row(whole(), whole())),
            "regions": many(
                record(
                    MemoryRegion,
                    factor=size,
                    units=whole().where(lambda n: n % ALIGNMENT == 0, f"a multiple of {ALIGNMENT}"),
                )
            ),
            "places": many(row(whole(), whole(), whole())),
            "launch": many(symbol),
        }  # fmt: skip

    def _made(self, size: Codec[Dim]) -> Codec[tuple[TensorSpec, ...]]:
        one = record(TensorSpec, held=_HELD.of("dtype"), shape=many(size), strides=many(size))
        return many(one.where(lambda m: len(m.shape) == len(m.strides) <= _MOST_RANK, _AS_SHAPE, at="strides"))

    def _tables(self, size: Codec[Dim], made: Sequence[TensorSpec]) -> dict[str, Codec[Any]]:
        """The fields of a binding that name slots; ``made``: the tensors that a call makes."""
        held = [p.held for p in self.inputs] + [m.dtype for m in made] + [w.held for w in self.weights]
        starts = {"input": 0, "made": len(self.inputs), "weight": len(self.inputs) + len(made)}
        ends = dict(zip(starts, (*list(starts.values())[1:], len(held)), strict=True))
        weights = starts["weight"]

        def slot_from(j: Json) -> int:
            kind, number = j.several(2)
            start = starts[kind.one_of(tuple(starts))]
            return start + number.number(0, ends[kind.text()] - start)

        def source(slot: int) -> list[Any]:
            kind = next(k for k in reversed(starts) if starts[k] <= slot < ends[k])
            return [kind, slot - starts[kind]]

        slots = Codec(source, slot_from)
        views = record(_Shaped, shape=many(size), strides=many(size), offset=size)
        views = views.where(lambda v: len(v.shape) == len(v.strides), _AS_SHAPE, at="strides")

        def view(j: Json) -> View:
            slot, shaped = slots.read(j.field("source")), views.read(j)
            return View(slot, TensorSpec(shaped.shape, shaped.strides, held[slot], shaped.offset))

        return {
            "io": many(slots).where(  # weights are read-only and belong among the constants
                lambda io: all(slot < weights for slot in io), "of inputs and of tensors that the plan makes"
            ),
            "constants": many(Codec(lambda slot: slot - weights, lambda j: weights + j.number(0, len(self.weights)))),
            "outputs": many(Codec(lambda v: {"source": source(v.slot), **views.write(v.spec)}, view)),
        }

    def _write(self, p: PlanRecord) -> dict[str, Any]:
        b = p.binding
        variables = {f"n{i}": var for i, (var, _) in enumerate(b.dims)}
        size = size_codec(variables)
        places = [(buffer, *place) for buffer, place in p.memory.places.items()]
        held: dict[str, Any] = {"regions": p.memory.regions, "places": places}
        held |= {"buffers": p.program.buffers, "steps": p.program.steps}
        made = tuple(b.made.values())
        fields = self._program(size, len(p.program.buffers))
        sizes = {
            name: size.write(at) if isinstance(at, (int, Expr)) else axis_of(at)
            for name, (_, at) in zip(variables, b.dims, strict=True)
        }
        return {
            "sizes": sizes,
            **{key: part.write(held[key] if key in held else getattr(p, key)) for key, part in fields.items()},
            "made": self._made(size).write(made),
            **{key: part.write(getattr(b, key)) for key, part in self._tables(size, made).items()},
            **({"values": self._values.write(p.values)} if p.values else {}),
        }

    @property
    def _values(self) -> Codec[tuple[tuple[int, str], ...]]:
        return many(row(whole(0, len(self.inputs)), matching(_BYTES, "bytes in hexadecimal")))

    def _read(self, j: Json) -> PlanRecord:
        dims = self._dims(j.field("sizes"))
        size = size_codec({var.name: var for var, _ in dims})
        found = {key: c.read(j.field(key)) for key, c in self._program(size, len(j.field("buffers").items())).items()}
        if [len(s) for s in found["shapes"]] != [len(p.shape or ()) for p in self.inputs]:
            raise ValueError(f"{j.path} does not match the model's inputs.")
        program = Program(found.pop("buffers"), found.pop("steps"), tuple(var for var, _ in dims))
        memory = MemoryPlan(found.pop("regions"), _places(j, found.pop("places"), program), {})
        if any(region >= len(memory.regions) for region, _ in memory.places.values()):
            raise ValueError(f"{j.path} places a buffer in an unknown region.")
        if self.kernels is not None:
            _check_launches(self.kernels, program)
        made = self._made(size).read(j.field("made"))
        tables = {key: part.read(j.field(key)) for key, part in self._tables(size, made).items()}
        binding = array_binding(len(self.inputs), dims, made, **tables)
        values = self._values.read(j.field("values")) if j.has("values") else ()
        plan = PlanRecord(program=program, memory=memory, binding=binding, values=values, **found)
        launches = len(program.segments()) if self.kernels is None else 0
        counts = (len(program.io), len(program.constants), launches)
        if counts != (len(binding.io), len(binding.constants), len(plan.launch)):
            raise ValueError(f"{j.path} has tables whose lengths differ from its program's.")
        if len(binding.outputs) != self.outputs:
            raise ValueError(f"{j.path} makes {len(binding.outputs)} outputs, but {self.outputs} are needed.")
        return plan

    def _dims(self, j: Json) -> tuple[tuple[Var, DimSource], ...]:
        if not isinstance(j.value, dict) or not all(_VARIABLE.fullmatch(name) for name in j.value):
            raise j.wrong("an object of sizes")
        found: dict[Var, DimSource] = {}
        for name in j.value:
            size = j.field(name)
            if not isinstance(size.value, list) or (size.value and isinstance(size.value[0], str)):
                found[Var(name)] = size_codec({v.name: v for v in found}).read(size)
                continue
            port, axis = size.several(2)
            number = port.number(0, len(self.inputs))
            found[Var(name)] = ("size", number, axis.number(0, len(self.inputs[number].shape or ())))
        return tuple(found.items())


class _Shaped(NamedTuple):
    """The part of a view's spec that a plan says."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


def array_binding(
    inputs: int,
    dims: tuple[tuple[Var, DimSource], ...],
    made: Sequence[TensorSpec],
    io: tuple[int, ...],
    constants: tuple[int, ...],
    outputs: tuple[View, ...],
) -> Binding:
    """The binding of a program to arrays: slots are ``inputs``, then those ``made``, then weights, as far as they are
    named. No call is extern, and inputs are row-major."""
    specs = dict(enumerate(made, inputs))
    named = (*specs, *constants, *(view.slot for view in outputs))
    slots = max(inputs, *(slot + 1 for slot in named), 0)
    return Binding(inputs, dims, slots, specs, {}, tuple(specs), io, constants, (), outputs)


def _places(j: Json, places: Sequence[tuple[int, int, int]], program: Program) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for i, (buffer, region, offset) in enumerate(places):
        if buffer >= len(program.buffers) or program.buffers[buffer].kind is not BufferKind.ARENA or buffer in found:
            raise ValueError(f"{j.path}.places[{i}] is not the place of a temporary buffer.")
        found[buffer] = (region, offset)
    used = {b for step in program.steps for b in step.buffers if program.buffers[b].kind is BufferKind.ARENA}
    if used - set(found):
        raise ValueError(f"{j.path} does not place a temporary buffer.")
    return found
