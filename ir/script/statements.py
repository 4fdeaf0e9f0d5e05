"""Statements of script: each becomes IR in the builder, or is executed now if all of it is known."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from taskmap.ir.algebra.loops import OnWorker
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import cast, index, load
from taskmap.ir.errors import IndexOutOfRangeError, ScriptError
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, Var
from taskmap.ir.script import vocabulary as words
from taskmap.ir.script.expressions import Evaluator, Inlinable, Setting, shorter
from taskmap.ir.script.scope import Names, surroundings
from taskmap.ir.script.source import ScriptSource, read_source
from taskmap.ir.types import DType
from taskmap.ir.util.wording import by
from taskmap.ir.workers import THREAD

_DEEPEST = 64
_REGISTER_HINT = "A value that changes lives in a register: {0} = register(f32[1], init=...), then {0}[0] = ..."

_REFUSED: dict[type, tuple[str, str]] = {
    ast.While: ("script has no while loops.", "Use for ... in range(n), with an if inside."),
    ast.Break: ("script has no break.", "Put the rest of the body under an if."),
    ast.Continue: ("script has no continue.", "Put the rest of the body under an if."),
    ast.Try: ("script has no try.", "Check the condition with if."),
    ast.With: ("script has no with.", ""),
    ast.Raise: ("a kernel cannot raise.", "Check while building with assert."),
    ast.FunctionDef: ("script has no functions inside functions.", "Write it outside and decorate it with @script."),
    ast.ClassDef: ("script has no classes.", ""),
    ast.Import: ("script has no imports.", "Import at the top of the file."),
    ast.ImportFrom: ("script has no imports.", "Import at the top of the file."),
    ast.Global: ("script has no global.", "Pass the value as a parameter."),
    ast.Nonlocal: ("script has no nonlocal.", "Pass the value as a parameter."),
    ast.Delete: ("script has no del.", "A name ends with its block."),
}


class StatementReader(Evaluator):
    """Reads the body of one function into the builder. ``blocks`` counts the open blocks that run conditionally."""

    def __init__(self, source: ScriptSource, names: Names, setting: Setting, *, is_kernel: bool) -> None:
        super().__init__(source, names, setting)
        self.is_kernel = is_kernel
        self.blocks = 0
        self.finished = False
        self.result: Any = None

    def read(self) -> Any:
        """Read the function's body; returns the value of a helper, else None."""
        self.body(self.source.tree.body)
        return self.result

    def body(self, stmts: Sequence[ast.stmt]) -> None:
        builder = self.setting.builder
        for stmt in stmts:
            method = _TABLE.get(type(stmt))
            if method is None:
                why, hint = _REFUSED.get(type(stmt), (f"script has no {type(stmt).__name__}.", ""))
                self.refuse(stmt, why, hint)
            builder.source = self.source.at(stmt)
            method(self, stmt)
            if self.finished:
                return

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block of IR: its names and facts end with it."""
        facts = self.setting.facts
        self.blocks += 1
        try:
            with self.names.block():
                yield
        finally:
            self.blocks -= 1
            self.setting.facts = facts

    def expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring, or ...
            return
        value = self.value(node.value)
        if isinstance(value, Intrinsic):
            self.setting.builder.evaluate(value)
            return
        if isinstance(value, Expr) or not isinstance(node.value, ast.Call):
            self.refuse(node, "the value is not used.", "Assign it, or remove the line.")

    def nothing(self, node: ast.Pass) -> None:
        """pass."""

    def assertion(self, node: ast.Assert) -> None:
        test = self.scalar(node.test)
        if isinstance(test, Expr):
            self.refuse(node, "a kernel cannot check this while it runs.", "Assert only values known while building.")
        if not test:
            self.refuse(node, str(self.value(node.msg)) if node.msg else "the assertion does not hold.")

    def returned(self, node: ast.Return) -> None:
        if self.is_kernel:
            self.refuse(node, "a kernel returns nothing.", "Store to a parameter: out[i] = ...")
        if self.blocks:
            hint = "Assign the value with select() or a conditional expression, and return it at the end."
            self.refuse(node, "this return depends on values of the kernel.", hint)
        self.result = self.value(node.value) if node.value else None
        self.finished = True

    # Assignment

    def assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            self.refuse(node, "script assigns one target at a time.", "Write two lines.")
        target = node.targets[0]
        pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        if pairs and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]  # both are tuples
            sides = zip(target.elts, node.value.elts, strict=True)  # type: ignore[attr-defined]
            for one, value in [(one, self.right_side(one, value)) for one, value in sides]:
                self.assign_to(one, value)
            return
        self.assign_to(target, self.right_side(target, node.value))

    def right_side(self, target: ast.expr, node: ast.expr) -> Any:
        with words.named(target.id if isinstance(target, ast.Name) else None):
            return self.value(node)

    def assign_to(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.define(target, value)
        elif isinstance(target, ast.Subscript):
            self.store(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.unpack(target, value)
        else:
            self.refuse(target, "only names and elements of tensors can be assigned.")

    def unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, (Expr, Buffer)):
            self.refuse(target, "one value of the kernel cannot be unpacked into several names.")
        values = list(self.run(target, iter, value))
        if len(values) != len(target.elts):
            self.refuse(target, f"{len(target.elts)} names are given {len(values)} values.")
        for one, item in zip(target.elts, values, strict=True):
            self.assign_to(one, item)

    def define(self, target: ast.Name, value: Any) -> None:
        """name = value: a Let, or a name for a value known while building."""
        name = target.id
        self.check_new(target, name)
        if isinstance(value, Expr):
            let = self.setting.builder.let(name, value)
            if isinstance(let, Var) and let is not value and let.lanes == 1:
                self.setting.facts = self.setting.facts.define(let, value)
            value = let
        self.names.bind(name, value, target.lineno)

    def check_new(self, node: ast.AST, name: str, hint: str = _REGISTER_HINT) -> None:
        if name != "_" and self.names.bound(name):
            line = self.source.first + self.names.line.get(name, 1) - 1
            why = f"{name} is already assigned, on line {line}, and a name keeps its value."
            self.refuse(node, why, hint.format(name))

    def annotated(self, node: ast.AnnAssign) -> None:
        """name: f32 = value, with a conversion."""
        if node.value is None or not isinstance(node.target, ast.Name):
            self.refuse(node, "a declaration needs a value.", "Write name: f32 = value.")
        dtype = self.value(node.annotation)
        if not isinstance(dtype, DType):
            self.refuse(node.annotation, "a value's type is an element type such as f32.")
        value = self.scalar(node.value)
        if not isinstance(value, (Expr, int, float)):
            self.refuse(node.value, "only a number has an element type.")
        self.define(node.target, self.run(node, cast, value, dtype))

    def augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.refuse(node, f"{node.target.id} keeps its value.", _REGISTER_HINT.format(node.target.id))
        if not isinstance(node.target, ast.Subscript):
            self.refuse(node, "only elements of tensors can be updated.")
        buffer = self.tensor(node.target)
        indices = self.indices(node.target.slice)
        self.check_rank(node.target, buffer, indices)
        value = self.scalar(node.value)
        if not isinstance(value, (Expr, int, float)):
            self.refuse(node.value, "the value is not a number.")
        result = self.apply(node, node.op, load(buffer, indices), value)
        self.put(node, buffer, indices, result)

    def tensor(self, target: ast.Subscript) -> Buffer:
        buffer = self.value(target.value)
        if not isinstance(buffer, Buffer):
            self.refuse(
                target, f"{ast.unparse(target.value)} is not a tensor.", "Hold it in a register or local buffer."
            )
        return buffer

    def store(self, target: ast.Subscript, value: Any) -> None:
        buffer = self.tensor(target)
        if isinstance(value, Buffer):
            self.refuse(target, f"{value.name} is a whole tensor.", "Assign element by element, or use move(dst, src).")
        if not isinstance(value, (Expr, int, float)):
            self.refuse(target, f"an element cannot hold {value!r}.")
        self.put(target, buffer, self.indices(target.slice), value)

    def put(self, node: ast.AST, buffer: Buffer, indices: Sequence[Expr], value: Any) -> None:
        """buffer[indices] = value, under a condition if the buffer's accesses are predicated."""
        self.check_rank(node, buffer, indices)
        from_float = value.dtype.is_float if isinstance(value, Expr) else isinstance(value, float)
        if from_float and not buffer.dtype.is_float:
            hint = f"Convert it: {buffer.dtype}(...)."
            self.refuse(node, f"a floating-point value is stored to {buffer.name}, which holds {buffer.dtype}.", hint)
        builder = self.setting.builder
        inside = self.inside(buffer, indices, self.setting.facts) if buffer in self.setting.predicated else None
        if inside is None:
            self.run(node, builder.store, buffer, indices, value)
            return
        with builder.when(inside):
            self.run(node, builder.store, buffer, indices, value)

    # Control flow

    def branch(self, node: ast.If) -> None:
        test = self.scalar(node.test)
        if not isinstance(test, Expr):
            self.body(node.body if test else node.orelse)
            return
        cond = self.truth(node.test, test)
        builder, facts = self.setting.builder, self.setting.facts
        with builder.when(cond), self.block():
            self.setting.facts = facts.assume(cond, True)
            self.body(node.body)
        if not node.orelse:
            return
        with builder.otherwise(), self.block():
            self.setting.facts = facts.assume(cond, False)
            self.body(node.orelse)

    def loop(self, node: ast.For) -> None:
        if node.orelse:
            self.refuse(node.orelse[0], "script has no else on loops.", "Write it after the loop.")
        over = self.value(node.iter)
        if isinstance(over, words.Loop):
            self.counted(node, over)
        elif isinstance(over, OnWorker):
            self.mapped(node, over)
        elif isinstance(over, (Expr, Buffer)):
            self.refuse(node.iter, "a loop runs over range(...), a task mapping, or values known while building.")
        else:
            for item in list(self.run(node.iter, iter, over)):
                with self.names.block():
                    self.check_targets(node.target)
                    self.bind_target(node.target, item)
                    self.body(node.body)
                if self.finished:
                    return

    def check_targets(self, target: ast.expr) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self.check_new(name, name.id, "Give the index another name.")

    def counted(self, node: ast.For, over: words.Loop) -> None:
        """A loop from start to stop by step becomes a loop from 0 by 1."""
        if not isinstance(node.target, ast.Name):
            self.refuse(node.target, "this loop has one index.")
        self.check_targets(node.target)
        start = index(over.start)
        span = index(over.stop) - start
        if over.step < 0:
            span = -span
        size = abs(over.step)
        extent = shorter((span + (size - 1)) // size)
        name, builder = node.target.id, self.setting.builder
        with builder.loop(name, extent, over.kind, unroll=over.unroll) as var, self.block():
            if isinstance(var, Var):
                self.setting.facts = self.setting.facts.below(var, extent)
            at = var * over.step + start if isinstance(over.start, int) else start + var * over.step
            self.names.bind(name, shorter(at), node.target.lineno)
            self.body(node.body)

    def mapped(self, node: ast.For, over: OnWorker[TaskMapping]) -> None:
        """for i, j in mapping.on(worker)."""
        names = self.target_names(node.target)
        rank = len(over.mapping.task_shape)
        if len(names) != rank:
            self.refuse(node.target, f"the tasks of {over.mapping} have {rank} indices, not {len(names)}.")
        self.check_workers(node, over)
        builder = self.setting.builder
        with builder.mapped(names, over.mapping, over.worker) as variables, self.block():
            for name, var, extent in zip(names, variables, over.mapping.task_shape, strict=True):
                self.setting.facts = self.setting.facts.below(var, extent)
                self.names.bind(name, var, node.target.lineno)
            self.body(node.body)

    def target_names(self, target: ast.expr) -> list[str]:
        self.check_targets(target)
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for part in parts:
            if not isinstance(part, ast.Name):
                self.refuse(part, "a loop's index is a name.")
        return [part.id for part in parts if isinstance(part, ast.Name)]

    def check_workers(self, node: ast.For, over: OnWorker[TaskMapping]) -> None:
        """Refuse threads without work, and threads that would repeat the work of others."""
        workers, threads = over.mapping.num_workers, self.setting.threads
        place = node.iter
        if isinstance(place, ast.Call) and isinstance(place.func, ast.Attribute):
            place = place.func.value
        if isinstance(over.worker, int) and not 0 <= over.worker < workers:
            error = IndexOutOfRangeError(self.setting.what, where=self.source.at(place))
            error.why = f"the mapping has {workers} workers; worker {over.worker} does not exist."
            raise error
        if over.worker is not THREAD or workers == threads:
            return
        if workers < threads:
            why = (
                f"the mapping has {workers} workers, but the block has {threads} threads: "
                f"{threads - workers} threads would repeat work."
            )
            self.refuse(place, why, _fewer_workers(over, threads))
        why = (
            f"the mapping has {workers} workers, but the block only {threads} threads: "
            f"the tasks of {workers - threads} workers would not be done."
        )
        self.refuse(place, why, f"Use {workers} threads, or give each worker more tasks with repeat(...).")


def _fewer_workers(over: OnWorker[TaskMapping], threads: int) -> str:
    workers, shape = over.mapping.num_workers, over.mapping.task_shape
    if threads % workers:
        return f"Use {workers} threads, or .on(thread % {workers})."
    times = threads // workers
    more = by((shape[0] * times, *shape[1:])) if shape else "1"
    return (
        f"Use {workers} threads, or a mapping with {times} times as many workers ({more} tasks), "
        f"or .on(thread % {workers})."
    )


class Script(Inlinable):
    """A helper that scripts call; the call is replaced by its body. Made by the decorator ``script``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.source = read_source(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Only a script can call it. Raises ScriptError."""
        raise ScriptError(
            f"{self.__name__} is a script function, but is called from Python",
            where=self.source.at(self.source.tree),
            hint=f"Call it in a @kernel, or use build({self.__name__}, ...).",
        )

    def inline(self, setting: Setting, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Read the body into the setting's builder. Raises TypeError for arguments that do not fit."""
        if setting.depth == _DEEPEST:
            raise RecursionError(f"{self.__name__} calls itself without end")
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        names = Names(surroundings(self.function, {}), bound.arguments)
        source, setting.depth = setting.builder.source, setting.depth + 1
        try:
            return StatementReader(self.source, names, setting, is_kernel=False).read()
        finally:
            setting.builder.source, setting.depth = source, setting.depth - 1


_TABLE: dict[type, Callable[[StatementReader, Any], None]] = {
    ast.Expr: StatementReader.expression,
    ast.Pass: StatementReader.nothing,
    ast.Assert: StatementReader.assertion,
    ast.Return: StatementReader.returned,
    ast.Assign: StatementReader.assign,
    ast.AnnAssign: StatementReader.annotated,
    ast.AugAssign: StatementReader.augmented,
    ast.If: StatementReader.branch,
    ast.For: StatementReader.loop,
}
