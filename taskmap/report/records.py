"""The result of `taskmap.explain`: a compiled model as records and as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from taskmap.ir.algebra.grid_picture import Drawing
from taskmap.report.roofline import Peaks

Role = Literal["anchor", "prologue", "epilogue", "fused", "inlined", "view", "extern", "item", "folded"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's program; file is "" and line 0 if the graph has no line."""

    file: str = ""
    line: int = 0
    text: str = ""

    @property
    def place(self) -> str:
        """The file's name without its folder, and the line number."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.place}  {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A neighbour that stayed outside a group, and the reason."""

    node: int
    operator: str
    line: Line
    reason: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One operator of a graph.

    graph: its position in `Report.graphs`. node: its number in that graph; None for an operator that the graph passes
    removed. operator: its name. source: the PyTorch operator that it came from. shape: type and shape of its value.
    role: in its group it is the anchor, in the anchor's prologue or epilogue, fused without an anchor, inlined in
    several groups, or a view without memory; or it is an extern that PyTorch runs, an item of an extern's result, or
    folded away earlier. groups: the numbers of the groups that compute it. once: it depends only on frozen parameters,
    so it is computed again only when they change. reason: why it is an extern, or which pass folded it.
    """

    graph: int
    node: int | None
    operator: str
    source: str
    line: Line
    shape: str
    role: Role
    groups: tuple[int, ...] = ()
    once: bool = False
    reason: str = ""

    @property
    def native(self) -> bool:
        """True if taskmap's own code computes it."""
        return self.role not in ("extern", "item")


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One kernel: a group of operators that run together.

    number: its position in `Report.groups`. kind: pointwise, row, reduce, contraction, attention or scatter. line: the
    user's line of the anchor, or of the last operator. lines: all lines that it came from, in order. anchor: the
    operator that a template scheduled, with its sizes; "" for none. prologue, epilogue, fused: the operators computed
    before and after the anchor, or without one. views: operators without cost. schedule: template or rule with its
    config. inputs, outputs: types and shapes of the values read and written. reads, writes: the numbers of the nodes
    that own their memory. bytes: of inputs and outputs. operations: a multiply-add counts as two. seconds: the median
    of the measured runs. fastest: the shortest of them, well below the median if the processor was busy with other
    work. calls: runs per call of the model. share: its part of all measured time per call. once: it runs only when a
    frozen parameter has changed, and has no share. resources: its registers and shared memory on a GPU, if the GPU
    compiler was asked; "" for a CPU. why: the reason for its algorithm, where its anchor has several. Unknown values,
    such as the time of a graph that did not run, are None.
    """

    number: int
    graph: int
    name: str
    kind: str
    line: Line
    lines: tuple[Line, ...]
    anchor: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    fused: tuple[str, ...]
    views: tuple[str, ...]
    schedule: str
    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bytes: int | None
    operations: int | None
    seconds: float | None
    fastest: float | None
    calls: float
    share: float | None
    once: bool
    refused: tuple[Refusal, ...]
    resources: str = ""
    why: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it computes, in order."""
        return (*self.prologue, *((self.anchor,) if self.anchor else ()), *self.epilogue, *self.fused)

    @property
    def title(self) -> str:
        """The anchor with its sizes, or the operators of a group without one."""
        return self.anchor or ", ".join(dict.fromkeys(name.split(" ")[0] for name in self.fused)) or self.name

    @property
    def gflops(self) -> float | None:
        """Operations per second, in 10⁹."""
        return None if not self.seconds or self.operations is None else self.operations / self.seconds / 1e9

    @property
    def gigabytes(self) -> float | None:
        """Bytes moved per second, in 10⁹."""
        return None if not self.seconds or self.bytes is None else self.bytes / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class ExternReport:
    """An operator that PyTorch or numpy runs (``runner``): its name, the user's line, the reason, its inputs, and its
    time as in GroupReport."""

    graph: int
    node: int
    target: str
    line: Line
    reason: str
    inputs: tuple[str, ...]
    seconds: float | None
    fastest: float | None
    calls: float
    share: float | None
    runner: str = "PyTorch"

    def __str__(self) -> str:
        where = f" at {self.line.place}" if self.line.place else ""
        return f"{self.target}{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled graph. A model with graph breaks has several, training one for each direction.

    kind: forward, backward or inference. nodes: the number of nodes, including inputs and constants. inputs:
    the numbers of the nodes that are inputs or constants. outputs: the numbers of the nodes that own the results'
    memory; None for a result that is not a tensor. calls: runs per call of the model. seconds: of one run, all
    groups and externs together. fallback: why PyTorch runs it as a whole, uncounted and unmeasured; "" for all others.
    """

    number: int
    kind: str
    nodes: int
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    calls: float
    seconds: float | None
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A task mapping of a kernel: the object it divides, its text, and its drawing; None if it has none."""

    what: str
    mapping: str
    drawing: Drawing | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SimulatedBound:
    """A lower bound on a kernel's time on a GPU, in seconds, from the simulator's counts. ``bound``: the resource that
    takes longest, ``resources`` the seconds that each would take alone."""

    gpu: str
    seconds: float
    bound: str
    resources: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A row of the tree of a strategy: its number, its depth, a spec and the step that decomposes it, and a note.
    barriers: those that stand before it."""

    number: int
    depth: int
    spec: str
    step: str
    level: str
    note: str = ""
    barriers: int = 0


@dataclass(frozen=True, slots=True)
class TreeReport:
    """The tree of a strategy that made a kernel. lines: for each line of the kernel's text the row that it comes from,
    or -1; empty if that is not known."""

    rows: tuple[TreeRow, ...]
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A kernel; several groups may share it.

    symbol: its name in the generated text. language: C or CUDA C++. text: the generated code. threads: of a thread
    block of a GPU, 0 on a CPU. simulated: for the target cuda-sim, if it could be counted in time. draw: makes the
    pictures of its task mappings, ``choices`` the lines of ``taskmap.ir.lower.selections``, ``tree`` the tree of the
    strategy that made it, if one did; all schedule it again.
    """

    symbol: str
    language: str
    schedule: str
    text: str
    threads: int = 0
    simulated: SimulatedBound | None = None
    draw: Callable[[], tuple[Picture, ...]] = field(default=tuple, repr=False, compare=False)
    choices: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)
    tree: Callable[[], TreeReport | None] = field(default=lambda: None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class HostReport:
    """An operator of an ONNX model that ends a graph and runs on the host: its name, its node, and the reason."""

    operator: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that flows between steps: a group ("group 3"), an extern ("extern 0.17": graph and node), an
    input ("input 0.1": graph and position) or the graph's results ("results 0")."""

    source: str
    target: str
    value: str


@dataclass(frozen=True, slots=True)
class ReportData:
    """The records of a report: what `Report` presents.

    threads: of the kernels. runs: measured runs of the model after the first; every time is their median.
    model: its name. kernels: each once, by symbol. flows: of values between the steps of the graphs.
    peaks: the best rates of the target; None if unknown. conditions: those that the times depend on, by name.
    simulated: times are those of the simulator, on a CPU, and say nothing about a GPU. host: operators that the host
    runs between graphs, which are not measured.
    """

    graphs: tuple[GraphReport, ...]
    nodes: tuple[NodeReport, ...]
    groups: tuple[GroupReport, ...]
    externs: tuple[ExternReport, ...]
    target: str
    threads: int
    runs: int
    model: str = ""
    kernels: tuple[KernelReport, ...] = ()
    flows: tuple[Flow, ...] = ()
    peaks: Peaks | None = None
    conditions: tuple[tuple[str, str], ...] = ()
    simulated: bool = False
    host: tuple[HostReport, ...] = ()

    @property
    def seconds(self) -> float:
        """Time in groups and externs per call of the model, each measured separately."""
        return sum((g.seconds or 0.0) * g.calls for g in self.graphs)

    @property
    def fastest(self) -> float:
        """As ``seconds``, with the shortest time of each group and extern."""
        groups = sum((g.fastest or 0.0) * g.calls for g in self.groups if not g.once)
        return groups + sum((e.fastest or 0.0) * e.calls for e in self.externs)

    def least(self, group: GroupReport) -> float | None:
        """A lower bound, in seconds, on the time of the group's operations and bytes on this target; None if a peak or
        a cost is unknown."""
        if self.peaks is None or group.operations is None or group.bytes is None:
            return None
        product = group.kind in ("contraction", "attention")
        return self.peaks.seconds(group.operations, group.bytes, group.inputs, product)

    def roofline(self, group: GroupReport) -> float | None:
        """The group's share of the roofline: its lower bound divided by its measured time."""
        least = self.least(group)
        return None if least is None or not group.seconds or self.simulated else least / group.seconds

    def simulated_bound(self, group: GroupReport) -> SimulatedBound | None:
        """The simulator's bound for the group's kernel; None if it was not simulated."""
        return next((k.simulated for k in self.kernels if k.symbol == group.symbol), None)
