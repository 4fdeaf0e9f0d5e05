"""The records of a report from a compiled graph and its timed runs: every node is accounted for exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from taskmap.backend.cuda.resources import Resources
from taskmap.backend.program.executable import TimedRun
from taskmap.backend.store.key import KernelSource
from taskmap.compile.operator_names import anchor_text, operator_name, source_name, value_text
from taskmap.compile.session import Compilation, Fallback
from taskmap.graph.analysis.inlining import views_of_memory
from taskmap.graph.fusion.planning import Group
from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, InputNode, ItemNode, Node, Origin, SizeNode
from taskmap.graph.passes import run_passes
from taskmap.ir.analysis.cost import Sizes, bytes_moved, operations
from taskmap.ir.errors import InputError
from taskmap.ir.passes import Step
from taskmap.ir.task import Task
from taskmap.report.presentation import Report
from taskmap.report.records import (
    ExternReport,
    GraphReport,
    GroupCode,
    GroupReport,
    GroupWork,
    Line,
    NodeReport,
    OperatorRoles,
    Refusal,
    Role,
    StepTime,
)
from taskmap.targets.platform import Source

_INPUTS = (InputNode, ConstantNode)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph and its timed runs: ``main`` of the steps of every call, ``prepare`` of those that depend only on
    parameters.

    ``calls``: runs of the graph per call of the model; steps that PyTorch runs as a whole are not counted.
    """

    graph: Compilation | Fallback
    main: tuple[TimedRun, ...] = ()
    prepare: tuple[TimedRun, ...] = ()
    calls: float = 0.0


def account(recorded: Sequence[Recorded], target: str, threads: int, runs: int) -> Report:
    """The report on graphs, in the order of their compilation."""
    graphs: list[GraphReport] = []
    nodes: list[NodeReport] = []
    groups: list[GroupReport] = []
    externs: list[ExternReport] = []
    for number, one in enumerate(recorded):
        if isinstance(one.graph, Fallback):
            graphs.append(GraphReport(number, one.graph.name, 0, (), (), one.calls, None, one.graph.reason))
            continue
        account = _GraphAccount(number, one.graph, one, len(groups))
        graphs.append(account.graph_report())
        groups += account.groups()
        externs += account.externs()
        nodes += account.nodes()
    total = sum((g.seconds or 0.0) * g.calls for g in graphs)

    def shared(time: StepTime) -> StepTime:
        share = None if time.seconds is None or not total else time.seconds * time.calls / total
        return replace(time, share=share)

    return Report(
        graphs=tuple(graphs),
        nodes=tuple(nodes),
        groups=tuple(g if g.once else replace(g, time=shared(g.time)) for g in groups),
        externs=tuple(replace(e, time=shared(e.time)) for e in externs),
        target=target,
        threads=threads,
        runs=runs,
    )


