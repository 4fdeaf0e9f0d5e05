"""Checks the arguments of a kernel's call: types, shapes, strides, sizes, and outputs written in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskmap.backend.program.sizes import SizesFunction, sizes_function
from taskmap.ir.errors import InputError
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Buffer, Dim, Kernel, Var
from taskmap.ir.printer import print_expr
from taskmap.kernels.operands import ArrayOperand, operand


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """Arguments as passed to the compiled function: addresses of storages, then sizes."""

    addresses: list[int]
    sizes: tuple[int, ...]
    outputs: list[ArrayOperand]

    def written(self) -> None:
        """Mark the outputs as modified for autograd, as every in-place operator of torch does."""
        torch = sys.modules.get("torch")
        for o in self.outputs:
            if torch is not None and isinstance(o.value, torch.Tensor):
                torch.autograd.graph.increment_version(o.value)


@dataclass(slots=True)
class Arguments:
    """The parameters of a kernel, and the requirements on a call's arguments.

    device: the device of the tensors. alignment: their addresses must be multiples of this many bytes.
    """

    kernel: Kernel
    device: str = "cpu"
    alignment: int = 1
    _geometry: dict[Buffer, SizesFunction] = field(init=False)

    def __post_init__(self) -> None:
        dims = self.kernel.dims
        self._geometry = {b: sizes_function([*b.shape, *strides_of(b), b.offset], dims) for b in self.kernel.buffers}

    def bind(self, tensors: Sequence[Any], sizes: Mapping[str, int]) -> KernelArguments | None:
        """The arguments of a call; None when there is nothing to compute. Raises InputError."""
        buffers = self.kernel.buffers
        if len(tensors) != len(buffers):
            names = ", ".join(repr(b) for b in buffers)
            raise self.error(f"takes {len(buffers)} tensors, not {len(tensors)}", f"Its parameters are {names}.")
        seen = (operand(t, b.name, self.device) for t, b in zip(tensors, buffers, strict=True))
        given = dict(zip(buffers, seen, strict=True))
        for b, o in given.items():
            if o.dtype != b.dtype:
                raise self.error(f"takes a tensor of {b.dtype} as {b.name}, not of {o.dtype}")
            if len(o.shape) != b.rank:
                raise self.error(f"takes a tensor of {b.rank} dimensions as {b.name}, not of shape {list(o.shape)}")
        known = self.sizes(given, sizes)
        places = {b: self.check(b, o, known) for b, o in given.items()}
        outputs = [given[b] for b in self.kernel.outputs]
        if all(o.is_empty for o in outputs):
            return None
        for var, n in zip(self.kernel.dims, known, strict=True):
            if n < 1:
                raise self.error(f"is called with {var.name} = {n}", "Sizes are at least 1 where there is a result.")
        self.check_outputs(given)
        return KernelArguments([places[b] for b in buffers], known, outputs)

    def sizes(self, given: Mapping[Buffer, ArrayOperand], named: Mapping[str, int]) -> tuple[int, ...]:
        """The value of every symbolic size: by name, or as an extent, or else a stride, of a parameter."""
        values: dict[Var, tuple[int, str]] = {}
        by_name = {v.name: v for v in self.kernel.dims}
        for name, n in named.items():
            if name not in by_name:
                raise self.error(f"has no size {name!r}", f"Its sizes are {', '.join(by_name) or 'all known'}.")
            if not isinstance(n, int) or isinstance(n, bool):
                raise self.error(f"takes an int as {name}, not {n!r}")
            values[by_name[name]] = n, "the argument"
        for what in ("shape", "strides"):
            for b, o in given.items():
                for d, dim in enumerate(getattr(b, what) or ()):
                    if not isinstance(dim, Var) or (what == "strides" and dim in values):
                        continue
                    n, where = getattr(o, what)[d], f"{what}[{d}] of {b.name}"
                    before, origin = values.setdefault(dim, (n, where))
                    if n != before:
                        raise self.error(
                            f"is called with two values of {dim.name}",
                            f"It is {before} by {origin}, and {n} by {where}.",
                        )
        missing = [v.name for v in self.kernel.dims if v not in values]
        if missing:
            raise self.error(f"is called without {', '.join(missing)}", f"Pass it by keyword: {missing[0]}=...")
        return tuple(values[v][0] for v in self.kernel.dims)

    def check(self, b: Buffer, o: ArrayOperand, sizes: tuple[int, ...]) -> int:
        """The address of the storage of ``b``. Raises InputError for a wrong shape or wrong strides."""
        flat = self._geometry[b](sizes)
        shape, strides, offset = flat[: b.rank], flat[b.rank : -1], flat[-1]
        if o.shape != shape:
            raise self.error(f"takes {_written(b.shape)} = {list(shape)} as {b.name}, not shape {list(o.shape)}")
        wrong = [d for d, n in enumerate(shape) if n > 1 and o.strides[d] != strides[d]]
        if wrong and not o.is_empty:
            raise self.error(
                f"takes strides {list(strides)} of {b.name}, not {list(o.strides)}",
                f"Pass {b.name}.contiguous(), numpy.ascontiguousarray({b.name}), or give the parameter the strides."
                if b.strides is None
                else None,
            )
        start = int(o.address - offset * b.dtype.bytes)
        if start % self.alignment:
            raise self.error(
                f"takes a tensor at a multiple of {self.alignment} bytes as {b.name}",
                f"A kernel of a GPU moves {self.alignment} bytes at once. Pass {b.name}.clone().",
            )
        return start

    def check_outputs(self, given: Mapping[Buffer, ArrayOperand]) -> None:
        """Checks that outputs are writable and share no memory with other arguments: the compiler relies on it."""
        extents = {b: o.extent() for b, o in given.items() if not o.is_empty}
        for out in self.kernel.outputs:
            if given[out].refusal:
                raise self.error(f"writes to {out.name}", f"{given[out].refusal}")
            for b in extents:
                if b is out or out not in extents:
                    continue
                if extents[b][0] < extents[out][1] and extents[out][0] < extents[b][1]:
                    raise self.error(f"writes to {out.name}, which shares memory with {b.name}", "Pass a copy of one.")

    def error(self, what: str, hint: str | None = None) -> InputError:
        """An InputError of this kernel."""
        return InputError(f"kernel {self.kernel.name!r} {what}", where=self.kernel.source, hint=hint)


def _written(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(str(d) if isinstance(d, int) else print_expr(d) for d in shape)}]"
