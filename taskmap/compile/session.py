"""A session: the state that compilations with the same options share, and the record of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskmap.backend.cuda.resources import Resources
from taskmap.backend.program.executable import TimedRun
from taskmap.calls.bound import SplitProgram
from taskmap.calls.prepared import Called, PreparedGraph
from taskmap.compile.strategies import Strategies
from taskmap.compile.task_store import TaskKernel, TaskStore
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import Graph
from taskmap.ir.target import Target
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.targets.cpu import cpu_platform
from taskmap.targets.devices import CPU, Device, chosen_target
from taskmap.targets.platform import Platform
from taskmap.tuning.choice import Choices, choices

# Most processes compile only for the CPU; they need not wait for the other imports.
if TYPE_CHECKING:
    from taskmap.schedules.strategies.offers import offers_of as _offers_of
    from taskmap.targets.cuda import cuda_platform as _cuda_platform
    from taskmap.targets.sim import sim_platform as _sim_platform
    from taskmap.targets.streams import refuse_capture as _refuse_capture
    from taskmap.targets.torch_devices import torch_device as _torch_device
else:
    _offers_of = lazily("taskmap.schedules.strategies.offers", "offers_of")
    _cuda_platform = lazily("taskmap.targets.cuda", "cuda_platform")
    _sim_platform = lazily("taskmap.targets.sim", "sim_platform")
    _refuse_capture = lazily("taskmap.targets.streams", "refuse_capture")
    _torch_device = lazily("taskmap.targets.torch_devices", "torch_device")


@dataclass(slots=True)
class Session:
    """State shared by compilations with the same options: the platform, and the kernels of tasks seen so far.

    ``record``, if set, receives the outcome of each graph. ``choices`` gives tuned configurations. ``strategies`` are
    those of the options, which come before templates.
    """

    options: Options
    platform: Platform
    tasks: TaskStore
    kernels: dict[str, TaskKernel] = field(default_factory=dict)
    record: list[Compilation | Fallback] | None = None
    choices: Choices | None = None
    strategies: Strategies = field(init=False)

    def __post_init__(self) -> None:
        given = self.options.strategies
        self.strategies = Strategies(_offers_of(given) if given else (), self.platform.target)

    @property
    def target(self) -> Target:
        """The compilation target."""
        return self.platform.target


@dataclass(frozen=True, slots=True)
class Fallback:
    """A graph that PyTorch runs as a whole, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """Everything known about one compiled graph, for reports: ``call`` runs it.

    ``imported`` is the graph as imported, ``graph`` the result of the passes. ``resources``: registers and memory that
    each kernel uses on a GPU, by symbol.
    """

    name: str
    options: Options
    imported: Graph
    graph: Graph
    plan: Plan
    kernels: dict[Group, TaskKernel]
    parts: SplitProgram
    call: Called
    resources: Mapping[str, Resources] = field(default_factory=dict)

    def take_runs(self) -> tuple[list[TimedRun], list[TimedRun]]:
        """The runs timed since the last call of this method, of the main and the prepare program."""
        parts = (self.call.main, self.call.prepare) if isinstance(self.call, PreparedGraph) else (self.call,)
        taken = [list(part.executable.runs) for part in parts]
        for part in parts:
            part.executable.runs.clear()
        return taken[0], taken[1] if len(taken) > 1 else []


def new_session(options: Options, device: Device = CPU) -> Session:
    """A session for a model whose tensors are on ``device``.

    Raises CompilerNotFoundError, UnsupportedError, NoDeviceError and KernelStoreError, and InputError when the options
    ask for another kind of device.
    """
    target = chosen_target(options, device)
    platform: Platform
    if target == "cuda":
        gpu = _torch_device(device)
        _refuse_capture(gpu, "it is compiled")
        platform = _cuda_platform(options, gpu)
    else:
        platform = _sim_platform(options) if target == "cuda-sim" else cpu_platform(options)
    session = Session(options, platform, TaskStore(platform.store.path / "tasks"))
    toolchain = getattr(platform, "toolchain", None)
    if toolchain is not None:  # the simulator is not timed
        session.choices = choices(platform.store.path / "tuning.sqlite", platform.target, toolchain, options)
    return session
