"""Programs bound to constants and extern functions: the input of a compiled graph's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.backend.program.binding import Binding
from taskmap.backend.program.structure import Program
from taskmap.graph.fusion.planning import Group
from taskmap.graph.nodes import ExternNode, Node

AnyTensor = Any
"""A tensor of PyTorch or an array of numpy: a graph is called with one or the other."""
ExternFunction = Callable[[Sequence[AnyTensor], Sequence[int]], object]


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program, the binding of its buffers to tensors, the tensors of constant slots, and the function of each extern
    call.

    ``origins`` names, for each step of the program, the group or extern node that it came from. ``given``: roots whose
    tensors the prepare program made.
    """

    program: Program
    binding: Binding
    fixed: Mapping[int, AnyTensor]
    calls: tuple[ExternFunction, ...]
    origins: tuple[Group | ExternNode, ...]
    given: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitProgram:
    """The prepare and main programs. ``watched``: positions of the arguments that the prepare program reads."""

    main: BoundProgram
    prepare: BoundProgram | None = None
    watched: tuple[int, ...] = ()
