"""Rules about invoked instructions: their operands, and that the threads that execute one together all reach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.isa.specs import ShuffleSpec, TileStateSpec, VoteSpec
from taskmap.ir.types import i64
from taskmap.ir.verify.violation import Violation
from taskmap.ir.visit import map_expr, stmt_exprs, substitute, walk_exprs, walk_stmts
from taskmap.ir.workers import THREAD

_SCOPES = {
    Place.REGISTERS: (ir.Scope.REGISTER, ir.Scope.FRAGMENT),
    Place.SHARED: (ir.Scope.SHARED,),
    Place.GLOBAL: (ir.Scope.GLOBAL,),
    Place.MEMORY: (ir.Scope.SHARED, ir.Scope.GLOBAL),
}
_ON_CPU = (ir.Scope.LOCAL, ir.Scope.GLOBAL)
"""The memory of a CPU kernel."""


def operands(kernel: ir.Kernel) -> Iterator[Violation]:
    """An instruction has one operand for each of its parameters, with its place and type."""
    for s in walk_stmts(kernel.body):
        if isinstance(s, ir.Invoke):
            yield from (Violation(why, s) for why in _given(s.instruction, s.operands))
        for root in stmt_exprs(s):
            for e in walk_exprs(root):
                if isinstance(e, ir.Intrinsic) and e.instruction.targets.kind == "cuda":
                    yield from (Violation(why, s) for why in _given(e.instruction, e.args))


def _given(instruction: Instruction, given: tuple[ir.Region | ir.Expr | ir.TensorMap, ...]) -> Iterator[str]:
    if instruction.targets.kind != "cuda" and not _is_invoked(instruction):
        yield f"{instruction.name} is not a GPU instruction: lowering makes it from a product or a copy."
        return
    if len(given) != len(instruction.parameters):
        yield f"{instruction.name} takes {len(instruction.parameters)} operands, not {len(given)}."
        return
    for parameter, operand in zip(instruction.parameters, given, strict=True):
        why = _flaw(parameter, operand, instruction.targets.kind == "cpu")
        if why:
            yield f"{instruction.name}: {parameter.name} {why}."


def _is_invoked(instruction: Instruction) -> bool:
    """True for the instructions of a CPU that kernels invoke, those on tile registers."""
    return bool(instruction.parameters) or isinstance(instruction.spec, TileStateSpec)


def _flaw(parameter: Parameter, operand: ir.Region | ir.Expr | ir.TensorMap, on_cpu: bool) -> str | None:
    place = parameter.place
    if place is Place.TENSOR_MAP:
        return None if isinstance(operand, ir.TensorMap) else "is a tensor map, not a value"
    if isinstance(operand, ir.TensorMap):
        return f"is in {place.value}, not a tensor map"
    if place is Place.CONSTANT:
        known = constant_value(operand) if isinstance(operand, ir.Expr) else None
        if known is None:
            return "must be known at compile time"
        allowed = parameter.choices
        return f"is one of {', '.join(map(str, allowed))}, not {known}" if allowed and known not in allowed else None
    if place is Place.VALUE:
        if not isinstance(operand, ir.Expr):
            return "is a value, not a part of a buffer"
        return _wrong_type(parameter, operand.dtype)
    if not isinstance(operand, (ir.Region, ir.Load)):
        return f"is in {place.value}, not a value"
    if operand.buffer.scope not in (_ON_CPU if on_cpu and place is Place.MEMORY else _SCOPES[place]):
        return f"is in {place.value}, and {operand.buffer.name} is {operand.buffer.scope.value}"
    return _wrong_type(parameter, operand.buffer.dtype)


def _wrong_type(parameter: Parameter, dtype: object) -> str | None:
    if not parameter.dtypes or dtype in parameter.dtypes:
        return None
    return f"is {' or '.join(map(str, parameter.dtypes))}, not {dtype}"


def collectives(kernel: ir.Kernel) -> Iterator[Violation]:
    """All threads that execute an instruction together reach it together: conditions around it differ only between such
    groups, never inside one."""
    if kernel.launch is None:
        for s in walk_stmts(kernel.body):
            if isinstance(s, ir.Invoke) and s.instruction.targets.kind != "cpu":
                yield Violation("the kernel has no threads.", s)
        return
    for workers in sorted({w for s in walk_stmts(kernel.body) for w in _workers(s)}):
        if kernel.launch.threads % workers:
            yield Violation(f"the block has {kernel.launch.threads} threads, which are not whole groups of {workers}.")
        yield from _Groups(workers).body(kernel.body, None)


def _workers(s: ir.Stmt) -> Iterator[int]:
    """The number of threads of each instruction in a statement that several threads execute together."""
    if isinstance(s, ir.Invoke) and s.instruction.workers > 1:
        yield s.instruction.workers
    for root in stmt_exprs(s):
        for e in walk_exprs(root):
            if isinstance(e, ir.Intrinsic) and e.instruction.workers > 1:
                yield e.instruction.workers


class _Groups:
    """The variables that may differ inside a group of ``size`` neighbouring threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: dict[ir.Var, ir.Expr] = {}
        self.varying: set[ir.Var] = set()
        self.group, self.lane = ir.Var("group"), ir.Var("lane")
        self.simplifier = Simplifier()
        self.simplifier.bind(self.lane, size)
        self.simplifier.bind_range(self.group, (0, float("inf")))

    def differs(self, e: ir.Expr) -> bool:
        known: Mapping[ir.Var, ir.Expr] = {**self.values, THREAD: self.group * self.size + self.lane}
        for x in walk_exprs(map_expr(self.simplifier(substitute(e, known)), self.without_lane)):
            if x is self.lane or (isinstance(x, ir.Var) and x in self.varying):
                return True
            if isinstance(x, ir.Load) and x.buffer.scope not in (ir.Scope.GLOBAL, ir.Scope.SHARED):
                return True
            if isinstance(x, ir.Intrinsic) and not _is_agreed(x, self.size):
                return True
        return False

    def without_lane(self, e: ir.Expr) -> ir.Expr | None:
        """A comparison with a multiple of the group's size holds for all of a group or for none of it:
        group * 32 + lane < 64 becomes group * 32 < 64, since a lane is below 32."""
        if not isinstance(e, ir.Compare) or e.lanes != 1 or e.a.dtype != i64:
            return None
        gap = poly.add(poly.to_poly(e.a), poly.to_poly(e.b), -1)
        sign = gap.pop((self.lane,), 0)
        if (e.op, sign) not in (("lt", 1), ("ge", 1), ("le", -1), ("gt", -1)):
            return None
        whole = all(c % self.size == 0 and self.lane not in m for m, c in gap.items())
        return ir.Compare(e.op, poly.to_expr(gap), index(0), 1) if whole else None

    def body(self, body: ir.Body, inside: str | None) -> Iterator[Violation]:
        for s in body:
            if inside and self.size in _workers(s):
                yield Violation(f"{self.size} threads execute it together, and it is inside {inside}.", s)
            if isinstance(s, ir.Let):
                if self.differs(s.value):
                    self.varying.add(s.var) if not s.value.dtype.is_int else self.name(s)
            elif isinstance(s, ir.If):
                around = "a condition that differs between them" if self.differs(s.cond) else inside
                yield from self.body(s.then, around)
                yield from self.body(s.orelse, around)
            elif isinstance(s, ir.For):
                uneven = self.differs(s.extent)
                if uneven or inside:
                    self.varying.add(s.var)
                yield from self.body(s.body, "a loop that differs between them" if uneven else inside)
            elif isinstance(s, ir.MappedFor):
                if self.differs(s.worker):
                    self.varying.update(s.vars)
                yield from self.body(s.body, inside)

    def name(self, s: ir.Let) -> None:
        """The value of a Let may differ while some expressions of it do not: thread // 32 in a warp."""
        if any(isinstance(x, (ir.Load, ir.Intrinsic)) for x in walk_exprs(s.value)):
            self.varying.add(s.var)
        else:
            self.values[s.var] = substitute(s.value, self.values)


