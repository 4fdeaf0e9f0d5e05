"""The driver joins graph, schedules and backend: one graph goes in, a callable comes out.

Graph -> passes -> plan -> tasks -> kernels -> lowered kernels -> C or CUDA C++ -> binaries -> executables

A Platform hides the differences between targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from taskmap.backend.program.memory_plan import plan_memory
from taskmap.calls.bound import AnyTensor, ExternFunction, SplitProgram
from taskmap.calls.prepared import Called
from taskmap.compile.assemble import AssemblyInput, GroupKernel, assemble
from taskmap.compile.kernels import Compile
from taskmap.compile.random_order import in_random_order
from taskmap.compile.session import Compilation, Session
from taskmap.compile.sharing import Aliases
from taskmap.graph.fusion.planning import Group, Plan, plan
from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, Node
from taskmap.graph.passes import run_passes
from taskmap.ir.nodes import Var
from taskmap.ir.passes import dump_each, run_pipeline
from taskmap.ir.printer import print_dim
from taskmap.targets.platform import LoadedPrograms, Platform
from taskmap.util.dump import Dump
from taskmap.util.logs import said, stage
from taskmap.util.metrics import COUNTERS
from taskmap.util.progress import progress

Library = Callable[[SplitProgram, LoadedPrograms, Platform, frozenset[int] | None], Called]
"""Makes a graph's programs callable with the tensors of one library. The last argument: the positions of arguments
whose addresses do not change, if launches may be replayed."""


def compile_graph(
    graph: Graph,
    session: Session,
    *,
    name: str,
    extern_function: Callable[[ExternNode], ExternFunction],
    constant: Callable[[ConstantNode], AnyTensor],
    aliases: Aliases,
    library: Library,
    dump: Dump,
) -> Compilation:
    """``graph``, compiled.

    ``extern_function`` gives the function that runs an extern node, ``constant`` the tensor of a constant node;
    ``aliases`` lists the results that share memory; ``library`` is that of the tensors. Raises a TaskmapError that
    names the fused group and the user's line when a stage fails.
    """
    options = session.options
    dump.write("graph.txt", graph)
    imported, graph = graph, prepared(graph, session.platform, dump, verify=options.verify_passes)
    planned = in_random_order(plan(graph))
    stage(name, "graph", lambda: graph)
    dump.write("plan.txt", describe(planned))
    tune(planned, session, graph.hints)
    with closing(session.platform.builder()) as builder:
        compile_ = Compile(session, dump, builder, graph.hints)
        planned, kernels = compile_.kernels(planned)
        with progress("compiling kernels", len(builder)) as show:
            kernels = compile_.refit(kernels, show)
        session.strategies.warn(name)
        symbols = {
            g: GroupKernel(k.source.symbol, k.source.needs_error, compile_.sizes_of(g)) for g, k in kernels.items()
        }
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
    call = library(parts, ready, session.platform, graph.constant_inputs if name == "inference" else None)
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


def tune(plan: Plan, session: Session, hints: Mapping[Var, int]) -> None:
    """Measure configurations for the planned tasks at the sizes of ``hints``, if the options allow time for it."""
    if session.choices is None or session.options.tune_seconds is None:
        return
    tasks = [step.task for step in plan.steps if isinstance(step, Group)]
    tasks = [task for task in tasks if session.strategies.kernel(task) is None]
    with progress("tuning", len(tasks)) as show:
        session.choices.tune(tasks, hints, show)


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
        strides = ", ".join(map(print_dim, placement.strides)) + "," * (len(placement.strides) == 1)
        lines.append(f"%{node.id}{root} strides ({strides}) offset {print_dim(placement.offset)}")
    return "\n".join([*lines, f"return {list(plan.outputs)}"])
