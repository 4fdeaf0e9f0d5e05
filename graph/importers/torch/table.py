"""The table of lowerings, from an ATen overload's name to the function that builds its nodes. ``ATEN`` is that table;
the files of the package ``aten`` fill it, one family each.

A lowering takes the overload's arguments: tensors as nodes, numbers as Python's or as expressions of sizes, types as
taskmap's. It returns a node or, for an overload with several results, a tuple (None for a result that is never read).
It raises UnsupportedError for arguments that it cannot handle: PyTorch then runs the overload, and the reason is
reported.
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
    """PyTorch's description of a result: its shape and type."""

    shape: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class AtenEntry:
    """A lowering. ``wants_out``: it takes the results' descriptions first; ``wants_read``: it takes ``read``, the
    positions of results that the graph reads; ``empty``: it accepts empty tensors;
    ``moves``: it only moves and converts elements, which may therefore be eight-bit floats; ``first_only``: it makes
    only the first result, so it serves calls of which no other is read."""

    function: Callable[..., Any]
    wants_out: bool = False
    empty: bool = False
    moves: bool = False
    first_only: bool = False
    wants_read: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Lowerings by overload name, such as "add.Tensor"."""

    entries: dict[str, AtenEntry] = field(default_factory=dict)

    def lowering(
        self,
        *names: str,
        out: bool = False,
        empty: bool = False,
        moves: bool = False,
        first_only: bool = False,
        read: bool = False,
    ) -> Callable[[Function], Function]:
        """Registers the decorated function for each of ``names``. An overload has exactly one lowering."""

        def register(function: Function) -> Function:
            for name in names:
                if name in self.entries:
                    raise GraphError(f"{name} has two lowerings")
                self.entries[name] = AtenEntry(function, out, empty, moves, first_only, read)
            return function

        return register


Result = Node | tuple[Node | None, ...] | list[Node]
ATEN = Table()
lowering = ATEN.lowering
