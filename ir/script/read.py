"""Script: a Python function whose syntax tree becomes a kernel.

    @kernel
    def scale(x: f32[n], y: f32[n]):
        for i in parallel(n):
            y[i] = x[i] * factor

Python values around the function are compile-time parameters: an ``if`` on one is decided, a loop over a list is
unrolled, any Python function may be called. Values that depend on the kernel's data or sizes become IR. A name is
assigned once; a value that changes lives in a buffer. docs/write-a-kernel.md describes the rest.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, overload

from taskmap.ir.analysis.bounds import Facts, Interval
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import ceil_div, maximum, minimum, select
from taskmap.ir.errors import ScriptError
from taskmap.ir.nodes import Body, Buffer, Dim, Expr, GpuLaunch, Kernel, MatMul, Move, Store, Var
from taskmap.ir.script.expressions import Evaluator, Setting
from taskmap.ir.script.scope import Names, surroundings
from taskmap.ir.script.source import ScriptSource, read_source
from taskmap.ir.script.statements import Script, StatementReader
from taskmap.ir.script.vocabulary import (
    MATH,
    barrier,
    block,
    builder,
    dim,
    instruction,
    local,
    matmul,
    move,
    parallel,
    register,
    shared,
    tensor_map,
    thread,
    unroll,
    vector,
    writing_to,
)
from taskmap.ir.types import TensorType, i64
from taskmap.ir.verify.rules import verify
from taskmap.ir.verify.structure import invoked_writes
from taskmap.ir.visit import walk_exprs, walk_stmts
from taskmap.ir.workers import worker_extents

Function = Callable[..., Any]


@overload
def kernel(function: Function) -> Kernel: ...
@overload
def kernel(
    *,
    grid: Dim | tuple[Dim, ...] = (),
    threads: int = 0,
    predicated: bool | None = None,
    name: str = "",
    note: str = "",
    cluster: tuple[int, ...] = (),
    min_blocks: int = 0,
) -> Callable[[Function], Kernel]: ...
def kernel(
    function: Function | None = None,
    *,
    grid: Dim | tuple[Dim, ...] = (),
    threads: int = 0,
    predicated: bool | None = None,
    name: str = "",
    note: str = "",
    cluster: tuple[int, ...] = (),
    min_blocks: int = 0,
) -> Kernel | Callable[[Function], Kernel]:
    """Decorator: read a function into a Kernel, and verify it.

    Each parameter is annotated with its type: f32[m, k] for a tensor, with sizes that are ints or dim("m"), or i64 for
    a size. The parameters that the body writes are the kernel's outputs.

    grid, threads: of a GPU kernel, the number of blocks (up to three numbers, symbolic or not) and of threads in each.
    predicated: parameters may be accessed out of range: such a read gives 0, such a write is skipped. Accesses proved
    to be in range cost nothing. By default only in a GPU kernel. name: by default the function's. cluster, min_blocks:
    see ``Kernel``.

    Raises ScriptError at the user's line for unsupported Python, VerifyError for a kernel that violates a rule.
    """
    frame_locals = dict(sys._getframe(1).f_locals)

    def read(body: Function) -> Kernel:
        return read_kernel(
            body, frame_locals, grid=grid, threads=threads, predicated=predicated, name=name, note=note,
            cluster=cluster, min_blocks=min_blocks,
        )  # fmt: skip

    return read if function is None else read(function)


def read_kernel(
    function: Function, frame_locals: Mapping[str, Any], *, grid: Dim | tuple[Dim, ...] = (), threads: int = 0,
    predicated: bool | None = None, name: str = "", note: str = "", cluster: tuple[int, ...] = (), min_blocks: int = 0,
) -> Kernel:  # fmt: skip
    """The kernel of a function that sees the names of ``frame_locals``; the other arguments as of ``kernel``."""
    blocks = grid if isinstance(grid, tuple) else (grid,)
    edges = bool(blocks) if predicated is None else predicated
    launch = GpuLaunch(blocks, threads, cluster, min_blocks) if blocks or threads else None
    result = _KernelReader(function, frame_locals, launch, edges, name, note).read()
    verify(result)
    return result


def script(function: Function) -> Script:
    """Decorator: a helper for kernels and other helpers. Its parameters may be tensors, values, functions, anything.

    A call is replaced by the body. It may end with ``return value``.
    """
    return Script(function)


def build(function: Function | Script, *args: Any, **kwargs: Any) -> Body:
    """The statements of a script function with its parameters bound: an instantiated template.

    args, kwargs: buffers, numbers, expressions, functions that return expressions, and script functions.
    Raises ScriptError at the user's line, and if the function returns a value: statements have none.
    """
    helper = function if isinstance(function, Script) else Script(function)
    out = Builder()
    setting = Setting(f"cannot build {helper.__name__!r}", out, Facts(), has_workers=True)
    with writing_to(out):
        value = _placed(helper, setting, args, kwargs)
    if value is not None:
        raise ScriptError(
            setting.what, why="it returns a value.", hint="Store the value to a buffer given as argument."
        )
    return out.body()


def _placed(helper: Script, setting: Setting, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return helper.inline(setting, args, kwargs)
    except (TypeError, RecursionError) as error:
        raise ScriptError(setting.what, where=helper.source.at(helper.source.tree), why=f"{error}.") from error


class _KernelReader:
    """Reads one decorated function."""

    def __init__(
        self,
        function: Function,
        frame_locals: Mapping[str, Any],
        launch: GpuLaunch | None,
        predicated: bool,
        name: str,
        note: str,
    ) -> None:
        self.function = function
        self.launch = launch
        self.predicated = predicated
        self.name = name or getattr(function, "__name__", "kernel")
        self.note = note
        self.what = f"cannot compile kernel {self.name!r}"
        self.source: ScriptSource = read_source(function)
        self.outside = surroundings(function, frame_locals)

    def read(self) -> Kernel:
        parameters = {arg.arg: self.parameter(arg) for arg in self.arguments()}
        buffers = tuple(p for p in parameters.values() if isinstance(p, Buffer))
        dims = self.sizes(parameters)
        out = Builder()
        shell = Kernel(self.name, buffers, (), dims, (), self.launch)
        facts = Facts()
        for var in dims:
            facts = facts.within(var, Interval(0, float("inf")))
        for var, extent in worker_extents(shell).items():
            facts = facts.below(var, extent)
        edges = frozenset(buffers) if self.predicated else frozenset()
        threads = self.launch.threads if self.launch else 0
        setting = Setting(self.what, out, facts, threads, bool(threads), edges)
        with writing_to(out) as maps:
            StatementReader(self.source, Names(self.outside, parameters), setting, is_kernel=True).read()
        body = out.body()
        place = self.source.at(self.source.tree)
        written = _written(body)
        outputs = tuple(b for b in buffers if b in written)
        launch = self.launch and replace(self.launch, maps=tuple(maps))
        return Kernel(self.name, buffers, outputs, dims, body, launch, self.note, place)

    def arguments(self) -> list[ast.arg]:
        """The parameters. Raises ScriptError for kinds that a kernel cannot have."""
        given = self.source.tree.args
        for extra in (given.vararg, given.kwarg, *given.kwonlyargs):
            if extra is not None:
                self.refuse(extra, "a kernel has only plain parameters.", "Give each a name and a type.")
        if given.defaults:
            hint = "Use a variable outside the function for a value known when the kernel is built."
            self.refuse(given.defaults[0], "a parameter of a kernel has no default.", hint)
        return [*given.posonlyargs, *given.args]

    def refuse(self, node: ast.AST, why: str, hint: str) -> None:
        raise ScriptError(self.what, where=self.source.at(node), why=why, hint=hint)

    def parameter(self, arg: ast.arg) -> Buffer | Var:
        """The tensor or the size that a parameter stands for."""
        kind = self.annotation(arg)
        if kind == i64:
            return Var(arg.arg)
        if not isinstance(kind, TensorType):
            hint = f"Write {arg.arg}: f32[m, n] for a tensor, or {arg.arg}: i64 for a size."
            what = "has no type" if kind is None else f"has the type {kind!r}"
            self.refuse(arg, f"the parameter {arg.arg} {what}.", hint)
            raise AssertionError
        return Buffer(arg.arg, kind.dtype, kind.shape, strides=kind.strides)

    def annotation(self, arg: ast.arg) -> Any:
        """The annotation of a parameter; a string (also one made by ``from __future__``) is evaluated here."""
        known = self.function.__annotations__.get(arg.arg)
        if not isinstance(known, str) or arg.annotation is None:
            return known
        node: ast.expr = arg.annotation
        if isinstance(node, ast.Constant):
            inner = ast.parse(known, mode="eval").body
            for part in ast.walk(inner):
                ast.copy_location(part, node)
            node = inner
        setting = Setting(self.what, Builder(), Facts())
        return Evaluator(self.source, Names(self.outside, {}), setting).value(node)

    def sizes(self, parameters: Mapping[str, Buffer | Var]) -> tuple[Var, ...]:
        """The symbolic sizes, in order of first appearance."""
        found: dict[Var, None] = {}
        for p in parameters.values():
            for size in (p,) if isinstance(p, Var) else (*p.shape, *(p.strides or ())):
                found.update(dict.fromkeys(_variables(size)))
        for size in self.launch.grid if self.launch else ():
            found.update(dict.fromkeys(_variables(size)))
        return tuple(found)


def _variables(size: Dim) -> list[Var]:
    return [e for e in walk_exprs(size) if isinstance(e, Var)] if isinstance(size, Expr) else []


def _written(body: Body) -> set[Buffer]:
    written: set[Buffer] = set()
    for s in walk_stmts(body):
        if isinstance(s, Store):
            written.add(s.buffer)
        elif isinstance(s, Move):
            written.add(s.dst.buffer)
        elif isinstance(s, MatMul):
            written.add(s.c.buffer)
        written.update(invoked_writes(s))
    return written


def __getattr__(name: str) -> Callable[..., Expr]:
    """The functions of taskmap.ir.functions, by name: exp, tanh, rsqrt, ..."""
    if name in MATH:
        return MATH[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Script", "barrier", "block", "build", "builder", "ceil_div", "dim", "instruction", "kernel", "local", "matmul",
    "maximum", "minimum", "move", "parallel", "region", "register", "script", "select", "shared", "tensor_map",
    "thread", "unroll", "vector",
]  # fmt: skip
__all__ += sorted(MATH)
