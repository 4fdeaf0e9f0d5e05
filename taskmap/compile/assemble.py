"""Programs from a plan and its kernels: each buffer gets memory, the steps an order.

A plan becomes two programs. The steps that depend only on frozen parameters form the *prepare* program, which runs when
a parameter has changed; its results are constants of the *main* program, which runs at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from taskmap.backend.program.binding import Binding, ExternBinding, Output, Result, TensorSpec, View
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program, ProgramBuffer, Step
from taskmap.calls.bound import AnyTensor, BoundProgram, ExternFunction, SplitProgram
from taskmap.compile.index_names import indexing_lines, indexing_text
from taskmap.compile.sharing import Aliases, Shared
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, InputNode, ItemNode, Node, SizeNode
from taskmap.ir.construct import product, static_size
from taskmap.ir.nodes import Dim, Expr


@dataclass(frozen=True, slots=True)
class GroupKernel:
    """A group's kernel: its symbol, whether it takes an error flag, and the sizes that it takes as arguments."""

    symbol: str
    needs_error: bool
    sizes: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class AssemblyInput:
    """Inputs of the assembly: the kernels of the plan's groups, the function of an extern node, the tensor of a
    constant node, and the results that share memory.
    """

    graph: Graph
    plan: Plan
    kernels: Mapping[Group, GroupKernel]
    extern_function: Callable[[ExternNode], ExternFunction]
    constant: Callable[[ConstantNode], AnyTensor]
    aliases: Aliases


def assemble(pieces: AssemblyInput) -> SplitProgram:
    """The programs of a plan."""
    plan, aliases = pieces.plan, pieces.aliases
    constant = early_groups(plan)
    early = [s for s in plan.steps if isinstance(s, Group) and s in constant]
    late = [s for s in plan.steps if not (isinstance(s, Group) and s in constant)]
    if not early:
        return SplitProgram(_Assembler(pieces, late, ()).part(plan.outputs, aliases))
    made = {plan.placements[n].root for s in early for n in s.outputs}
    needed = {plan.placements[n].root for s in late for n in _step_values(s)}
    given = tuple(root for root in plan.placements if root in made and root in needed)
    before = _Assembler(pieces, early, ()).part(given, Aliases(aliases.arguments, given))
    after = _Assembler(pieces, late, given).part(plan.outputs, aliases)
    roots = {plan.placements[n].root for s in early for n in s.inputs}
    watched = tuple(sorted({root.index for root in roots if isinstance(root, InputNode)}))
    return SplitProgram(after, before, watched)


def early_groups(plan: Plan) -> set[Group]:
    """The groups that run before the first call: those that depend on constants alone, which planning marks.

    A group that makes an output of the graph is excluded: each call returns memory of its own. So is one with symbolic
    sizes, which are known only at a call, and one that reads the results of such groups.
    """
    outputs = {plan.placements[n].root for n in plan.outputs if n is not None}
    known: set[Node] = set()
    early: set[Group] = set()
    writers: dict[Node, list[Group]] = {}
    for step in plan.steps:
        if isinstance(step, Group):
            for node in step.outputs:
                writers.setdefault(plan.placements[node].root, []).append(step)
    for step in plan.steps:
        if not isinstance(step, Group) or not step.once or step.task.dims:
            continue
        sources = {plan.placements[n].root for n in step.inputs}
        roots = {plan.placements[n].root for n in step.outputs}
        if any(r.is_compute and r not in known for r in sources) or roots & outputs:
            continue
        early.add(step)
        # A root filled by several groups is known only when all of them run early.
        known |= {r for r in roots if all(group in early for group in writers[r])}
    whole = {r: all(group in early for group in groups) for r, groups in writers.items()}
    return {g for g in early if all(whole[plan.placements[n].root] for n in g.outputs)}


