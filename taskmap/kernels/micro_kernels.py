"""The test of a micro-kernel: its code against its spec, on random parts of larger tensors.

print(check_micro_kernel(outer))      outer: made by micro_kernel

A script function and C are executed here, CUDA C++ and PTX on a GPU if there is one; without one they are compiled, and
their twin is executed in the simulator. Values are small integers, so that results are exact in every type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import eq, index, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.micro.kernel import MicroKernel
from taskmap.ir.decompose.spec import Operand
from taskmap.ir.errors import CompilerNotFoundError, NoDeviceError, UnsupportedError, VerifyError
from taskmap.ir.isa.entry import Place
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Expr, GpuLaunch, Kernel, LoopKind, Region, Scope
from taskmap.ir.types import DType, bf16
from taskmap.ir.util.lazy import lazily
from taskmap.ir.workers import THREAD
from taskmap.kernels.build import build
from taskmap.kernels.simulate import simulate
from taskmap.options import named_gpu

# Only bf16 and GPUs need tensors of PyTorch.
if TYPE_CHECKING:
    from torch import from_numpy as _from_numpy
else:
    _from_numpy = lazily("torch", "from_numpy")
Array = NDArray[Any]
_NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16,
          "i8": np.int8, "u8": np.uint8, "bf16": np.float32}  # fmt: skip
_BLOCK = 64
"""The threads of a block that executes a micro-kernel of its own."""


@dataclass(frozen=True, slots=True)
class MicroKernelCheck:
    """The result of a test that passed. executed: where the code ran; "" if nothing here executes it. compiled: by
    NVRTC or nvcc. trials: random cases."""

    name: str
    executed: str
    compiled: bool
    trials: int

    def __str__(self) -> str:
        ran = "unknown here: nothing executes it"
        if self.executed:
            ran = f"right in {self.trials} trials, {self.executed}"
        return f"{self.name}: {ran}{'; its text compiles' if self.compiled else ''}"


def check_micro_kernel(
    kernel: MicroKernel, *, trials: int = 3, seed: int = 0, aligned: int = 1, gpu: str = "H200"
) -> MicroKernelCheck:
    """Test a micro-kernel against its spec: random operands, at random places of tensors with random strides.

    aligned: places and strides are multiples of as many elements, for code that needs it. gpu: the GPU that is compiled
    and simulated for. Raises VerifyError with the first element that is wrong, or that is written outside the result's
    tile; SimulationError for races and accesses out of bounds; CompilerFailedError for text that does not compile.
    """
    rng = Random(seed)
    cases = [_Case(kernel, rng, max(1, aligned)) for _ in range(trials)]
    text = kernel.instruction.written
    if kernel.spec.level is Level.CORE:
        for number, case in enumerate(cases):
            case.run(lambda k, *arrays: build(k, target="cpu")(*arrays), number)
        return MicroKernelCheck(kernel.name, "on this CPU", False, trials)
    for number, case in enumerate(cases):
        case.run(lambda k, *arrays: simulate(k, *arrays, gpu=gpu).check(), number)
    if text is None:
        return MicroKernelCheck(kernel.name, "in the simulator", False, trials)
    compiled = _compiles(cases[0].kernel, gpu)
    if _runs(cases):
        return MicroKernelCheck(kernel.name, "on the GPU", compiled, trials)
    counted = getattr(kernel.instruction.spec, "counted", False)
    return MicroKernelCheck(kernel.name, "by its twin in the simulator" if counted else "", compiled, trials)


def _compiles(kernel: Kernel, gpu: str) -> bool:
    """True if the text compiles, False without a compiler."""
    target = named_gpu(gpu)
    source = generate(lower(kernel, target=target), target)
    with suppress(CompilerNotFoundError, UnsupportedError):
        compile_cuda([source], find_cuda_toolchain(target.isa), KernelStore(suffix=SUFFIX), Counters())
        return True
    return False


def _runs(cases: Sequence[_Case]) -> bool:
    """True if all cases are right on a GPU, False without one."""
    for number, case in enumerate(cases):
        try:
            made = build(case.kernel, target="cuda")
        except (NoDeviceError, CompilerNotFoundError, UnsupportedError):
            return False
        case.run(lambda _, *tensors, made=made: made(*tensors), number, "cuda")
    return True


@dataclass(slots=True)
class _Case:
    """A kernel around a micro-kernel: tensors that contain its operands, the rest of which must stay as it is."""

    leaf: MicroKernel
    rng: Random
    aligned: int
    b: Builder = field(default_factory=Builder)
    homes: list[Buffer] = field(default_factory=list)
    parts: list[tuple[slice, ...]] = field(default_factory=list)
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        spec, b = self.leaf.spec, self.b
        first = [self.home(o) for o in spec.operands]
        out = Buffer("out", first[-1].dtype, first[-1].shape, strides=first[-1].strides)
        self.homes = [*first, out]
        self.once(out, first[-1], out.shape)
        self.meet()
        pairs = zip(spec.operands, [*first[:-1], out], self.parts, strict=True)
        regions = [self.operand(o, home, part) for o, home, part in pairs]
        self.meet()
        strides = self.strides(spec.operands, regions)
        b.invoke(self.leaf.instruction, *regions, *strides)
        self.meet()
        result = regions[-1]
        if result.buffer is not out:
            self.copied(spec.operands[-1], result, out, self.parts[-1], back=True)
        threads = self.threads
        launch = GpuLaunch((1,), threads) if threads else None
        self.kernel = Kernel("micro_kernel", tuple(self.homes), (out,), (), b.body(), launch)

    @property
    def threads(self) -> int:
        level = self.leaf.spec.level
        return 0 if level is Level.CORE else level.threads or _BLOCK

    def meet(self) -> None:
        if self.threads:
            self.b.barrier()

    def shape(self, o: Operand) -> tuple[int, ...]:
        found = self.leaf.spec.static_shape(o)
        assert found is not None
        return found

    def home(self, o: Operand) -> Buffer:
        """A tensor in global memory that contains an operand somewhere."""
        step, shape = self.aligned, self.shape(o)
        starts = [step * self.rng.randrange(3) for _ in shape]
        sizes = [start + n + step * self.rng.randrange(3) for start, n in zip(starts, shape, strict=True)]
        self.parts.append(tuple(slice(start, start + n) for start, n in zip(starts, shape, strict=True)))
        return Buffer(o.name, o.dtype, tuple(sizes))

    def operand(self, o: Operand, home: Buffer, part: tuple[slice, ...]) -> Region:
        """The operand where the micro-kernel takes it."""
        shape, place = self.shape(o), self.place(o)
        if o.scope is Scope.GLOBAL:
            return region(home, [s.start for s in part], shape)
        if o.scope is Scope.REGISTER and place is Place.REGISTERS:
            tiles = [self.rng.choice((1, 2)) for _ in shape]
            owner = repeat(*tiles) * (self.leaf.owners.get(o.name) or repeat(*shape)) if self.threads else None
            tiles = tiles if owner is not None else [1] * len(shape)
            sizes = [n * t for n, t in zip(shape, tiles, strict=True)]
            held = self.b.allocate(f"{o.name}_held", o.dtype, sizes, Scope.REGISTER, owner=owner)
            start = [n * self.rng.randrange(t) for n, t in zip(shape, tiles, strict=True)]
            made = region(held, start, shape)
            self.copied(o, made, home, part, back=False)
            return made
        scope = Scope.LOCAL if o.scope is Scope.REGISTER else o.scope
        pitch = shape[-1] + self.aligned * self.rng.randrange(3)
        strides = [pitch * prod(shape[d + 1 : -1]) for d in range(len(shape) - 1)] + [1]
        there = self.b.allocate(f"{o.name}_there", o.dtype, shape, scope, strides=strides)
        made = region(there, [0] * len(shape), shape)
        self.copied(o, made, home, part, back=False)
        return made

    def place(self, o: Operand) -> Place:
        return next(p.place for p in self.leaf.instruction.parameters if p.name == o.name)

    def copied(self, o: Operand, here: Region, home: Buffer, part: tuple[slice, ...], *, back: bool) -> None:
        """An operand copied from its home, or back, by those who hold it."""
        shape, owner = self.shape(o), self.leaf.owners.get(o.name)

        def element(at: Sequence[Expr]) -> None:
            inner = [start + i for start, i in zip(here.start, at, strict=True)]
            outer = [index(s.start) + i for s, i in zip(part, at, strict=True)]
            if back:
                self.b.store(home, outer, here.buffer[tuple(inner)])
            else:
                self.b.store(here.buffer, inner, home[tuple(outer)])

        if owner is not None:
            with self.b.mapped([f"i{d}" for d in range(len(shape))], owner, THREAD) as at:
                element(at)
            return
        held = here.buffer.scope is Scope.REGISTER
        self.each(shape, element, LoopKind.UNROLLED if held else LoopKind.SERIAL, by_all=held)

    def once(self, dst: Buffer, src: Buffer, shape: Sequence[Any]) -> None:
        """A whole tensor copied by one thread."""
        self.each(shape, lambda at: self.b.store(dst, tuple(at), src[tuple(at)]), LoopKind.SERIAL)

    def each(
        self, shape: Sequence[int], element: Callable[[Sequence[Expr]], None], kind: LoopKind, *, by_all: bool = False
    ) -> None:
        one = eq(THREAD, 0) if self.threads > 1 and not by_all else True
        with self.b.when(one), self.b.grid([f"i{d}" for d in range(len(shape))], shape, kind) as at:
            element(at)

    def strides(self, operands: Sequence[Operand], regions: Sequence[Region]) -> list[Expr]:
        names = {p.name for p in self.leaf.instruction.parameters if p.place is Place.VALUE}
        found = []
        for o, r in zip(operands, regions, strict=True):
            pairs = zip(o.axes, strides_of(r.buffer), strict=True)
            found += [index(n) for axis, n in pairs if f"{o.name}_{axis}" in names]
        return found

    def run(self, execute: Callable[..., object], number: int, device: str = "cpu") -> None:
        """Run the kernel on random values. Raises VerifyError if a result is wrong."""
        spec, numbers = self.leaf.spec, np.random.default_rng(self.rng.randrange(1 << 30))
        shapes = [[static_size(n) or 0 for n in home.shape] for home in self.homes[:-1]]
        values = [numbers.integers(-4, 5, shape).astype(np.float64) for shape in shapes]
        values = [np.abs(v) if h.dtype.name == "u8" else v for v, h in zip(values, self.homes, strict=False)]
        arrays = [_tensor(v, h.dtype, device) for v, h in zip(values, self.homes, strict=False)]
        out = _tensor(np.zeros_like(values[-1]), self.homes[-1].dtype, device)
        execute(self.kernel, *arrays, out)
        expected = values[-1].copy()
        given = {o.name: v[p] for o, v, p in zip(spec.operands, values, self.parts, strict=True)}
        expected[self.parts[-1]] = spec.meaning(**given)
        got = out.astype(np.float64) if isinstance(out, np.ndarray) else out.double().cpu().numpy()
        wrong = np.argwhere(got != expected)
        if not len(wrong):
            return
        at = tuple(int(i) for i in wrong[0])
        inside = all(s.start <= i < s.stop for s, i in zip(self.parts[-1], at, strict=True))
        here = [i - s.start for s, i in zip(self.parts[-1], at, strict=True)]
        why = f"{spec.written}{here} is {got[at]:g}, not {expected[at]:g}"
        if not inside:
            why = f"it writes {spec.written}{here}, outside its tile of {list(self.shape(spec.operands[-1]))}"
        raise VerifyError(f"micro-kernel {self.leaf.name} does not perform {spec}", why=f"{why} (trial {number}).")


def _tensor(values: Array, dtype: DType, device: str) -> Any:
    """An array; a tensor of PyTorch on a GPU, and for bf16."""
    array = values.astype(_NUMPY[dtype.name])
    if device == "cpu" and dtype != bf16:
        return array
    tensor = _from_numpy(array).to(device)
    return tensor.bfloat16() if dtype == bf16 else tensor