def _is_agreed(e: ir.Intrinsic, size: int) -> bool:
    """True if every thread of a group gets the same result from equal arguments: from a vote of the whole warp that the
    group is part of, or from one lane's value, which all receive."""
    spec = e.instruction.spec
    if isinstance(spec, ShuffleSpec):
        return spec.how == "idx"
    return isinstance(spec, VoteSpec) and spec.how in ("any", "all", "ballot") and size <= 32


def maps(kernel: ir.Kernel) -> Iterator[Violation]:
    """A tensor map describes a parameter in global memory, and has one extent per dimension, at most five."""
    known_maps = set(kernel.launch.maps) if kernel.launch else set()
    for m in known_maps:
        if m.buffer not in kernel.buffers:
            yield Violation(f"the tensor map {m.name} is of {m.buffer!r}, which is not a parameter.")
        if len(m.box) != m.seen.rank or not 1 <= len(m.box) <= 5:
            yield Violation(f"the box {m.box} of {m.name} does not fit {m.seen!r}.")
        if m.swizzle not in (0, 32, 64, 128):
            yield Violation(f"{m.name} is swizzled over {m.swizzle} bytes, not over 0, 32, 64 or 128.")
        elif m.swizzle and (known := static_size(m.box[-1])) and known * m.buffer.dtype.bytes > m.swizzle:
            yield Violation(
                f"a row of {m.name} is {known * m.buffer.dtype.bytes} bytes, more than the swizzle's {m.swizzle}."
            )
    for s in walk_stmts(kernel.body):
        for o in s.operands if isinstance(s, ir.Invoke) else ():
            if isinstance(o, ir.TensorMap) and o not in known_maps:
                yield Violation(f"the tensor map {o.name} is not an argument of the kernel.", s)
