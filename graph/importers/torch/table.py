"""The table of lowerings: an ATen overload's name to the function that builds its nodes. ``ATEN`` is that table; the
files of the package ``aten`` fill it, one family each.

A lowering takes the overload's arguments, tensors as nodes, numbers as Python's or as expressions of sizes, types as
taskmap's. It returns a node, or for an overload with several results a tuple (None for one that is never read). It
raises UnsupportedError for arguments it cannot handle: the overload then runs through PyTorch, with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from taskmap.graph.nodes import Node
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Dim
from taskmap.ir.types import DType

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Out:
    """What PyTorch says of a result: shape and type."""

    shape: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class AtenEntry:
    """A lowering; ``wants_out``: it takes the results' descriptions first; ``empty``: it takes empty tensors;
    ``moves``: it only moves and converts elements, so they may be floats of eight bits."""

    function: Callable[..., Any]
    wants_out: bool = False
    empty: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Lowerings by overload name, such as "add.Tensor"."""

    entries: dict[str, AtenEntry] = field(default_factory=dict)

    def lowering(
        self, *names: str, out: bool = False, empty: bool = False, moves: bool = False
    ) -> Callable[[Function], Function]:
        """Registers the decorated function for each of ``names``; an overload has one lowering."""

        def register(function: Function) -> Function:
            for name in names:
                if name in self.entries:
                    raise GraphError(f"{name} has two lowerings")
                self.entries[name] = AtenEntry(function, out, empty, moves)
            return function

        return register


Result = Node | tuple[Node | None, ...] | list[Node]
ATEN = Table()
lowering = ATEN.lowering
