"""The driver joins graph, schedules and backend: one graph goes in, a callable comes out.

Graph -> passes -> plan -> tasks -> kernels -> lowered kernels -> C or CUDA C++ -> binaries -> executables

A Platform hides the differences between targets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

import torch

from taskmap.backend.cuda.cuda_source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.compile.assemble import AssemblyInput, BoundProgram, ExternFunction, GroupKernel, SplitProgram, assemble
from taskmap.compile.cuda_graphs import ReplayedGraph
from taskmap.compile.frozen import FrozenGraph
from taskmap.compile.random_order import restore_random_order
from taskmap.compile.runtime import CompiledGraph
from taskmap.compile.sharing import Aliases
from taskmap.compile.task_store import TaskKernel, TaskStore, entry_key
from taskmap.compile.unfuse import unfuse
from taskmap.graph.fusion.planning import Group, Plan, plan
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes import run_passes
from taskmap.ir.analysis.key import task_key
from taskmap.ir.errors import CodegenError, LoweringError, ScheduleError, TaskmapError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.passes import dump_each, run_pipeline
from taskmap.ir.printer import print_kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.schedules import Config, ScheduledKernel, scheduled
from taskmap.targets.cpu import cpu_platform
from taskmap.targets.devices import CPU, chosen_target
from taskmap.targets.platform import LoadedPrograms, Platform, ProgramBuilder, Show
from taskmap.targets.streams import refuse_capture
from taskmap.tuning.choice import Choices, choices
from taskmap.util.dump import Dump
from taskmap.util.logs import detail, said, stage
from taskmap.util.metrics import COUNTERS
from taskmap.util.own_version import compiler_version
from taskmap.util.progress import progress

# Most processes compile only for the CPU; they need not wait for the other imports.
_cuda_platform: Callable[..., Platform] = lazily("taskmap.targets.cuda", "cuda_platform")
_sim_platform: Callable[..., Platform] = lazily("taskmap.targets.sim", "sim_platform")


@dataclass(slots=True)
class Session:
    """State shared by compilations with the same options: the platform, and the kernels of tasks seen so far.

    ``record``, if set, receives the outcome of each graph. ``choices`` gives tuned configurations.
    """

    options: Options
    platform: Platform
    tasks: TaskStore
    kernels: dict[str, TaskKernel] = field(default_factory=dict)
    record: list[Compilation | Fallback] | None = None
    choices: Choices | None = None

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
    call: CompiledGraph | FrozenGraph
    resources: Mapping[str, Resources] = field(default_factory=dict)


def new_session(options: Options, device: torch.device = CPU) -> Session:
    """A session for a model whose tensors are on ``device``.

    Raises CompilerNotFoundError, UnsupportedError, NoDeviceError and KernelStoreError, and InputError when the options
    ask for another kind of device.
    """
    target = chosen_target(options, device)
    platform: Platform
    if target == "cuda":
        refuse_capture(device, "it is compiled")
        platform = _cuda_platform(options, device)
    else:
        platform = _sim_platform(options) if target == "cuda-sim" else cpu_platform(options)
    session = Session(options, platform, TaskStore(platform.store.path / "tasks"))
    toolchain = getattr(platform, "toolchain", None)
    if toolchain is not None:  # the simulator is not timed
        session.choices = choices(platform.store.path / "tuning.sqlite", platform.target, toolchain, options)
    return session


def compile_graph(
    graph: Graph,
    session: Session,
    *,
    name: str,
    extern_function: Callable[[Node], ExternFunction],
    constant: Callable[[Node], torch.Tensor],
    aliases: Aliases,
    dump: Dump,
) -> Compilation:
    """``graph``, compiled.

    ``extern_function`` gives the function that runs an extern node through PyTorch, ``constant`` the tensor of a
    constant node; ``aliases`` lists the results that share memory. Raises a TaskmapError that names the fused
    group and the user's line when a stage fails.
    """
    options = session.options
    dump.write("graph.txt", graph)
    imported, graph = graph, prepared(graph, session.platform, dump, verify=options.verify_passes)
    planned = plan(graph)
    restore_random_order(planned)
    if session.choices is not None:
        session.choices.hints.update(graph.hints)
    stage(name, "graph", lambda: graph)
    dump.write("plan.txt", describe(planned))
    tune(planned, session)
    with closing(session.platform.builder()) as builder:
        kernels = _kernels(planned, session, dump, builder)
        with progress("compiling kernels", len(builder)) as show:
            _refit(kernels, session, dump, builder, show)
        symbols = {g: GroupKernel(k.source.symbol, k.source.needs_error) for g, k in kernels.items()}
        parts = assemble(AssemblyInput(graph, planned, symbols, extern_function, constant, aliases))
        memory = {part.program: plan_memory(part.program) for part in (parts.main, parts.prepare) if part is not None}
        for part in (parts.prepare, parts.main):
            if part is not None:
                dump.write("program.txt", f"{part.program}\n\n{memory[part.program]}")
        with progress("compiling kernels", len(builder)) as show:
            ready = builder.finish(memory, parts.prepare is not None, dump, show)
    for symbol, taken in ready.resources.items():
        dump.write(f"{symbol}_resources.txt", taken)
    stage(name, "plan", lambda: describe(planned))
    stage(
        name,
        "kernels",
        lambda: "\n\n".join(dict.fromkeys(f"// {k.schedule}\n{k.source.text}" for k in kernels.values())),
    )
    call = _callable(parts, ready, session.platform, graph.constant_inputs if name == "inference" else None)
    COUNTERS.add("graphs")
    compilation = Compilation(name, options, imported, graph, planned, kernels, parts, call, ready.resources)
    externs = sum(isinstance(step, Node) for step in planned.steps)
    said("%s graph: %d kernels, %d steps through PyTorch", name, len(kernels), externs)
    COUNTERS.add("externs", externs)
    if session.record is not None:
        session.record.append(compilation)
    return compilation


def prepared(graph: Graph, platform: Platform, dump: Dump, *, verify: bool = False) -> Graph:
    """``graph`` after the graph passes, with weights arranged as the target's templates read them."""
    observe = dump_each(lambda step, now: dump.write(f"graph_{step}.txt", now)) if dump.wanted else None
    graph = run_passes(graph, observe, verify=verify)
    return run_pipeline(platform.graph_passes, graph, verify=verify)


