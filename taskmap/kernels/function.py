"""Kernels that are called on tensors: they allocate outputs, and are specialised by type, rank and declared size.

@taskmap.kernel(signature="a[..., m, k], b[..., k, n]")
def product(m: Dim, n: Dim, k: Dim, a: DType, b: DType, batch: tuple[Dim, ...] = ()) -> Strategy: ...

c = product(x, y)              torch tensors on a CPU or a GPU, or numpy arrays; also inside torch.compile

A script function is decorated alike, with the options of ``taskmap.ir.script.read.kernel``.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, TypeVar, overload

import numpy as np

from taskmap.ir.construct import static_size
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.errors import InputError
from taskmap.ir.expressions import Binary, Load, Var
from taskmap.ir.nodes import Buffer, Dim, Kernel, MatMul, Move
from taskmap.ir.printer import print_dim
from taskmap.ir.script.read import read_kernel
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts
from taskmap.kernels.build import BuiltKernel, build
from taskmap.kernels.operands import element_type, native_type
from taskmap.kernels.parameter import Configuration, configurations, parameters_of
from taskmap.kernels.signature import Signature, cache_key
from taskmap.kernels.tuned import chosen

_numbers = itertools.count()
Maker = Callable[..., Strategy | Kernel]
M = TypeVar("M", bound=Callable[..., Any])
_INTEGER = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "floordiv": "__floordiv__", "mod": "__mod__"}


@dataclass(slots=True, eq=False)
class KernelFunction:
    """A kernel that is called on its inputs, and returns its outputs. make: gives the kernel for arguments.

    tune_seconds: how long the first call on new sizes may measure the choices of parameters; None measures nothing.
    options: of ``taskmap.build``.
    """

    name: str
    make: Maker
    signature: Signature | None
    tune_seconds: float | None = None
    options: Mapping[str, object] | None = None
    module: str = ""
    _kernels: dict[object, Kernel] = field(default_factory=dict, repr=False)
    _built: dict[object, BuiltKernel] = field(default_factory=dict, repr=False)
    _tuned: dict[object, Configuration | None] = field(default_factory=dict, repr=False)
    _operator: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if "torch" in sys.modules:
            self._register()

    def __call__(self, *tensors: Any, **arguments: Any) -> Any:
        """The outputs on these inputs: a tensor, or a tuple of them. arguments: those of the function that are neither
        sizes nor types, such as a parameter's choice; inside torch.compile, ints.

        Raises InputError for tensors that do not fit, and the errors of ``taskmap.build``.
        """
        if self._operator is not None and sys.modules["torch"].compiler.is_compiling():
            found = self._operator(list(tensors), " ".join(arguments), list(arguments.values()))
        else:
            found = self.outputs(tensors, arguments)
        return found[0] if len(found) == 1 else tuple(found)

    def outputs(self, tensors: Sequence[Any], arguments: Mapping[str, Any]) -> list[Any]:
        """All outputs. Tensors of a script kernel may include those that it writes, which are then written in place."""
        target = self.target_of(tensors, arguments)
        config = self._config(tensors, arguments, target)
        kernel = self.kernel_for(tensors, {**config, **arguments})
        known = id(kernel), target
        if known not in self._built:
            self._built[known] = build(kernel, target, options=self.options)
        every = list(tensors)
        if len(tensors) != len(kernel.buffers):
            given = iter(tensors)
            sizes = sizes_of(kernel, tensors)
            every = [
                _empty(tensors[0], b, sizes) if b in kernel.outputs else next(given) for b in kernel.buffers
            ]  # fmt: skip
        self._built[known](*every)
        return [t for t, b in zip(every, kernel.buffers, strict=True) if b in kernel.outputs]

    def kernel_for(self, tensors: Sequence[Any], arguments: Mapping[str, Any]) -> Kernel:
        """The kernel for tensors, made once for each type, rank and declared size. Raises InputError."""
        if self.signature is None:
            bound: dict[str, Any] = {}
        else:
            dtypes = [element_type(t, p.name) for t, p in zip(tensors, self.signature.inputs, strict=False)]
            bound = self.signature.bind(self.name, [t.shape for t in tensors], dtypes)
        unknown = [n for n in arguments if self.signature is None or n not in self.signature.arguments or n in bound]
        if unknown:
            raise InputError(f"kernel {self.name!r} has no argument {unknown[0]!r}")
        if self.signature is not None:
            bound |= {**next(configurations(parameters_of(self.make))), **arguments}
        key = cache_key(bound)
        if key not in self._kernels:
            made = self.make(**bound)
            self._kernels[key] = made if isinstance(made, Kernel) else made.kernel(self.name)
        self._check(self._kernels[key], tensors)
        return self._kernels[key]

    def _check(self, kernel: Kernel, tensors: Sequence[Any]) -> None:
        inputs = [b for b in kernel.buffers if b not in kernel.outputs]
        if len(tensors) == len(kernel.buffers):
            return
        both = sorted({b.name for b in kernel.outputs} & _read(kernel))
        if both:
            raise InputError(
                f"kernel {self.name!r} reads {both[0]}, which it writes",
                hint=f"Pass all of its tensors: {', '.join(b.name for b in kernel.buffers)}.",
            )
        if len(tensors) != len(inputs):
            names = ", ".join(b.name for b in inputs)
            raise InputError(f"kernel {self.name!r} takes {len(inputs)} tensors ({names}), not {len(tensors)}")

    def target_of(self, tensors: Sequence[Any], arguments: Mapping[str, Any]) -> str:
        """The device of the tensors; a kernel of a GPU on tensors of a CPU runs in the simulator."""
        if not tensors:
            raise InputError(f"kernel {self.name!r} is called without tensors")
        device = getattr(getattr(tensors[0], "device", "cpu"), "type", "cpu")
        if device != "cpu":
            return str(device)
        return "cuda-sim" if self.kernel_for(tensors, arguments).launch else "cpu"

    def _config(self, tensors: Sequence[Any], arguments: Mapping[str, Any], target: str) -> Configuration:
        """The choices of the parameters that are not given: the tuned ones, or the first."""
        free = {n: p for n, p in parameters_of(self.make).items() if n not in arguments}
        if not free or self.signature is None:
            return {}
        shapes = tuple(tuple(int(n) for n in t.shape) for t in tensors)
        key = shapes, tuple(str(t.dtype) for t in tensors), target, tuple(arguments.items())
        if key not in self._tuned:
            self._tuned[key] = chosen(self, tensors, arguments, free, target, self.tune_seconds)
        found = self._tuned[key]
        return next(configurations(free)) if found is None else found

    def tune(self, *tensors: Any, seconds: float = 60.0, **arguments: Any) -> Configuration:
        """Measure the choices of the parameters on these inputs for up to ``seconds``, and remember them in the tuning
        cache; the fastest. Choices that the cache has are not measured again.

        Raises InputError for a kernel without parameters, and in the simulator, whose time is not a GPU's.
        """
        target = self.target_of(tensors, arguments)
        free = {n: p for n, p in parameters_of(self.make).items() if n not in arguments}
        if not free or self.signature is None:
            raise InputError(f"kernel {self.name!r} has nothing to tune", hint='Give it an argument n=param("n", ...).')
        if target == "cuda-sim":
            raise InputError(f"kernel {self.name!r} cannot be tuned in the simulator", hint="Pass tensors of a GPU.")
        found = chosen(self, tensors, arguments, free, target, seconds)
        self._tuned.clear()
        return next(configurations(free)) if found is None else found

    def _register(self) -> None:
        """The operator that torch.compile sees: opaque, with shapes of its results by those of its inputs."""
        torch = sys.modules["torch"]

        def run(tensors: Any, names: Any, values: Any) -> Any:
            return self.outputs([t.detach() for t in tensors], dict(zip(names.split(), values, strict=True)))

        def shapes(tensors: Any, names: str, values: list[int]) -> Any:
            kernel = self.kernel_for(tensors, dict(zip(names.split(), values, strict=True)))
            sizes = sizes_of(kernel, tensors)
            return [_empty(tensors[0], b, sizes) for b in kernel.outputs]

        many = GenericAlias(list, (torch.Tensor,))
        run.__annotations__ = {"tensors": many, "names": str, "values": list[int], "return": many}
        word = re.sub(r"\W", "_", self.name)
        self._operator = torch.library.custom_op(f"taskmap::{word}_{next(_numbers)}", run, mutates_args=())
        self._operator.register_fake(shapes)

    def __repr__(self) -> str:
        inputs = self.signature.inputs if self.signature else ()
        return f"<kernel {self.name}({', '.join(p.name for p in inputs)})>"


def sizes_of(kernel: Kernel, tensors: Sequence[Any]) -> dict[Var, Any]:
    """The symbolic sizes of a kernel, by the shapes of its inputs."""
    inputs = [b for b in kernel.buffers if len(tensors) == len(kernel.buffers) or b not in kernel.outputs]
    pairs = (pair for b, t in zip(inputs, tensors, strict=True) for pair in zip(b.shape, t.shape, strict=False))
    return {dim: n for dim, n in pairs if isinstance(dim, Var)}


def _size(dim: Dim, sizes: Mapping[Var, Any]) -> Any:
    known = static_size(dim)
    if known is not None:
        return known
    if isinstance(dim, Var) and dim in sizes:
        return sizes[dim]
    if isinstance(dim, Binary) and dim.op in _INTEGER:
        return getattr(_size(dim.a, sizes), _INTEGER[dim.op])(_size(dim.b, sizes))
    raise InputError(f"the size {print_dim(dim)} of an output is not that of an input", hint="Pass the output, too.")


def _empty(like: Any, buffer: Buffer, sizes: Mapping[Var, Any]) -> Any:
    """An output beside an input."""
    shape = tuple(_size(n, sizes) for n in buffer.shape)
    if isinstance(like, np.ndarray):
        return np.empty(shape, native_type(buffer.dtype, np))
    return like.new_empty(shape, dtype=native_type(buffer.dtype, sys.modules["torch"]))


def _read(kernel: Kernel) -> set[str]:
    found: set[Buffer] = set()
    for s in walk_stmts(kernel.body):
        found |= {e.buffer for root in stmt_exprs(s) for e in walk_exprs(root) if isinstance(e, Load)}
        if isinstance(s, Move):
            found.add(s.src.buffer)
        elif isinstance(s, MatMul):
            found |= {s.a.buffer, s.b.buffer, s.c.buffer}
    return {b.name for b in found}


@overload
def kernel(function: Callable[..., Any] | Strategy | Kernel, /) -> KernelFunction: ...
@overload
def kernel(
    *,
    signature: str = "",
    tune_seconds: float | None = None,
    options: Mapping[str, object] | None = None,
    **script: Any,
) -> Callable[[Callable[..., Any]], KernelFunction]: ...
def kernel(
    function: Callable[..., Any] | Strategy | Kernel | None = None, /, *, signature: str = "",
    tune_seconds: float | None = None, options: Mapping[str, object] | None = None, **script: Any,
) -> KernelFunction | Callable[[Callable[..., Any]], KernelFunction]:  # fmt: skip
    """Decorator: a kernel that is called on torch tensors or numpy arrays, and allocates its outputs.

    function: a script function, whose parameters are tensors; a function from sizes and types that returns a Strategy
    or a Kernel, as its annotation says; or a Strategy or a Kernel. signature: of such a function, which sizes its
    tensors share: "a[..., m, k], b[..., k, n]". tune_seconds: how long a first call may measure the choices of
    ``param``. options: of ``taskmap.build``. script: ``grid``, ``threads`` and the other options of a script kernel.

    Raises InputError for a function without a signature, and ScriptError for a script function.
    """
    frame_locals = dict(sys._getframe(1).f_locals)

    def made(body: Callable[..., Any] | Strategy | Kernel) -> KernelFunction:
        if isinstance(body, Strategy):
            body = body.kernel()
        if isinstance(body, Kernel):
            fixed = body
            return KernelFunction(fixed.name, lambda: fixed, None, None, options)
        name, home = getattr(body, "__name__", "kernel"), getattr(body, "__module__", "")
        if "return" not in body.__annotations__ or body.__annotations__["return"] in (None, "None"):
            read = read_kernel(body, frame_locals, **script)
            return KernelFunction(read.name, lambda: read, None, None, options, home)
        if not signature:
            raise InputError(
                f"the kernel {name!r} has no signature",
                why="its sizes have to be found in the shapes of its tensors.",
                hint='Say which: @taskmap.kernel(signature="a[m, k], b[k, n]").',
            )
        return KernelFunction(name, body, Signature.of(body, signature), tune_seconds, options, home)

    return made if function is None else made(function)
