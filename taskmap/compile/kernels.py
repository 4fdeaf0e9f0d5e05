"""The kernels of one graph: each group's task is scheduled, lowered and generated, or found from an earlier time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from taskmap.backend.cuda.source import ALLOWANCES, CudaSource
from taskmap.backend.store.key import KernelSource
from taskmap.compile.session import Session
from taskmap.compile.task_store import TaskKernel, entry_key
from taskmap.compile.unfuse import unfuse
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import ExternNode, Node
from taskmap.graph.passes.pack_classes import SizeClass, size_class
from taskmap.ir.analysis.key import kernel_key, task_key
from taskmap.ir.errors import CodegenError, LoweringError, ScheduleError, TaskmapError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.twins import inlined
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.passes import dump_each
from taskmap.ir.printer import print_kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules import Config, ScheduledKernel, scheduled
from taskmap.targets.platform import ProgramBuilder, Show
from taskmap.util.dump import Dump
from taskmap.util.logs import detail
from taskmap.util.metrics import COUNTERS
from taskmap.util.own_version import compiler_version
from taskmap.util.progress import progress

_REFUSED = (ScheduleError, LoweringError, CodegenError)


@dataclass(frozen=True, slots=True, eq=False)
class Compile:
    """One compilation of a graph's kernels: sources go to ``builder``, stages to ``dump``, and what later graphs can
    use again into ``session``. ``hints``: likely values of the graph's symbolic sizes.
    """

    session: Session
    dump: Dump
    builder: ProgramBuilder
    hints: Mapping[Var, int]

    def kernels(self, plan: Plan) -> tuple[Plan, dict[Group, TaskKernel]]:
        """The kernel of every group, passed to the builder as soon as it is ready, and the plan whose groups they are:
        a group of several nodes that cannot be scheduled as a whole is taken apart."""
        kernels: dict[Group, TaskKernel] = {}
        steps: list[Group | ExternNode] = []
        placements = dict(plan.placements)
        available: set[Node] = set()
        with progress("scheduling", len(plan.steps)) as show:
            for done, step in enumerate(plan.steps, 1):
                groups = [step] if isinstance(step, Group) else []
                try:
                    kernels.update({group: self._kernel_of(group) for group in groups})
                except _REFUSED as error:
                    assert isinstance(step, Group)
                    groups, added = unfuse(placements, step, available, error)
                    if not groups:
                        raise
                    placements.update(added)
                    COUNTERS.add("groups_split")
                    detail("%s is taken apart, because no schedule accepts it as a whole: %s", step.name, error)
                    self.dump.write(f"split_{step.name}.txt", error)
                    kernels.update({group: self._kernel_of(group) for group in groups})
                for group in groups:
                    self.builder.add(kernels[group].source)
                steps += groups or [step]
                available.update(node for group in groups for node in group.outputs)
                show(done, len(plan.steps))
        return replace(plan, steps=tuple(steps), placements=MappingProxyType(placements)), kernels

    def refit(self, kernels: Mapping[Group, TaskKernel], show: Show) -> dict[Group, TaskKernel]:
        """``kernels``, with those that need more resources than the GPU has replaced, each by its next configuration. A
        kernel without one stays: it is slow, but correct."""
        session, fitting, attempt = self.session, dict(kernels), 0
        by_user: dict[str, ScheduledKernel] = {}  # strategies' kernels that were refused
        while refused := self.builder.refused(show):
            attempt += 1
            for group, kernel in fitting.items():
                error = refused.get(kernel.source.symbol)
                if error is None:
                    continue
                key = task_key(group.task)
                if session.kernels[key] is kernel:
                    own = by_user.get(key) or session.strategies.kernel(group.task)
                    tried = attempt if own is None else attempt - 1  # of the templates
                    if own is not None and key not in by_user:
                        by_user[key] = own
                        session.strategies.refuse(group.task, error)
                    made = self._made_otherwise(group, key, kernel, error, tried)
                    config = self._tuned(group.task) if own is None else None
                    session.tasks.add(self._entry(key, config, own), made)
                    session.kernels[key] = made
                fitting[group] = session.kernels[key]
                self.builder.add(fitting[group].source)
        return fitting

    def _made_otherwise(
        self, group: Group, key: str, kernel: TaskKernel, error: TaskmapError, attempt: int
    ) -> TaskKernel:
        """The kernel of a group whose previous kernel was refused; it records the refusal."""
        why = " ".join(str(error.why).split())
        try:
            made = self._make_kernel(group, group.task, key, None, attempt)
        except _REFUSED:
            assert isinstance(kernel.source, CudaSource)
            return replace(kernel, source=replace(kernel.source, allow=ALLOWANCES), refusal=why)
        return kernel.replaced_by(made, why)

    def _kernel_of(self, group: Group) -> TaskKernel:
        """The kernel of a group's task; equal tasks share one, and so do the tasks of a size class."""
        session, task = self.session, self.task_of(group)
        once = group.once and session.target.kind == "cpu"
        key = f"{task_key(task)}{' once' * once}"
        if key in session.kernels:
            COUNTERS.add("tasks_shared")
            detail("%s: the kernel of an equal task, %s", group.name, session.kernels[key].source.symbol)
            return session.kernels[key]
        own = session.strategies.kernel(task)
        config = self._tuned(task) if own is None else None
        if config is not None:
            COUNTERS.add("tasks_tuned")
            detail("%s: tuned, %s", group.name, config)
        entry = self._entry(key, config, own)
        # Dumping or verifying every stage requires running every stage.
        found = None if self.dump.wanted or session.options.verify_passes else session.tasks.find(entry)
        if found is not None:
            COUNTERS.add("tasks_found")
            detail("%s: scheduled by an earlier process, %s, %s", group.name, found.source.symbol, found.schedule)
            session.kernels[key] = found
            return found
        try:
            made = self._make_kernel(group, task, key, config, own=own)
        except TaskmapError as error:
            if own is not None and isinstance(error, _REFUSED):
                session.strategies.refuse(task, error)
                return self._kernel_of(group)
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

    def task_of(self, group: Group) -> Task:
        """The task whose kernel computes the group: its own, or that of its size class."""
        return task_of(group, self.session.target)

    def sizes_of(self, group: Group) -> tuple[Dim, ...]:
        """The sizes that the group's kernel takes as arguments."""
        of = _size_class(group, self.session.target)
        return group.task.dims if of is None else of.sizes

    def _tuned(self, task: Task) -> Config | None:
        choices = self.session.choices
        return None if choices is None else choices.config(task, self.hints)

    def _entry(self, key: str, config: Config | None, own: ScheduledKernel | None) -> str:
        """The name of a task's entry. own: the kernel that a strategy makes, all of which counts."""
        chosen = "" if config is None else str(config)
        chosen = chosen if own is None else f"{own.kernel.note} {kernel_key(own.kernel)}"
        return entry_key(key, self.session.target, compiler_version(), chosen)

    def _make_kernel(
        self,
        group: Group,
        task: Task,
        key: str,
        config: Config | None,
        attempt: int = 0,
        own: ScheduledKernel | None = None,
    ) -> TaskKernel:
        session, dump = self.session, self.dump
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        dump.write(f"task_{task.name}_{digest}.txt", key)
        made = own or _scheduled(task, config, session.target, attempt)

        def write(step: str, module: Kernel) -> None:
            dump.write(f"kernel_{task.name}_{digest}_{step}.txt", print_kernel(module))

        if dump.wanted:
            write("scheduled", made.kernel)
        observe = dump_each(write) if dump.wanted else None
        kernel = inlined(made.kernel, texts=session.options.target == "cuda-sim")
        lowered = lower(kernel, observe, session.target, verify=session.options.verify_passes)
        source = session.platform.generate(lowered)
        if group.once and isinstance(source, KernelSource):
            source = source.running_once()
        # Only the dumped file holds the model's lines: equal kernels of a model's layers must have equal text.
        lines = "".join(_from(line) for line in _place(group).splitlines()) if dump.wanted else ""
        dump.write(f"{source.symbol}{session.platform.suffix}", lines + source.text)
        return TaskKernel(source, kernel.note, made.choice)


def task_of(group: Group, target: Target) -> Task:
    """The task whose kernel computes a group on a target: its own, or that of its size class."""
    of = _size_class(group, target)
    return group.task if of is None else of.task


def _size_class(group: Group, target: Target) -> SizeClass | None:
    """The size class of a group that runs once: compiling takes longer than it runs. At every call a kernel that knows
    its sizes is up to a tenth faster."""
    return size_class(group.task) if group.once and target.kind == "cpu" else None


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