def storage_elements(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    """The number of elements that the storage of such a tensor spans, from first to last."""
    if any(static_size(n) == 0 for n in shape):
        return 0
    if _is_dense(shape, strides):
        return product(shape)
    span: Dim = 1
    for n, stride in zip(shape, strides, strict=True):
        span = span + (n - 1) * stride
    value = static_size(span)
    return span if value is None else value


def _is_dense(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """True if the strides are those of some permutation of the axes, without gaps."""
    rest = [(n, s) for n, s in zip(shape, strides, strict=True) if static_size(n) != 1]
    expected: Dim = 1
    while rest:
        found = next((axis for axis in rest if _same(axis[1], expected)), None)
        if found is None:
            return False
        rest.remove(found)
        expected = product([expected, found[0]])
    return True


def _same(a: Dim, b: Dim) -> bool:
    x, y = static_size(a), static_size(b)
    if x is not None or y is not None:
        return x == y
    return isinstance(a, Expr) and isinstance(b, Expr) and (a is b or a == b)


def _step_values(step: Group | ExternNode) -> list[Node]:
    return [*step.inputs, *step.outputs] if isinstance(step, Group) else list(step.inputs)


def _size(node: SizeNode) -> Dim:
    assert isinstance(node.size, (int, Expr))
    return node.size


class _Assembler:
    """Builds one program; buffers and slots are created when a step first mentions them."""

    def __init__(self, pieces: AssemblyInput, steps: Sequence[Group | ExternNode], given: tuple[Node, ...]) -> None:
        self.pieces, self.steps, self.given = pieces, steps, given
        self.graph, self.plan = pieces.graph, pieces.plan
        self.count = len(pieces.aliases.arguments)
        self.dims = tuple(self.graph.dims)
        self.slots: dict[Node, int] = {}
        self.buffers: dict[Node, int] = {}
        self.kinds: list[BufferKind] = []
        self.fixed: dict[int, AnyTensor] = {}
        self.items: dict[Node, list[Node]] = {}
        self.outputs: set[Node] = set()
        self.read_by_externs: set[Node] = set()

    def part(self, outputs: Sequence[Node | None], aliases: Aliases) -> BoundProgram:
        """The program whose results are ``outputs``."""
        plan = self.plan
        self.outputs = {self.plan.root(n) for n in outputs if n is not None and not isinstance(n, SizeNode)}
        externs = [s for s in self.steps if isinstance(s, ExternNode)]
        self.read_by_externs = {self.plan.root(n) for s in externs for n in s.inputs}
        for node in plan.placements:
            if isinstance(node, ItemNode):
                self.items.setdefault(node.inputs[0], []).append(node)
        for root in self.given:
            self.slot(root)
        steps: list[Step] = []
        for step in self.steps:
            if isinstance(step, Node):
                steps.append(ExternCall(len([s for s in steps if isinstance(s, ExternCall)])))
                continue
            kernel = self.pieces.kernels[step]
            ids = tuple(self.buffer(self.plan.root(n)) for n in (*step.inputs, *step.outputs))
            where, indexing = str((step.anchor or step.outputs[0]).origin), ""
            if kernel.needs_error:
                where, indexing = indexing_lines(step.nodes), indexing_text(step.nodes)
            steps.append(Launch(kernel.symbol, ids, kernel.sizes, kernel.needs_error, step.name, where, indexing))
        views = self._outputs(outputs, aliases)
        timeline = _Timeline(self)
        bindings = tuple(self._extern(node, k, timeline) for k, node in enumerate(externs))
        roots = list(self.buffers)
        table = tuple(ProgramBuffer(self.kinds[i], self._bytes(root), root.op) for i, root in enumerate(roots))
        program = Program(table, tuple(steps), self.dims)
        binding = Binding(
            inputs=len(aliases.arguments),
            dims=tuple(self.graph.dims.items()),
            slots=self.count,
            made={self.slots[r]: self._spec(r) for r in timeline.made},
            checked={self.slots[r]: self._spec(r) for r in roots if isinstance(r, InputNode)},
            allocate=timeline.allocate[0],
            io=tuple(self.slots[roots[b]] for b in program.io),
            constants=tuple(self.slots[roots[b]] for b in program.constants),
            externs=bindings,
            outputs=tuple(views),
            hidden=aliases.hidden,
        )
        calls = tuple(map(self.pieces.extern_function, externs))
        return BoundProgram(program, binding, self.fixed, calls, tuple(self.steps), self.given)

    def slot(self, root: Node) -> int:
        """The slot of a root's tensor."""
        if isinstance(root, InputNode):
            return self.slots.setdefault(root, root.index)
        if root not in self.slots:
            self.slots[root] = self.count
            self.count += 1
            if isinstance(root, ConstantNode):
                self.fixed[self.slots[root]] = self.pieces.constant(root)
        return self.slots[root]

    def buffer(self, root: Node) -> int:
        """The program's buffer for a root that native code uses."""
        if root not in self.buffers:
            self.buffers[root] = len(self.kinds)
            self.kinds.append(self._kind(root))
            if self.kinds[-1] is not BufferKind.ARENA:
                self.slot(root)
        return self.buffers[root]

    def _kind(self, root: Node) -> BufferKind:
        if isinstance(root, InputNode):
            return BufferKind.INPUT
        if isinstance(root, ConstantNode) or root in self.given:
            return BufferKind.CONSTANT
        if root in self.outputs and root.is_compute:
            return BufferKind.OUTPUT
        return BufferKind.TENSOR if not root.is_compute or root in self.read_by_externs else BufferKind.ARENA

    def _bytes(self, root: Node) -> Dim:
        placement = self.plan.placements[root]
        return product([storage_elements(root.shape, placement.strides), root.dtype.bytes])

    def _spec(self, node: Node) -> TensorSpec:
        placement = self.plan.placements[node]
        strides = list(placement.strides)
        if node.strides is not None:
            # The plan may choose the stride of an axis of size 1, but a caller sees it.
            strides = [
                e if static_size(n) == 1 else s for n, s, e in zip(node.shape, strides, node.strides, strict=True)
            ]
        return TensorSpec(node.shape, tuple(strides), node.dtype, placement.offset)

    def view(self, node: Node) -> View:
        """A node's tensor, for an extern call or the caller."""
        root = self.plan.root(node)
        return View(self.slot(root), None if root is node else self._spec(node))

    def _memory(self, node: Node) -> Node:
        """The root in whose memory a node's elements are, also where PyTorch makes a view of it."""
        root = self.plan.root(node)
        maker = root.inputs[0] if isinstance(root, ItemNode) else root
        place = maker.view_of if isinstance(maker, ExternNode) else None
        return root if place is None else self._memory(maker.inputs[place])

    def _outputs(self, outputs: Sequence[Node | None], aliases: Aliases) -> list[Output]:
        """The results; a result is copied if it would share memory that PyTorch's result does not share."""
        owner: dict[Node, Hashable] = {}
        made: list[Output] = []
        for i, (node, key) in enumerate(zip(outputs, aliases.results, strict=True)):
            if i in aliases.shared:
                made.append(None)  # filled in below
                continue
            if node is None or isinstance(node, SizeNode):
                made.append(None if node is None else _size(node))
                continue
            view, root = self.view(node), self._memory(node)
            if isinstance(root, InputNode):
                copy = key is not None and key != aliases.arguments[root.index]
            elif isinstance(root, ConstantNode) or root in self.given:
                copy = True  # the caller must not write to memory kept between calls
            else:
                copy = owner.setdefault(root, key) != key
            made.append(View(view.slot, view.spec, copy))
        for i, view_of in aliases.shared.items():
            made[i] = self._shared(view_of, outputs, made)
        return made

    def _shared(self, shared: Shared, outputs: Sequence[Node | None], made: Sequence[Output]) -> View:
        """A result that is a view of an argument or of another result."""
        spec = TensorSpec(shared.shape, shared.strides, shared.dtype, shared.offset)
        if shared.argument is not None:
            return View(shared.argument, spec)
        assert shared.result is not None
        node, owner = outputs[shared.result], made[shared.result]
        assert node is not None
        assert isinstance(owner, View)
        offset = shared.offset + self.plan.placements[node].offset
        if owner.copy:
            return View(owner.slot, spec, copy=True, of=shared.result)
        return View(owner.slot, replace(spec, offset=offset))

    def _extern(self, node: Node, number: int, timeline: _Timeline) -> ExternBinding:
        items = self.items.get(node)
        results: list[Result] = []
        for part in [node] if items is None else items:
            item = part.index if isinstance(part, ItemNode) else None
            spec = self._spec(part) if part in timeline.viewed else None
            results.append(Result(self.slot(part), item, spec))
        return ExternBinding(
            name=node.origin.operator or node.op,
            reads=tuple(self.view(n) for n in node.inputs),
            results=tuple(results),
            allocate=timeline.allocate[number + 1],
            dead=timeline.dead[number],
            where=str(node.origin),
        )


class _Timeline:
    """Lifetimes of tensors: stretches of native code are numbered by the extern calls before them."""

    def __init__(self, part: _Assembler) -> None:
        first: dict[Node, int] = {}
        last: dict[Node, int] = {}
        self.viewed: set[Node] = set()
        stretch = 0

        def use(root: Node, at: int) -> None:
            first.setdefault(root, at)
            last[root] = at

        for step in part.steps:
            if isinstance(step, Node):
                for node in step.inputs:
                    use(part.plan.root(node), stretch)
                    if part.plan.root(node) is not node:
                        self.viewed.add(part.plan.root(node))
                stretch += 1
                for item in part.items.get(step, [step]):
                    use(item, stretch)
                continue
            for node in (*step.inputs, *step.outputs):
                root = part.plan.root(node)
                use(root, stretch)
                self.viewed.add(root)
        self.made = [
            r
            for r, b in part.buffers.items()
            if r.is_compute and part.kinds[b] in (BufferKind.OUTPUT, BufferKind.TENSOR)
        ]
        self.allocate = [
            tuple(part.slots[r] for r in self.made if first[r] == at) for at in range(stretch + 1)
        ]  # fmt: skip
        made_here = [r for r in last if not isinstance(r, (InputNode, ConstantNode))]
        mortal = [r for r in made_here if r not in part.outputs and r in part.slots]
        self.dead = [tuple(part.slots[r] for r in mortal if last[r] == at) for at in range(stretch)]