def tune(plan: Plan, session: Session) -> None:
    """Measure configurations for the planned tasks, if the options allow time for it."""
    if session.choices is None or session.options.tune_seconds is None:
        return
    tasks = [step.task for step in plan.steps if isinstance(step, Group)]
    with progress("tuning", len(tasks)) as show:
        session.choices.tune(tasks, show)


def _callable(
    parts: SplitProgram, ready: LoadedPrograms, platform: Platform, constant_inputs: frozenset[int] | None
) -> CompiledGraph | FrozenGraph:
    """The graph's programs, ready to be called. With ``constant_inputs`` launches are replayed; that is for inference,
    whose results are short-lived.
    """

    def runs(part: BoundProgram) -> CompiledGraph:
        return CompiledGraph(part.binding, ready.executables[part.program], platform.device, platform.alignment)

    capturer = None if constant_inputs is None else platform.capturer()
    main = runs(parts.main)
    if capturer is not None and constant_inputs is not None:
        executable = ready.executables[parts.main.program]
        main = ReplayedGraph(
            parts.main.binding, executable, platform.device, platform.alignment, capturer, constant_inputs
        )
    if parts.prepare is None:
        return main
    return FrozenGraph(main, runs(parts.prepare), parts.watched, ready.differ)


def _kernels(plan: Plan, session: Session, dump: Dump, builder: ProgramBuilder) -> dict[Group, TaskKernel]:
    """The kernel of every group, passed to ``builder`` as soon as it is ready. A group of several nodes that cannot be
    scheduled as a whole is taken apart."""
    kernels: dict[Group, TaskKernel] = {}
    steps: list[Group | Node] = []
    available: set[Node] = set()
    with progress("scheduling", len(plan.steps)) as show:
        for done, step in enumerate(plan.steps, 1):
            groups = [step] if isinstance(step, Group) else []
            try:
                kernels.update({group: _kernel_of(group, session, dump) for group in groups})
            except (ScheduleError, LoweringError, CodegenError) as error:
                assert isinstance(step, Group)
                groups = unfuse(plan, step, available, error)
                if not groups:
                    raise
                COUNTERS.add("groups_split")
                detail("%s is taken apart, because no schedule accepts it as a whole: %s", step.name, error)
                dump.write(f"split_{step.name}.txt", error)
                kernels.update({group: _kernel_of(group, session, dump) for group in groups})
            for group in groups:
                builder.add(kernels[group].source)
            steps += groups or [step]
            available.update(node for group in groups for node in group.outputs)
            show(done, len(plan.steps))
    plan.steps = steps
    return kernels


def _refit(kernels: dict[Group, TaskKernel], session: Session, dump: Dump, builder: ProgramBuilder, show: Show) -> None:
    """Replace kernels that need more resources than the GPU has, each by its next configuration. A kernel without one
    stays: it is slow, but correct."""
    attempt = 0
    while refused := builder.refused(show):
        attempt += 1
        for group, kernel in kernels.items():
            error = refused.get(kernel.source.symbol)
            if error is None:
                continue
            key = task_key(group.task)
            if session.kernels[key] is kernel:
                made = _made_otherwise(group, key, kernel, error, session, dump, attempt)
                session.tasks.add(_entry(key, session.target, _tuned(group.task, session)), made)
                session.kernels[key] = made
            kernels[group] = session.kernels[key]
            builder.add(kernels[group].source)


