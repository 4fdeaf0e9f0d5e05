"""A program: the buffers of a compiled graph and the steps that run over them, before anything has an address."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from taskmap.ir.errors import GraphError, IndexOutOfRangeError
from taskmap.ir.expressions import Dim, Expr, Var
from taskmap.ir.util.lazy import lazily

# Only a text of the program needs the printer; a process that runs an archive has no other use for it.
if TYPE_CHECKING:
    from taskmap.ir.printer import print_expr as _print_expr
else:
    _print_expr = lazily("taskmap.ir.printer", "print_expr")


class BufferKind(Enum):
    """The owner of a buffer's memory.

    The caller gives INPUT, OUTPUT and TENSOR addresses at each call; a TENSOR is one that an extern call reads or
    makes. CONSTANT addresses stay from call to call. ARENA buffers share one block that belongs to the executable.
    """

    INPUT = "input"
    OUTPUT = "output"
    TENSOR = "tensor"
    ARENA = "arena"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class ProgramBuffer:
    """A block of ``bytes`` bytes."""

    kind: BufferKind
    bytes: Dim
    name: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of the kernel ``symbol`` with the addresses of ``buffers`` and the values of ``dims``.

    ``needs_error``: the kernel takes an error flag last. ``label`` and ``where`` name the kernel and the user's line in
    messages. ``indexing``: its indexing operators, and their index tensors.
    """

    symbol: str
    buffers: tuple[int, ...]
    dims: tuple[Dim, ...] = ()
    needs_error: bool = False
    label: str = ""
    where: str = ""
    indexing: str = ""

    def out_of_range(self) -> IndexOutOfRangeError:
        """The error for data that index beyond a tensor."""
        return IndexOutOfRangeError(
            f"index out of range in {self.indexing or self.label or 'a kernel'}",
            where=self.where or None,
            why="an index tensor holds a value outside the dimension that it indexes.",
        )


@dataclass(frozen=True, slots=True)
class ExternCall:
    """The caller's function number ``index``, which reads and writes ``buffers``, none of them in the arena."""

    index: int
    buffers: tuple[int, ...] = ()


Step = Launch | ExternCall


@dataclass(frozen=True, slots=True)
class Program:
    """Buffers, referred to by their position; steps in order; the symbolic sizes, in the order of a call's table.

    Raises GraphError if a step refers to a buffer that does not exist, or an extern call to one in the arena.
    """

    buffers: tuple[ProgramBuffer, ...]
    steps: tuple[Step, ...]
    dims: tuple[Var, ...] = ()

    def __post_init__(self) -> None:
        for position, step in enumerate(self.steps):
            for b in step.buffers:
                if not 0 <= b < len(self.buffers):
                    raise GraphError(f"step {position} uses buffer {b}, but the program has {len(self.buffers)}")
                if isinstance(step, ExternCall) and self.buffers[b].kind is BufferKind.ARENA:
                    raise GraphError(f"extern call {step.index} uses buffer {b}, which lies in the arena")

    @property
    def io(self) -> tuple[int, ...]:
        """The buffers whose addresses a call gives, in the order of its table."""
        kinds = (BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.TENSOR)
        return tuple(i for i, b in enumerate(self.buffers) if b.kind in kinds)

    @property
    def constants(self) -> tuple[int, ...]:
        """The buffers whose addresses stay, in the order of their table."""
        return tuple(i for i, b in enumerate(self.buffers) if b.kind is BufferKind.CONSTANT)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The kernels that the program calls, each once, in the order of their table."""
        return tuple(dict.fromkeys(s.symbol for s in self.steps if isinstance(s, Launch)))

    def segments(self) -> list[ExternCall | tuple[Launch, ...]]:
        """The steps as runs of launches between extern calls."""
        runs: list[ExternCall | tuple[Launch, ...]] = []
        for step in self.steps:
            last = runs[-1] if runs else None
            if isinstance(step, ExternCall):
                runs.append(step)
            elif isinstance(last, tuple):
                runs[-1] = (*last, step)
            else:
                runs.append((step,))
        return runs

    def __str__(self) -> str:
        lines = [
            f"b{i}: {b.kind.value} {size_text(b.bytes)} bytes  {b.name}".rstrip() for i, b in enumerate(self.buffers)
        ]
        for step in self.steps:
            args = ", ".join([f"b{b}" for b in step.buffers])
            if isinstance(step, ExternCall):
                lines.append(f"extern {step.index}({args})")
            else:
                dims = "".join(f"; {size_text(d)}" for d in step.dims)
                lines.append(f"{step.symbol}({args}{dims})  {step.label}".rstrip())
        return "\n".join(lines)


def size_text(size: Dim) -> str:
    """A size as readable text."""
    return _print_expr(size) if isinstance(size, Expr) else str(size)
