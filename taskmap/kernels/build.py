"""Single kernels as callables: lowered, compiled and loaded for a CPU, a GPU, or the simulated GPU.

scale = taskmap.build(kernel)          kernel: a function decorated with @kernel, or any Kernel
scale(x, y)                            torch tensors or numpy arrays, in the order of the kernel's parameters
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.openmp_threads import openmp_threads
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import IndexOutOfRangeError, InputError, InvalidOptionError, UnsupportedError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.twins import inlined
from taskmap.ir.nodes import Kernel
from taskmap.ir.passes import dump_each
from taskmap.ir.printer import print_kernel
from taskmap.ir.target import Target
from taskmap.ir.util.lazy import lazily
from taskmap.ir.verify.rules import verify
from taskmap.kernels.arguments import Arguments
from taskmap.kernels.instructions import check_target
from taskmap.options import Options
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.util.dump import Dump, new_dump
from taskmap.util.metrics import COUNTERS

Source = KernelSource | CudaSource
# Building a kernel for the CPU does not import torch.
if TYPE_CHECKING:
    from taskmap.kernels.build_gpu import gpu_platform as _gpu_platform
    from taskmap.kernels.build_gpu import load_kernel as _load_kernel
else:
    _gpu_platform = lazily("taskmap.kernels.build_gpu", "gpu_platform")
    _load_kernel = lazily("taskmap.kernels.build_gpu", "load_kernel")


Runner = Callable[[Sequence[int], Sequence[int]], None]
"""Runs a compiled kernel on storages at addresses, with sizes."""


def build(kernel: Kernel, target: str = "cpu", *, options: Mapping[str, object] | None = None) -> BuiltKernel:
    """Compile a kernel.

    kernel: made by @kernel or a Builder; it is verified. target: "cpu"; "cuda", the GPU that PyTorch works on now; or
    "cuda-sim", which runs a GPU kernel on this machine. options: those of torch.compile that concern
    a kernel: gpu, isa, threads, fast_math, cache_dir, dump_dir, verify_passes.

    Raises InputError for an object that is not a kernel, VerifyError for a kernel that breaks a rule, UnsupportedError
    for one that this target cannot run, LoweringError and CodegenError for one that cannot be compiled,
    InvalidOptionError for options, and NoDeviceError without a GPU.
    """
    chosen = replace(Options.from_user(None, options), target=target)
    if chosen.target is None:
        raise InvalidOptionError("the target cannot be None", hint="It is 'cpu', 'cuda' or 'cuda-sim'.")
    _check(kernel, chosen.target)
    dump = new_dump(chosen.dump_dir, kernel.name)
    dump.write("kernel.txt", print_kernel(kernel))
    return _build_cpu(kernel, chosen, dump) if target == "cpu" else _build_gpu(kernel, chosen, dump)


def _build_cpu(kernel: Kernel, options: Options, dump: Dump) -> BuiltKernel:
    machine = host_target(options, os.cpu_count() or 1)
    toolchain = trusted_toolchain(isa=options.code_isa, fast_math=options.fast_math, cache_dir=options.cache_dir)
    source = generate(_lowered(kernel, options, machine, dump), machine.vector_bytes)
    dump.write(f"{source.symbol}.c", source.text)
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir))
    loaded = compile_kernels([source], toolchain, store, COUNTERS.kernels)
    return BuiltKernel(kernel, source, _Function(kernel, source, loaded[source.symbol], options.threads))


def _build_gpu(kernel: Kernel, options: Options, dump: Dump) -> BuiltKernel:
    platform = _gpu_platform(options)
    source = platform.generate(_lowered(kernel, options, platform.target, dump))
    assert isinstance(source, CudaSource)
    dump.write(f"{source.symbol}.cu", source.text)
    run, resources = _load_kernel(platform, source, len(kernel.buffers), dump)
    return BuiltKernel(kernel, source, run, str(platform.device), platform.alignment or 1, resources)


def _lowered(kernel: Kernel, options: Options, machine: Target, dump: Dump) -> Kernel:
    def write(step: str, module: Kernel) -> None:
        dump.write(f"{step}.txt", print_kernel(module))

    check_target(kernel, machine)
    kernel = inlined(kernel, texts=options.target == "cuda-sim")
    return lower(kernel, dump_each(write) if dump.wanted else None, machine, verify=options.verify_passes)


def _check(kernel: Kernel, target: str) -> None:
    if not isinstance(kernel, Kernel):
        name = getattr(kernel, "__name__", None)
        raise InputError(
            f"cannot build {kernel!r}" if name is None else f"cannot build {name}",
            why=f"it is a {type(kernel).__name__}, not a kernel.",
            hint="Decorate the function with @kernel, from taskmap.ir.script.read.",
        )
    verify(kernel)
    if kernel.launch and target == "cpu":
        raise UnsupportedError(
            f"kernel {kernel.name!r} cannot run on a CPU",
            where=kernel.source,
            why=f"it is written for blocks of {kernel.launch.threads} threads of a GPU.",
            hint="Write its loops with parallel(...) and vector(...), or build it for 'cuda' or 'cuda-sim'.",
        )
    for b in kernel.buffers:
        if b.layout is not None:
            raise UnsupportedError(
                f"kernel {kernel.name!r} cannot be called",
                where=kernel.source,
                why=f"its parameter {b.name} has the layout {b.layout}, which tensors do not have.",
                hint="Give the parameter the shape of its storage, or strides.",
            )


@dataclass(slots=True, eq=False)
class BuiltKernel:
    """A compiled kernel, called with one tensor per parameter; it writes its outputs in place.

    Threads may call it at once, on different outputs. On a GPU a call does not wait for the kernel. device: the device
    of its tensors. alignment: tensor addresses must be multiples of this many bytes. resources: its use of the GPU.
    """

    kernel: Kernel
    source: Source
    run: Runner
    device: str = "cpu"
    alignment: int = 1
    resources: Resources | None = None
    _arguments: Arguments = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._arguments = Arguments(self.kernel, self.device, self.alignment)

    def __call__(self, *tensors: Any, **sizes: int) -> None:
        """Run the kernel. sizes: those not given by any tensor's shape, by name; others may be given, and must agree.

        Raises InputError when an argument does not fit its parameter, and IndexOutOfRangeError when an index from data
        lay outside its dimension; on a GPU, this is raised by a later call, after the kernel has run.
        """
        call = self._arguments.bind(tensors, sizes)
        if call is None:
            return
        self.run(call.addresses, call.sizes)
        call.written()

    @property
    def text(self) -> str:
        """The C function or the CUDA C++ kernel, without the types and helpers that it uses."""
        return self.source.text

    @property
    def c(self) -> str:
        """As ``text``."""
        return self.source.text

    def _repr_html_(self) -> str:
        """The kernel and its generated code, for a notebook."""
        texts = (("kernel", print_kernel(self.kernel)), ("generated", self.text))
        return "".join(f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>" for name, text in texts)

    def __repr__(self) -> str:
        return f"<built kernel {print_kernel(self.kernel).splitlines()[0].removeprefix('kernel ').rstrip(':')}>"


class _Function:
    """A kernel for the CPU at an address."""

    def __init__(self, kernel: Kernel, source: KernelSource, address: int, threads: int | None) -> None:
        self.name, self.needs_error, self.threads = kernel.name, source.needs_error, threads
        kinds = [ctypes.c_void_p] * len(kernel.buffers) + [ctypes.c_longlong] * len(kernel.dims)
        error = [ctypes.c_void_p] if source.needs_error else []
        self._function = ctypes.CFUNCTYPE(None, *kinds, *error)(address)

    def __call__(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        error = ctypes.c_int(0)
        arguments = [*addresses, *sizes]
        if self.needs_error:
            arguments.append(ctypes.addressof(error))
        with openmp_threads(self.threads):
            self._function(*arguments)
        if error.value:
            raise out_of_range(self.name)


def out_of_range(name: str) -> IndexOutOfRangeError:
    """The error of the kernel called ``name``."""
    return IndexOutOfRangeError(
        f"an index is out of range in kernel {name!r}",
        why="an index tensor holds a value outside the dimension that it indexes.",
    )
