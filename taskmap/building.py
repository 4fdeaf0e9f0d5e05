"""A kernel as something that can be called: lowered, compiled and loaded for this CPU.

scale = taskmap.build(kernel)          kernel: a function decorated with @kernel, or any Kernel
scale(x, y)                            torch tensors or numpy arrays, in the order of the kernel's parameters
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taskmap.arguments import Arguments
from taskmap.backend.compile import compile_kernels
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.kernel_source import KernelSource
from taskmap.backend.store import KernelStore
from taskmap.dump import new_dump
from taskmap.ir.errors import IndexOutOfRangeError, InputError, UnsupportedError
from taskmap.ir.lower import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.printer import print_kernel
from taskmap.ir.verify import LOWERED, verify
from taskmap.ledger import LEDGER
from taskmap.options import Options
from taskmap.target import host_target


def build(kernel: Kernel, target: str = "cpu", *, options: Mapping[str, object] | None = None) -> BuiltKernel:
    """Compile a kernel for this machine.

    kernel: made by @kernel or a Builder; it is verified. target: "cpu". options: as for torch.compile, those of them
    that concern a kernel: isa, threads, fast_math, cache_dir, dump_dir, verify_passes.

    Raises InputError for what is no kernel, VerifyError for one that breaks a rule, UnsupportedError for one that this
    target cannot run, LoweringError and CodegenError for one that cannot be compiled, InvalidOptionError for options.
    """
    chosen = replace(Options.from_user(None, options), target=target)
    _check(kernel)
    machine = host_target(chosen, os.cpu_count() or 1)
    toolchain = find_toolchain(isa=chosen.isa, fast_math=chosen.fast_math)
    dump = new_dump(chosen.dump_dir, kernel.name)
    dump.write("kernel.txt", print_kernel(kernel))

    def observe(step: str, module: Kernel) -> None:
        if dump.wanted:
            dump.write(f"{step}.txt", print_kernel(module))
        if chosen.verify_passes:
            verify(module)

    lowered = lower(kernel, observe, machine)
    if chosen.verify_passes:
        verify(lowered, LOWERED)
    source = generate(lowered, machine.vector_bytes)
    dump.write(f"{source.symbol}.c", source.text)
    store = KernelStore(None if chosen.cache_dir is None else Path(chosen.cache_dir))
    loaded = compile_kernels([source], toolchain, store, LEDGER.kernels)
    return BuiltKernel(kernel, source, loaded[source.symbol], chosen.threads)


def _check(kernel: Kernel) -> None:
    if not isinstance(kernel, Kernel):
        name = getattr(kernel, "__name__", None)
        raise InputError(
            f"cannot build {kernel!r}" if name is None else f"cannot build {name}",
            why=f"it is a {type(kernel).__name__}, not a kernel.",
            hint="Decorate the function with @kernel, from taskmap.ir.script.",
        )
    verify(kernel)
    if kernel.threads:
        raise UnsupportedError(
            f"kernel {kernel.name!r} cannot run on a CPU",
            where=kernel.source,
            why=f"it is written for blocks of {kernel.threads} threads of a GPU.",
            hint="Write its loops with parallel(...) and vector(...), or run it with taskmap.ir.interpreter.interpret.",
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
    """A compiled kernel, to be called with a tensor for each parameter; it writes its outputs in place.

    Threads may call it at once, on outputs of their own.
    """

    kernel: Kernel
    source: KernelSource
    address: int
    threads: int | None = None
    _arguments: Arguments = field(init=False, repr=False)
    _function: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kernel = self.kernel
        self._arguments = Arguments(kernel)
        kinds = [ctypes.c_void_p] * len(kernel.buffers) + [ctypes.c_longlong] * len(kernel.dims)
        error = [ctypes.c_void_p] if self.source.needs_error else []
        self._function = ctypes.CFUNCTYPE(None, *kinds, *error)(self.address)

    def __call__(self, *tensors: Any, **sizes: int) -> None:
        """Run the kernel. sizes: those that no tensor's shape gives, by name; any other may be given, and must agree.

        Raises InputError when an argument does not fit its parameter, and IndexOutOfRangeError when the kernel indexed
        with data outside the dimension that it indexes.
        """
        call = self._arguments.bind(tensors, sizes)
        if call is None:
            return
        error = ctypes.c_int(0)
        arguments = [*call.addresses, *call.sizes]
        if self.source.needs_error:
            arguments.append(ctypes.addressof(error))
        with _threads(self.threads):
            self._function(*arguments)
        call.written()
        if error.value:
            raise IndexOutOfRangeError(
                f"an index is out of range in kernel {self.kernel.name!r}",
                why="an index tensor holds a value outside the dimension that it indexes.",
            )

    @property
    def c(self) -> str:
        """The C function, without the prelude of types and helpers."""
        return self.source.text

    def __repr__(self) -> str:
        return f"<built kernel {print_kernel(self.kernel).splitlines()[0].removeprefix('kernel ').rstrip(':')}>"


class _threads:  # noqa: N801  a context manager that reads as a function
    """OpenMP uses this many threads inside; None leaves it as it is."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.before = 0

    def __enter__(self) -> None:
        if self.count is not None:
            openmp = ctypes.CDLL(None)
            self.before = openmp.omp_get_max_threads()
            openmp.omp_set_num_threads(self.count)

    def __exit__(self, *exc: object) -> None:
        if self.count is not None:
            ctypes.CDLL(None).omp_set_num_threads(self.before)
