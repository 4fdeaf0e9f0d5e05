"""The parts of a report beyond its groups: kernels with their text, flows of values, peaks, and conditions."""

from __future__ import annotations

import platform as machine
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata

import taskmap
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cuda.source import CudaSource
from taskmap.compile.kernels import task_of
from taskmap.compile.operator_names import value_text
from taskmap.compile.session import Compilation, Session
from taskmap.compile.task_store import TaskKernel
from taskmap.graph.fusion.planning import Group
from taskmap.graph.nodes import ExternNode, ItemNode, Node, SizeNode
from taskmap.ir.analysis.cost import Sizes
from taskmap.ir.nodes import Var
from taskmap.ir.target import GpuTarget
from taskmap.report.collect import Recorded
from taskmap.report.mappings import choices, pictures
from taskmap.report.peaks import peaks_of
from taskmap.report.presentation import Report
from taskmap.report.records import Flow, KernelReport
from taskmap.report.roofline import Peaks
from taskmap.report.sim_bounds import Kernel, simulated_bounds
from taskmap.report.trees import tree_of
from taskmap.targets.cpu import CpuPlatform


def with_kernels(report: Report, recorded: Sequence[Recorded], session: Session, model: str = "") -> Report:
    """``report`` with further facts from ``recorded``, the compilations from which it was made.

    model: its name in the report.
    """
    kernels: dict[str, KernelReport] = {}
    countable: list[tuple[int, Kernel]] = []
    flows: list[Flow] = []
    for number, one in enumerate(recorded):
        if not isinstance(one.graph, Compilation):
            continue
        once = set() if one.graph.parts.prepare is None else set(one.graph.parts.prepare.origins)
        planned = [step for step in one.graph.plan.steps if isinstance(step, Group)]
        reported = [g.number for g in report.groups if g.graph == number]
        numbers = dict(zip(sorted(planned, key=lambda g: g in once), reported, strict=True))
        flows += _Flows(number, one.graph, numbers).found()
        sizes = dict(zip(one.graph.graph.dims, one.main[-1].sizes, strict=True)) if one.main else {}
        for group in planned:
            made = one.graph.kernels[group]
            if made.source.symbol in kernels:
                continue
            kernels[made.source.symbol] = _kernel(group, made, session, one.graph.graph.hints, sizes, report.threads)
            work = report.groups[numbers[group]].work.operations
            if isinstance(made.source, CudaSource) and work is not None:
                countable.append((work, (made.source, group.task, sizes)))
    gpu = session.target
    if session.options.target == "cuda-sim" and isinstance(gpu, GpuTarget):  # smallest first, as many as time allows
        smallest = [kernel for _, kernel in sorted(countable, key=lambda entry: entry[0])]
        bounds = simulated_bounds(smallest, gpu, session.platform.store)
        kernels = {symbol: replace(kernel, simulated=bounds.get(symbol)) for symbol, kernel in kernels.items()}
    peaks = peaks_of(session.platform, report.threads)
    return replace(
        report,
        kernels=tuple(kernels.values()),
        flows=tuple(flows),
        peaks=peaks,
        conditions=_conditions(report, session, peaks),
        model=model,
        simulated=session.options.target == "cuda-sim",
    )


def _kernel(
    group: Group, made: TaskKernel, session: Session, hints: Mapping[Var, int], sizes: Sizes, threads: int
) -> KernelReport:
    config = None if session.choices is None else session.choices.config(group.task, hints)
    task = task_of(group, session.target)
    draw = partial(pictures, task, config, session.target, made.choice, sizes, threads)
    chosen = partial(choices, task, config, session.target, made.choice)
    tree = partial(
        tree_of, session.strategies.offers, task, session.target, made.source, made.choice,
        simulated=session.options.target == "cuda-sim",
    )  # fmt: skip
    language, block = ("CUDA C++", made.source.threads) if isinstance(made.source, CudaSource) else ("C", 0)
    return KernelReport(
        made.source.symbol, language, made.schedule, made.source.text, block, draw=draw, choices=chosen, tree=tree
    )


class _Flows:
    """The values of one graph that flow from step to step."""

    def __init__(self, number: int, compilation: Compilation, numbers: dict[Group, int]) -> None:
        self.number, self.compilation, self.numbers = number, compilation, numbers
        self.ids = {node: i for i, node in enumerate(compilation.graph.nodes())}
        self.from_: dict[Node, list[str]] = {}

    def found(self) -> list[Flow]:
        """All of them, in running order."""
        graph, flows = self.compilation.graph, dict[Flow, None]()
        for given in graph.inputs:
            if given.index not in graph.constant_inputs:
                self.from_[self.compilation.plan.root(given)] = [f"input {self.number}.{given.index}"]
        for step in self.compilation.plan.steps:
            name = self._name(step)
            inputs = step.inputs if isinstance(step, Group) else list(step.inputs)
            flows.update((flow, None) for node in inputs for flow in self._into(node, name))
            for node in step.outputs if isinstance(step, Group) else [step]:
                writers = self.from_.setdefault(self.compilation.plan.root(node), [])
                if name not in writers:
                    writers.append(name)
        for result in graph.outputs:
            if result is not None and not isinstance(result, SizeNode):
                flows.update((flow, None) for flow in self._into(result, f"results {self.number}"))
        return list(flows)

    def _into(self, node: Node, target: str) -> list[Flow]:
        while isinstance(node, ItemNode):
            node = node.inputs[0]
        sources = self.from_.get(self.compilation.plan.root(node), ())
        text = "" if node.dtype.kind == "x" else value_text(node)
        return [Flow(source, target, text) for source in sources if source != target]

    def _name(self, step: Group | ExternNode) -> str:
        return f"group {self.numbers[step]}" if isinstance(step, Group) else f"extern {self.number}.{self.ids[step]}"


def _conditions(report: Report, session: Session, peaks: Peaks | None) -> tuple[tuple[str, str], ...]:
    host = detect_host()
    target = session.target
    found = [("target", f"{report.target}{f' ({target.name})' if isinstance(target, GpuTarget) else ''}")]
    if session.options.target == "cuda-sim":
        found.append(("simulated", "kernels ran in the simulator on the CPU; their times say nothing about a GPU"))
    found += [
        ("CPU", f"{host.model}, {host.isa}, {host.physical_cores} cores"),
        ("threads", str(report.threads)),
        ("taskmap", taskmap.__version__),
        ("torch", metadata.version("torch")),
        ("python", f"{machine.python_version()} on {machine.system()} {machine.machine()}"),
    ]
    if isinstance(session.platform, CpuPlatform):
        found.insert(-3, ("compiler", session.platform.toolchain.identity))
    if peaks is not None:
        rates = [f"{c.name} {c.rate / 1e9:.4g} GB/s" for c in peaks.memories]
        rates += [f"{c.name} {c.rate / 1e9:.4g} GFLOP/s" for c in peaks.arithmetic]
        found.append(("peaks", f"{', '.join(rates)}; {peaks.origin}"))
    found.append(("made", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())))
    return tuple(found)