def _made_otherwise(
    group: Group, key: str, kernel: TaskKernel, error: TaskmapError, session: Session, dump: Dump, attempt: int
) -> TaskKernel:
    """The kernel of a group whose previous kernel was refused; its note says so."""
    why = " ".join(str(error.why).split())
    try:
        made = _make_kernel(group, key, None, session, dump, attempt)
    except (ScheduleError, LoweringError, CodegenError):
        assert isinstance(kernel.source, CudaSource)
        return replace(kernel, source=replace(kernel.source, allow=ALLOWANCES), refusal=why)
    return kernel.replaced_by(made, why)


def _kernel_of(group: Group, session: Session, dump: Dump) -> TaskKernel:
    """The kernel of a group's task; equal tasks share one."""
    key = task_key(group.task)
    if key in session.kernels:
        COUNTERS.add("tasks_shared")
        detail("%s: the kernel of an equal task, %s", group.name, session.kernels[key].source.symbol)
        return session.kernels[key]
    config = _tuned(group.task, session)
    if config is not None:
        COUNTERS.add("tasks_tuned")
        detail("%s: tuned, %s", group.name, config)
    entry = _entry(key, session.target, config)
    # Dumping or verifying every stage requires running every stage.
    found = None if dump.wanted or session.options.verify_passes else session.tasks.find(entry)
    if found is not None:
        COUNTERS.add("tasks_found")
        detail("%s: scheduled by an earlier process, %s, %s", group.name, found.source.symbol, found.schedule)
        session.kernels[key] = found
        return found
    try:
        made = _make_kernel(group, key, config, session, dump)
    except TaskmapError as error:
        error.at(_place(group))
        raise
    except Exception as error:
        raise TaskmapError(
            f"cannot compile the fused group {group.name!r}",
            where=_place(group),
            why=f"{type(error).__name__}: {error}",
            hint="This is a defect of taskmap. The option 'dump_dir' shows every stage up to it.",
        ) from error
    COUNTERS.add("tasks_scheduled")
    detail("%s: scheduled, %s, %s", group.name, made.source.symbol, made.schedule)
    session.tasks.add(entry, made)
    session.kernels[key] = made
    return made


def _tuned(task: Task, session: Session) -> Config | None:
    return None if session.choices is None else session.choices.config(task)


def _entry(key: str, target: Target, config: Config | None) -> str:
    return entry_key(key, target, compiler_version(), "" if config is None else str(config))


def _make_kernel(
    group: Group, key: str, config: Config | None, session: Session, dump: Dump, attempt: int = 0
) -> TaskKernel:
    task = group.task
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    dump.write(f"task_{task.name}_{digest}.txt", key)
    kernel = _scheduled(task, config, session.target, attempt).kernel

    def write(step: str, module: Kernel) -> None:
        dump.write(f"kernel_{task.name}_{digest}_{step}.txt", print_kernel(module))

    if dump.wanted:
        write("scheduled", kernel)
    observe = dump_each(write) if dump.wanted else None
    lowered = lower(kernel, observe, session.target, verify=session.options.verify_passes)
    source = session.platform.generate(lowered)
    # Only the dumped file holds the model's lines: equal kernels of a model's layers must have equal text.
    lines = "".join(_from(line) for line in _place(group).splitlines()) if dump.wanted else ""
    dump.write(f"{source.symbol}{session.platform.suffix}", lines + source.text)
    return TaskKernel(source, kernel.note)


def _scheduled(task: Task, config: Config | None, target: Target, attempt: int) -> ScheduledKernel:
    if config is not None:
        with suppress(ScheduleError):  # the fused nodes may not fit beside the configuration's needs
            return scheduled(task, target, config)
    return scheduled(task, target, attempt=attempt)


def _place(group: Group) -> str:
    return "\n".join(dict.fromkeys(str(node.origin) for node in group.nodes if str(node.origin)))


def _from(line: str) -> str:
    """A comment that names a line of the model; a trailing backslash would continue the comment, so it is dropped."""
    return f"// from {line.strip().rstrip(chr(92))}\n"


def describe(plan: Plan) -> str:
    """The plan as text: its steps with their fused nodes, and the placement of values."""
    lines: list[str] = []
    for number, step in enumerate(plan.steps):
        if isinstance(step, Node):
            lines.append(f"{number}: extern {step!r}  {step.origin}")
            continue
        lines.append(f"{number}: {step.kind} {step.name}")
        lines += [f"    {node!r}  {node.origin}" for node in step.nodes]
        lines += [f"    refused {node!r}: {reason}" for node, reason in step.refused]
    for node, placement in plan.placements.items():
        root = "" if placement.root is node else f" in %{placement.root.id}"
        lines.append(f"%{node.id}{root} strides {placement.strides} offset {placement.offset}")
    return "\n".join([*lines, f"return {plan.outputs}"])