class _GraphAccount:
    """The records of one graph; ``first`` is the number of its first group."""

    def __init__(self, number: int, compilation: Compilation, recorded: Recorded, first: int) -> None:
        self.number, self.compilation, self.calls = number, compilation, recorded.calls
        self.graph, self.plan = compilation.graph, compilation.plan
        self.order = self.graph.nodes()
        self.ids = {node: i for i, node in enumerate(self.order)}
        steps = compilation.parts.main.origins
        self.seconds = _each(steps, recorded.main, median)
        self.fastest = _each(steps, recorded.main, min)
        self.total = sum(self.seconds.values()) if recorded.main else None
        prepare = compilation.parts.prepare
        self.once: set[Group | ExternNode] = set()
        if prepare is not None:
            self.once = set(prepare.origins)
            self.seconds |= _each(prepare.origins, recorded.prepare, median)
            self.fastest |= _each(prepare.origins, recorded.prepare, min)
        self.sizes: Sizes = dict(zip(self.graph.dims, recorded.main[-1].sizes, strict=True)) if recorded.main else {}
        planned = [s for s in self.plan.steps if isinstance(s, Group)]
        # In running order, except that constant groups come last: few readers want them.
        ordered = sorted(planned, key=lambda g: g in self.once)
        self.numbers = {group: first + i for i, group in enumerate(ordered)}

    def graph_report(self) -> GraphReport:
        """The graph as a whole."""
        results = [None if isinstance(n, SizeNode) else n for n in self.graph.outputs]
        outputs = [None if n is None else self.ids[self.plan.root(n)] for n in results]
        inputs = tuple(i for n, i in self.ids.items() if isinstance(n, _INPUTS))
        kind = self.compilation.name
        return GraphReport(self.number, kind, len(self.ids), inputs, tuple(outputs), self.calls, self.total)

    def groups(self) -> list[GroupReport]:
        """One record for each group: those that run at every call in order, then those that run once."""
        return [self._group(group) for group in self.numbers]

    def externs(self) -> list[ExternReport]:
        """One record for each extern node, in running order."""
        return [self._extern(step) for step in self.plan.steps if isinstance(step, ExternNode)]

    def nodes(self) -> list[NodeReport]:
        """One record for each operator: those in the graph, then those that the passes removed."""
        inside: dict[Node, list[Group]] = {}
        for group in self.numbers:
            for node in group.nodes:
                inside.setdefault(node, []).append(group)
        present = [n for n in self.order if not isinstance(n, (*_INPUTS, SizeNode))]
        return [self._node(n, inside.get(n, [])) for n in present] + self._folded()

    def _node(self, node: Node, groups: Sequence[Group]) -> NodeReport:
        role, reason = self._role(node, groups)
        return NodeReport(
            graph=self.number,
            node=self.ids[node],
            operator=source_name(node.origin.operator) if isinstance(node, ExternNode) else node.op,
            source=node.origin.operator,
            line=_line(node.origin),
            shape="" if node.dtype.kind == "x" else value_text(node),
            role=role,
            groups=tuple(self.numbers[g] for g in groups),
            once=bool(groups) and all(g in self.once for g in groups),
            reason=reason,
        )

    def _role(self, node: Node, groups: Sequence[Group]) -> tuple[Role, str]:
        if isinstance(node, ExternNode):
            return "extern", node.reason
        if isinstance(node, ItemNode):
            return "item", "an item of an extern operator's result"
        if not groups:
            where = "its parts are written directly into it" if node.attrs.get("in_place") else "it is read in place"
            return "view", where
        if all(_is_view(node, g) for g in groups):
            return "view", ""
        if len(groups) > 1:
            return "inlined", "computing it again costs no more than reading it"
        return _part(node, groups[0]), ""

    def _folded(self) -> list[NodeReport]:
        """The operators without a remaining node, with the pass that removed their last one."""
        here = {id(n.origin) for n in self.order}
        lost = {id(n.origin): n for n in self.compilation.imported.nodes() if id(n.origin) not in here}
        if not lost:
            return []
        after: dict[int, str] = {}

        def observe(step: Step[Graph]) -> None:
            left = {id(n.origin) for n in step.after.nodes()}
            for key in lost.keys() - left - after.keys():
                after[key] = step.by.name

        run_passes(self.compilation.imported, observe)
        return [
            NodeReport(
                graph=self.number,
                node=None,
                operator=node.op,
                source=node.origin.operator,
                line=_line(node.origin),
                shape=value_text(node),
                role="folded",
                reason=f"gone after the pass {after[key]}" if key in after else "gone when weights were packed",
            )
            for key, node in lost.items()
            if not isinstance(node, (*_INPUTS, SizeNode, ItemNode))
        ]

    def _group(self, group: Group) -> GroupReport:
        main = group.anchor or group.outputs[-1]
        kernel = self.compilation.kernels[group]
        return GroupReport(
            number=self.numbers[group],
            graph=self.number,
            name=group.name,
            kind=group.kind,
            line=_line(main.origin),
            lines=_lines(n for n in group.nodes if not _is_view(n, group)),
            roles=_roles(group),
            code=GroupCode(
                schedule=kernel.schedule,
                symbol=kernel.source.symbol,
                resources=_taken(kernel.source, self.compilation.resources),
                why="" if group.anchor is None else self.graph.remarks.get(group.anchor.id, ""),
            ),
            work=GroupWork(
                inputs=tuple(value_text(n) for n in group.inputs),
                outputs=tuple(value_text(n) for n in group.outputs),
                reads=self._roots(group.inputs),
                writes=self._roots(group.outputs),
                bytes=self._cost(bytes_moved, group),
                operations=self._cost(operations, group),
            ),
            time=self._time(group),
            once=group in self.once,
            refused=tuple(
                Refusal(self.ids[n], operator_name(n), _line(n.origin), reason)
                for n, reason in group.refused
                if n in self.ids
            ),
        )

    def _extern(self, node: ExternNode) -> ExternReport:
        return ExternReport(
            graph=self.number,
            node=self.ids[node],
            target=node.origin.operator or node.op,
            line=_line(node.origin),
            reason=node.reason,
            inputs=tuple(value_text(n) for n in node.inputs),
            time=self._time(node),
            runner=node.runner,
        )

    def _time(self, step: Group | ExternNode) -> StepTime:
        return StepTime(self.seconds.get(step), self.fastest.get(step), self.calls)

    def _cost(self, cost: Callable[[Task, Sizes], int], group: Group) -> int | None:
        try:
            return cost(group.task, self.sizes)
        except InputError:
            return None  # a symbolic size of a graph that did not run

    def _roots(self, nodes: Iterable[Node]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.ids[self.plan.root(n)] for n in nodes))


