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
class OperatorRoles:
    """The operators of a group. anchor: the one that a template scheduled, with its sizes; "" for none. prologue,
    epilogue: those computed before and after it. fused: those of a group without an anchor. views: those without cost.
    """

    anchor: str = ""
    prologue: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    views: tuple[str, ...] = ()

    @property
    def computed(self) -> tuple[str, ...]:
        """All but the views, in order."""
        return (*self.prologue, *((self.anchor,) if self.anchor else ()), *self.epilogue, *self.fused)


@dataclass(frozen=True, slots=True)
class GroupCode:
    """The code of a group. schedule: template or rule with its config. symbol: the kernel's name. resources: registers
    and shared memory on a GPU, if the GPU compiler was asked; "" for a CPU. why: the reason for the algorithm, where
    the anchor has several."""

    schedule: str
    symbol: str
    resources: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of a group. inputs, outputs: types and shapes of the values read and written. reads, writes: the numbers
    of the nodes that own their memory. bytes: of inputs and outputs. operations: a multiply-add counts as two. Both are
    None if they depend on sizes of a graph that did not run."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bytes: int | None
    operations: int | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """The measured time of a group or extern. seconds: the median of the measured runs. fastest: the shortest of them,
    well below the median if the processor was busy with other work. calls: runs per call of the model. share: its part
    of all measured time per call. None: its graph did not run."""

    seconds: float | None
    fastest: float | None
    calls: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One kernel: a group of operators that run together.

    number: its position in `Report.groups`. kind: pointwise, row, reduce, contraction, attention or scatter. line: the
    user's line of the anchor, or of the last operator. lines: all lines that it came from, in order. once: it runs only
    when a frozen parameter has changed, and has no share of the time. refused: the neighbours that stayed outside.
    """

    number: int
    graph: int
    name: str
    kind: str
    line: Line
    lines: tuple[Line, ...]
    roles: OperatorRoles
    code: GroupCode
    work: GroupWork
    time: StepTime
    once: bool
    refused: tuple[Refusal, ...]

    @property
    def title(self) -> str:
        """The anchor with its sizes, or the operators of a group without one."""
        roles = self.roles
        return roles.anchor or ", ".join(dict.fromkeys(name.split(" ")[0] for name in roles.fused)) or self.name

    @property
    def gflops(self) -> float | None:
        """Operations per second, in 10⁹."""
        return self._rate(self.work.operations)

    @property
    def gigabytes(self) -> float | None:
        """Bytes moved per second, in 10⁹."""
        return self._rate(self.work.bytes)

    def _rate(self, amount: int | None) -> float | None:
        return None if not self.time.seconds or amount is None else amount / self.time.seconds / 1e9


@dataclass(frozen=True, slots=True)
class ExternReport:
    """An operator that PyTorch or numpy runs (``runner``): its name, the user's line, the reason, its inputs and its
    time."""

    graph: int
    node: int
    target: str
    line: Line
    reason: str
    inputs: tuple[str, ...]
    time: StepTime
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
        steps = [*(g.time for g in self.groups if not g.once), *(e.time for e in self.externs)]
        return sum((time.fastest or 0.0) * time.calls for time in steps)

    def least(self, group: GroupReport) -> float | None:
        """A lower bound, in seconds, on the time of the group's operations and bytes on this target; None if a peak or
        a cost is unknown."""
        work = group.work
        if self.peaks is None or work.operations is None or work.bytes is None:
            return None
        return self.peaks.seconds(work.operations, work.bytes, work.inputs, group.kind in ("contraction", "attention"))

    def roofline(self, group: GroupReport) -> float | None:
        """The group's share of the roofline: its lower bound divided by its measured time."""
        least, seconds = self.least(group), group.time.seconds
        return None if least is None or not seconds or self.simulated else least / seconds

    def simulated_bound(self, group: GroupReport) -> SimulatedBound | None:
        """The simulator's bound for the group's kernel; None if it was not simulated."""
        return next((k.simulated for k in self.kernels if k.symbol == group.code.symbol), None)
