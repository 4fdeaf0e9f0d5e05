"""How a program's buffers are tied to PyTorch tensors at a call, as data.

A call works on *slots*, one tensor each: first the call's arguments, then constants, then what the call makes. Native
code sees the addresses of slots; extern calls and the caller see tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from taskmap.ir.nodes import Dim, Var


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and strides (in elements) that a tensor must have; sizes may be symbolic."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: torch.dtype
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class View:
    """The tensor in ``slot``, or the part of its storage that ``spec`` describes, relative to the tensor's own start.

    ``copy``: the caller gets a tensor of its own, because the slot's must not be written by anyone. ``of``: the part of
    the copy that is the result at this position, relative to its start.
    """

    slot: int
    spec: TensorSpec | None = None
    copy: bool = False
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Where a tensor that an extern call returned goes: item ``item`` of the result (None: the result itself).

    With a ``spec`` the tensor is copied where its strides differ, because native code reads it.
    """

    slot: int
    item: int | None = None
    spec: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class ExternBinding:
    """A call of PyTorch between native segments: ``call`` takes the tensors in ``reads`` and the values of the dims.

    ``allocate``: slots that native code after it writes. ``dead``: slots that nothing after it needs. ``name`` and
    ``where`` are for messages.
    """

    name: str
    call: Callable[[Sequence[torch.Tensor], Sequence[int]], object]
    reads: tuple[View, ...]
    results: tuple[Result, ...]
    allocate: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    where: str = ""


Output = View | Dim | None
"""What a graph returns at one position: a tensor, a size, or None."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything a call needs beside the executable.

    inputs: number of arguments. dims: for each symbolic size where its value is found, as in Graph.dims. made: the
    slots after the arguments, with the spec of those that native code writes. checked: the arguments whose strides
    native code relies on. allocate: slots to allocate before the first segment. io, constants: the slot behind each
    entry of the executable's tables. fixed: the tensors of constant slots. hidden: how many of the last outputs the
    caller does not get.
    """

    inputs: int
    dims: tuple[tuple[Var, tuple[object, ...]], ...]
    slots: int
    made: dict[int, TensorSpec]
    checked: dict[int, TensorSpec]
    allocate: tuple[int, ...]
    io: tuple[int, ...]
    constants: tuple[int, ...]
    fixed: dict[int, torch.Tensor]
    externs: tuple[ExternBinding, ...]
    outputs: tuple[Output, ...]
    hidden: int = 0