def _each(
    steps: Iterable[Group | ExternNode], runs: Sequence[TimedRun], statistic: Callable[[Sequence[float]], float]
) -> dict[Group | ExternNode, float]:
    """The statistic of each step's times; empty if nothing ran."""
    times = zip(*(run.seconds for run in runs), strict=True)
    return {step: statistic(seconds) for step, seconds in zip(steps, times, strict=False)}


def _taken(source: Source, resources: Mapping[str, Resources]) -> str:
    taken = resources.get(source.symbol)
    if taken is None or isinstance(source, KernelSource):
        return ""
    shared = f", {source.shared_bytes} bytes of dynamic shared memory" if source.shared_bytes else ""
    return f"{taken}{shared}, {source.threads} threads in a block"


def _is_view(node: Node, group: Group) -> bool:
    """True if a node of a group only addresses the input of other nodes."""
    return views_of_memory(node) and node not in group.outputs


def _part(node: Node, group: Group) -> Role:
    """A node's place in its group: before the anchor if the anchor's input is computed from it."""
    if group.anchor is None:
        return "fused"
    if node is group.anchor:
        return "anchor"
    inside = set(group.nodes)
    before: set[Node] = set()
    stack = list(group.anchor.inputs)
    while stack:
        n = stack.pop()
        if n in inside and n not in before:
            before.add(n)
            stack += n.inputs
    return "prologue" if node in before else "epilogue"


def _roles(group: Group) -> OperatorRoles:
    names: dict[str, list[str]] = {"prologue": [], "epilogue": [], "fused": [], "views": []}
    for node in group.nodes:
        role = "views" if _is_view(node, group) else _part(node, group)
        if role != "anchor":
            names[role].append(operator_name(node))
    anchor = "" if group.anchor is None else anchor_text(group.anchor)
    return OperatorRoles(anchor, **{role: tuple(found) for role, found in names.items()})


def _line(origin: Origin) -> Line:
    return Line(origin.file, origin.line, origin.text)


def _lines(nodes: Iterable[Node]) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(_line(n.origin) for n in nodes if n.origin.file or n.origin.text))
