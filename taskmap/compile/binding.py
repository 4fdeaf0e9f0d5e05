"""The binding of a program's buffers to PyTorch tensors at a call, as data.

A call works on *slots*, one tensor each: first the call's arguments, then constants, then tensors made by the call.
Native code sees the addresses of slots; extern calls and the caller see tensors.
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

    ``copy``: the caller gets a copy, because nobody may write to the slot's tensor. ``of``: the result at this position
    is a part of the copy; its offset is relative to the copy's start.
    """

    slot: int
    spec: TensorSpec | None = None
    copy: bool = False
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The destination of a tensor returned by an extern call: item ``item`` of the result (None: the result itself).

    With a ``spec``, the tensor is copied if its strides differ, because native code reads it.
    """

    slot: int
    item: int | None = None
    spec: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class ExternBinding:
    """A call of PyTorch between native segments: ``call`` takes the tensors in ``reads`` and the values of the dims.

    ``allocate``: slots that later native code writes. ``dead``: slots not needed afterwards. ``name`` and ``where``
    are for messages.
    """

    name: str
    call: Callable[[Sequence[torch.Tensor], Sequence[int]], object]
    reads: tuple[View, ...]
    results: tuple[Result, ...]
    allocate: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    where: str = ""


Output = View | Dim | None
"""A result of a graph at one position: a tensor, a size, or None."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything a call needs besides the executable.

    inputs: number of arguments. dims: the source of each symbolic size's value, as in Graph.dims. made: the
    slots after the arguments, with a spec for those that native code writes. checked: the arguments whose strides
    native code relies on. allocate: slots to allocate before the first segment. io, constants: the slot of each
    entry in the executable's tables. fixed: the tensors of constant slots. hidden: the number of trailing outputs
    that the caller does not get.
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
