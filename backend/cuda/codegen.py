"""CUDA C++ from a lowered kernel.

The text includes no header; it builds on device/base.cuh and its siblings, which the simulator replaces by its own. It
is meant to be read: names are the kernel's, unrolled loops stay loops, the head names the schedule, and line ends name
the source lines. Equal kernels have equal text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from taskmap.backend.cuda.expressions import Expressions, cuda_type
from taskmap.backend.cuda.own_functions import function_of
from taskmap.backend.cuda.source import AFTER_PREVIOUS_GRID, CudaSource, without_comments
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.ir import nodes as ir
from taskmap.ir.analysis.bounds import Interval
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.errors import CodegenError
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.source import SourceLocation
from taskmap.ir.target import GpuTarget, cuda_target
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts
from taskmap.ir.workers import BLOCKS, THREAD

_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_ATOM, _LINE = 1024, 16
"""Alignments in bytes: of swizzled tiles of TMA and wgmma, and of everything else."""


def generate(kernel: ir.Kernel, target: GpuTarget | None = None) -> CudaSource:
    """The CUDA C++ function of a lowered kernel: pointers in the order of its buffers and of the memory private to a
    launch, its sizes as ``long long``, then an ``int *error`` if any index is checked. The symbol is the kernel's name
    followed by a hash of the text without its comments, and of the other launch parameters: kernels of one text may
    differ in their grids and tensor maps.

    Raises CodegenError for a node that lowering should have removed, for registers whose index is not known at compile
    time, and for more shared memory than a block of the target has.
    """
    launch = kernel.launch
    if launch is None:
        raise CodegenError(
            f"kernel {kernel.name!r} cannot be written in CUDA C++",
            why="it has neither blocks nor threads.",
            hint="Give it a grid and threads.",
        )
    target = target or cuda_target("sm_80")
    emitter = _Emitter(kernel, launch, target, Expressions(target=target))
    text = emitter.function()
    stem = re.sub(r"[^a-zA-Z0-9_]", "_", kernel.name)[:40]
    maps = tuple(_map_parameter(kernel, m) for m in launch.maps)
    workspace, counters = (tuple(_bytes(b) for b in own) for own in (launch.workspace, launch.counters))
    beside = (launch.grid, launch.threads, launch.cluster, emitter.shared_bytes, maps)
    launched = repr((*beside, workspace, counters) if kernel.own else beside)
    digest = hashlib.sha256("\n".join([without_comments(text), target.isa, launched]).encode()).hexdigest()[:8]
    symbol = f"tm_{stem}_{digest}"
    return CudaSource(
        symbol=symbol,
        text=text.replace("@SYMBOL@", symbol),
        families=_families(emitter.c.families),
        needs_error=emitter.c.needs_error,
        grid=launch.grid,
        threads=launch.threads,
        shared_bytes=emitter.shared_bytes,
        dims=kernel.dims,
        cluster=_cluster(launch),
        maps=maps,
        isa=target.isa,
        workspace=workspace,
        counters=counters,
    )


def _families(used: set[str]) -> tuple[str, ...]:
    """The files of device/ that a kernel needs, in order."""
    together = any(name.startswith(("mma", "wgmma", "warp")) for name in used)
    return ("base", *(("extremes",) if together else ()), "portable", *sorted(used))


def _bytes(b: ir.Buffer) -> int:
    """Bytes of a buffer that is private to a launch."""
    size = static_size(b.shape[0])
    assert size is not None
    return size * b.dtype.bytes


def _cluster(launch: ir.GpuLaunch) -> tuple[int, int, int]:
    x, y, z, *_ = (*launch.cluster, 1, 1, 1)
    return x, y, z


def _map_parameter(kernel: ir.Kernel, m: ir.TensorMap) -> MapParameter:
    seen = m.seen
    position = kernel.buffers.index(m.buffer)
    return MapParameter(position, seen.dtype, seen.shape, strides_of(seen), m.box, m.swizzle, seen.offset)


@dataclass(slots=True)
class _Emitter:
    kernel: ir.Kernel
    launch: ir.GpuLaunch
    target: GpuTarget
    c: Expressions
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    shared_bytes: int = 0
    place: tuple[str, int] | None = None

    def function(self) -> str:
        kernel, launch, c = self.kernel, self.launch, self.c
        outputs = set(kernel.outputs)
        params = [
            f"tm_global<{'' if b in outputs else 'const '}{cuda_type(b.dtype)}> {c.name(b)}" for b in kernel.buffers
        ]
        params += [f"tm_global<{cuda_type(b.dtype)}> {c.name(b)}" for b in kernel.own]
        pointers = len(params)
        for d in kernel.dims:
            params.append(f"long long {c.name(d)}")
            c.ranges[d] = Interval(0, float("inf"))
            c.indices.add(d)
            c.wide.add(d)
            c.facts = c.facts.within(d, c.ranges[d])
        for m in launch.maps:
            c.name(m)
        if self.target.dependent_launch:
            self.line(f"{AFTER_PREVIOUS_GRID};")
        self.workers()
        self.body(kernel.body)
        params[pointers + len(kernel.dims) :] = [
            *(f"const __grid_constant__ tm_tensor_map {c.name(m)}" for m in launch.maps),
            *(["tm_global<int> error"] if c.needs_error else []),
        ]
        bounds = f"{launch.threads}, {launch.min_blocks}" if launch.min_blocks else f"{launch.threads}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) @SYMBOL@('
        signature = _wrapped(head, params)
        own = [function_of(name, instruction) for name, instruction in self.c.functions.items()]
        return "".join([*self.header(), *own]) + f"{signature}\n{{\n" + "\n".join(self.lines) + "\n}\n"

    def header(self) -> list[str]:
        """Comments: the kernel's name, its schedule, and its use of a multiprocessor."""
        kernel = self.kernel
        lines = [f"{kernel.name}, for {self.target.isa}", *kernel.note.splitlines()]
        if self.shared_bytes:
            lines.append(f"{self.shared_bytes} bytes of shared memory")
        return [f"// {_comment(line)}\n" for line in lines]

    def workers(self) -> None:
        """The variables of threads and blocks that the kernel uses."""
        used = {e for s in walk_stmts(self.kernel.body) for root in stmt_exprs(s) for e in walk_exprs(root)}
        for var, extent, most, axis in zip(BLOCKS, self.launch.grid, _LARGEST_GRID, "xyz", strict=False):
            self.c.bind(var, extent)
            self.c.ranges[var] = Interval(0, min(self.c.ranges[var].hi, most - 1))
            self.c.wide.discard(var)
            if var in used:
                self.line(f"const int {self.c.name(var)} = blockIdx.{axis};")
        self.c.bind(THREAD, self.launch.threads)
        if THREAD in used:
            self.line(f"const int {self.c.name(THREAD)} = threadIdx.x;")

    def line(self, text: str, place: SourceLocation | None = None) -> None:
        line = "  " * self.depth + text
        if place is not None and self.place != (place.file, place.line):
            self.place = (place.file, place.line)
            line = f"{line}  // {_comment(str(place))}"
        self.lines.append(line)

    def body(self, body: ir.Body) -> None:
        for s in body:
            self.stmt(s)

    def block(self, head: str, body: ir.Body, place: SourceLocation | None = None, tail: str = "}") -> None:
        self.line(head + " {", place)
        self.depth += 1
        self.body(body)
        self.depth -= 1
        self.line(tail)

    def stmt(self, s: ir.Stmt) -> None:
        if isinstance(s, ir.Store):
            self.line(self.store(s), s.source)
        elif isinstance(s, ir.Let):
            code = self.c.of(s.value)
            self.c.define(s.var, s.value)
            kind = self.c.value_type(s.value)
            if kind == "int" and s.value.dtype.bits == 64 and not self.c.is_index(s.value):
                code = f"static_cast<int>({code})"
            self.line(f"const {kind} {self.c.name(s.var)} = {code};", s.source)
        elif isinstance(s, ir.For):
            self.loop(s)
        elif isinstance(s, ir.If):
            self.branch(s)
        elif isinstance(s, ir.Allocate):
            self.allocate(s.buffer, s.source)
        elif isinstance(s, ir.Barrier):
            self.line("tm_barrier();", s.source)
        elif isinstance(s, ir.Invoke):
            self.line(self.invoke(s), s.source)
        elif isinstance(s, ir.Evaluate):
            self.line(f"{self.c.of(s.value)};", s.source)
        else:
            raise CodegenError(
                f"{type(s).__name__} cannot be written in CUDA C++; a lowering pass should have removed it"
            )

    def loop(self, s: ir.For) -> None:
        if s.kind in (ir.LoopKind.VECTOR, ir.LoopKind.PARALLEL):
            raise CodegenError(f"a {s.kind.value} loop cannot be written in CUDA C++")
        extent = self.c.address(s.extent)
        constant = constant_value(s.extent) is not None
        if s.kind is ir.LoopKind.UNROLLED and constant:
            self.line("#pragma unroll")
            self.c.unrolled.add(s.var)
        elif s.unroll:
            self.line(f"#pragma unroll {s.unroll}")
        with self.c.known():
            self.c.bind(s.var, s.extent)
            v = self.c.name(s.var)
            kind = "long long" if s.var in self.c.wide else "int"
            self.block(f"for ({kind} {v} = 0; {v} < {extent}; {v}++)", s.body, s.source)

    def branch(self, s: ir.If) -> None:
        cond = self.c.of(s.cond)
        with self.c.known(s.cond):
            if len(s.then) == 1 and isinstance(s.then[0], ir.Store) and not s.orelse:
                self.line(f"if ({cond}) {self.store(s.then[0])}", s.then[0].source)
                return
            self.block(f"if ({cond})", s.then, s.source, "} else {" if s.orelse else "}")
        if s.orelse:
            with self.c.known(s.cond, False):
                self.depth += 1
                self.body(s.orelse)
                self.depth -= 1
            self.line("}")

    def allocate(self, b: ir.Buffer, place: SourceLocation | None) -> None:
        size = static_size(b.shape[0])
        if size is None:
            raise CodegenError(f"{b.scope.value} buffer {b.name!r} has a size that is not known when compiling")
        kind, name = cuda_type(b.dtype), self.c.name(b)
        if b.scope is ir.Scope.SHARED:
            length = size * b.dtype.bytes
            aligned = _ATOM if length >= _ATOM else 128 if length >= 128 else _LINE
            start = -(-self.shared_bytes // aligned) * aligned
            self.shared_bytes = start + length
            if self.shared_bytes > self.target.shared_per_block:
                raise CodegenError(
                    f"kernel {self.kernel.name!r} needs {self.shared_bytes} bytes of shared memory",
                    where=place,
                    why=f"a block of {self.target} has at most {self.target.shared_per_block}.",
                )
            self.line(f"tm_shared<{kind}> {name} = tm_shared_at<{kind}>({start}, {size});", place)
            return
        alignment = "alignas(4) " if b.dtype.bits < 32 else ""
        self.line(f"{alignment}{kind} {name}[{max(size, 1)}];", place)

    def store(self, s: ir.Store) -> str:
        (where,) = s.indices
        b = s.buffer
        self.c.check_register(b, where)
        value = self.c.of(s.value)
        if where.lanes == 1:
            return f"{self.c.name(b)}[{self.c.address(where)}] = {value};"
        if not isinstance(where, ir.Ramp) or constant_value(where.stride) != 1:
            return f"tm_scatter({self.c.name(b)}, {self.c.address(where)}, {value});"
        if b.scope in (ir.Scope.REGISTER, ir.Scope.LOCAL):
            return f"tm_put({self.c.pointer(b, where.base)}, {value});"
        pointer, aligned = self.c.lanes_pointer(b, where)
        name = "tm_store" if aligned == where.lanes else f"tm_store_aligned<{aligned}>"
        return f"{name}({pointer}, {value});"

    def invoke(self, s: ir.Invoke) -> str:
        for r in s.regions:
            self.c.check_register(r.buffer, r.start[0])
        return f"{self.c.invoked(s.instruction, s.operands)};"


def _wrapped(head: str, params: list[str]) -> str:
    """A signature, one parameter a line if it does not fit a line."""
    line = f"{head}{', '.join(params)})"
    if len(line) <= 120:
        return line
    return head + "\n    " + ",\n    ".join(params) + ")"


def _comment(text: str) -> str:
    """Text in a line comment: a trailing backslash would continue the comment on the next line."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("\\", "/").replace("??", "?")
