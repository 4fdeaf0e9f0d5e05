"""The IR as text: Python-like, close to script, one statement per line.

Variables and buffers of the same name are distinguished by a number (``i``, ``i_1``), in order of first appearance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import boolean, f32, i64

__all__ = ["print_body", "print_expr", "print_kernel"]

_ATOM, _UNARY, _LOWEST = 12, 10, 0

# Binding strength and spelling of each infix operator, as Python's.
_INFIX = {
    "mul": (9, "*"), "div": (9, "/"), "floordiv": (9, "//"), "mod": (9, "%"),
    "add": (8, "+"), "sub": (8, "-"), "shl": (7, "<<"), "shr": (7, ">>"),
    "and": (6, "&"), "xor": (5, "^"), "or": (4, "|"),
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BOOL = {"and": (2, "and"), "or": (1, "or")}
_COMPARE_LEVEL, _NOT_LEVEL = 3, 2
_LOOP = {
    ir.LoopKind.SERIAL: "range",
    ir.LoopKind.UNROLLED: "unroll",
    ir.LoopKind.PARALLEL: "parallel",
    ir.LoopKind.VECTOR: "vector",
}


@dataclass(slots=True)
class _Printer:
    """Prints nodes, and keeps the names it has assigned."""

    names: dict[ir.Var | ir.Buffer, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def name(self, item: ir.Var | ir.Buffer) -> str:
        known = self.names.get(item)
        if known is not None:
            return known
        name, count = item.name, 0
        while name in self.taken:
            count += 1
            name = f"{item.name}_{count}"
        self.taken.add(name)
        self.names[item] = name
        return name

    def expr(self, e: ir.Expr, level: int = _LOWEST) -> str:
        strength, text = _EXPR[type(e)](self, e)
        return text if strength >= level else f"({text})"

    def exprs(self, items: Sequence[ir.Expr | int]) -> str:
        return ", ".join(self.dim(e) for e in items)

    def dim(self, d: ir.Dim) -> str:
        return self.expr(d) if isinstance(d, ir.Expr) else str(d)

    def const(self, e: ir.Const) -> tuple[int, str]:
        plain = e.dtype in (f32, i64, boolean)
        text = repr(e.value) if plain else f"{e.dtype}({e.value!r})"
        text = f'{e.dtype}("{e.value!r}")' if text in ("inf", "-inf", "nan") else text
        text = text if e.lanes == 1 else f"broadcast({text}, {e.lanes})"
        return (_UNARY if text.startswith("-") else _ATOM), text

    def unary(self, e: ir.Unary) -> tuple[int, str]:
        if e.op == "abs":
            return _ATOM, f"abs({self.expr(e.a)})"
        if e.op == "not" and e.dtype == boolean:
            return _NOT_LEVEL, f"not {self.expr(e.a, _COMPARE_LEVEL)}"
        return _UNARY, f"{'-' if e.op == 'neg' else '~'}{self.expr(e.a, _UNARY)}"

    def binary(self, e: ir.Binary) -> tuple[int, str]:
        infix = (_BOOL if e.dtype == boolean else _INFIX).get(e.op) or _INFIX.get(e.op)
        if infix is None:
            return _ATOM, f"{e.op}({self.expr(e.a)}, {self.expr(e.b)})"
        level, sign = infix
        return level, f"{self.expr(e.a, level)} {sign} {self.expr(e.b, level + 1)}"

    def compare(self, e: ir.Compare) -> tuple[int, str]:
        if e.op not in _COMPARE:
            return _ATOM, f"{e.op}({self.expr(e.a)}, {self.expr(e.b)})"
        level = _COMPARE_LEVEL + 1
        return _COMPARE_LEVEL, f"{self.expr(e.a, level)} {_COMPARE[e.op]} {self.expr(e.b, level)}"

    def reduce(self, e: ir.Reduce) -> tuple[int, str]:
        axes = " ".join(f"for {self.name(var)} in range({self.dim(extent)})" for var, extent in e.axes)
        return _ATOM, f"{e.op}({self.expr(e.body)} {axes})"

    def scatter(self, e: ir.Scatter) -> tuple[int, str]:
        axes = " ".join(f"for {self.name(var)} in range({self.dim(extent)})" for var, extent in e.axes)
        return _ATOM, f"scatter({self.expr(e.initial)}; {e.op} at [{self.exprs(e.at)}] {self.expr(e.body)} {axes})"

    def recurrence(self, e: Recurrence) -> tuple[int, str]:
        axes = " ".join(f"for {self.name(var)} in range({self.dim(extent)})" for var, extent in e.axes)
        first = (f"{self.name(s)} = {self.expr(i)}" for s, i in zip(e.states, e.initial, strict=True))
        each = (f"{self.name(p)} = {self.expr(v)}" for p, v in zip(e.phases, e.values, strict=True))
        kept = (f"{self.name(s)} = {self.name(e.phases[k])}" for s, k in zip(e.states, e.after, strict=True))
        steps = f"for {self.name(e.step)} in range({self.dim(e.steps)})"
        body = f"{', '.join(first)}; {', '.join((*each, *kept))} {steps} into row {self.expr(e.row)}"
        return _ATOM, f"recurrence({body} {axes})"

    def region(self, r: ir.Region) -> str:
        parts = (f"{self.expr(s)} .. +{self.dim(n)}" for s, n in zip(r.start, r.shape, strict=True))
        return f"{self.name(r.buffer)}[{', '.join(parts)}]"

    def operand(self, o: ir.Region | ir.Expr | ir.TensorMap) -> str:
        if isinstance(o, ir.Region):
            return self.region(o)
        return self.expr(o) if isinstance(o, ir.Expr) else o.name

    def tensor(self, b: ir.Buffer, separator: str = ", ") -> str:
        parts = [f"{b.dtype}[{self.exprs(b.shape)}]"]
        if b.strides is not None:
            parts.append(f"strides=({self.exprs(b.strides)})")
        if not (isinstance(b.offset, int) and b.offset == 0):
            parts.append(f"offset={self.dim(b.offset)}")
        if b.layout is not None:
            parts.append(f"layout={b.layout}")
        if b.owner is not None:
            parts.append(f"owner={b.owner}")
        return separator.join(parts)

    def body(self, body: ir.Body, indent: int) -> Iterator[str]:
        pad = "    " * indent
        if not body:
            yield f"{pad}pass"
        for s in body:
            if isinstance(s, ir.For):
                hint = f", unroll={s.unroll}" if s.unroll else ""
                hint += f", shared={self.expr(s.shared)}" if s.shared is not None else ""
                yield f"{pad}for {self.name(s.var)} in {_LOOP[s.kind]}({self.expr(s.extent)}{hint}):"
                yield from self.body(s.body, indent + 1)
            elif isinstance(s, ir.MappedFor):
                names = ", ".join(self.name(v) for v in s.vars)
                yield f"{pad}for {names} in ({s.mapping}).on({self.expr(s.worker)}):"
                yield from self.body(s.body, indent + 1)
            elif isinstance(s, ir.If):
                yield from self.branch(s, indent)
            else:
                yield pad + _STMT[type(s)](self, s)

    def branch(self, s: ir.If, indent: int) -> Iterator[str]:
        pad, word = "    " * indent, "if"
        while True:
            yield f"{pad}{word} {self.expr(s.cond)}:"
            yield from self.body(s.then, indent + 1)
            if len(s.orelse) != 1 or not isinstance(s.orelse[0], ir.If):
                break
            s, word = s.orelse[0], "elif"
        if s.orelse:
            yield f"{pad}else:"
            yield from self.body(s.orelse, indent + 1)

    def kernel(self, k: ir.Kernel) -> Iterator[str]:
        at = k.launch or ir.GpuLaunch((), 0)
        for var in k.dims:
            self.name(var)
        buffers = [f"{self.name(b)}: {'out ' if b in k.outputs else ''}{self.tensor(b, ' ')}" for b in k.buffers]
        dims = [f"{self.name(v)}: {v.dtype}" for v in k.dims]
        buffers += [
            f"{m.name}: map of {self.name(m.buffer)} box={m.box}" + (f" swizzle={m.swizzle}" if m.swizzle else "")
            for m in at.maps
        ]
        buffers += [f"own {self.name(b)}: {self.tensor(b, ' ')}" for b in at.workspace]
        buffers += [f"counters {self.name(b)}: {self.tensor(b, ' ')}" for b in at.counters]
        launch = f" grid=({self.exprs(at.grid)}) threads={at.threads}" if k.launch else ""
        launch += f" cluster={at.cluster}" if at.cluster else ""
        launch += f" min_blocks={at.min_blocks}" if at.min_blocks else ""
        yield f"kernel {k.name}({', '.join(buffers + dims)}){launch}:" + (f"  # {k.note}" if k.note else "")
        yield from self.body(k.body, 1)


def _let(p: _Printer, s: ir.Let) -> str:
    value = p.expr(s.value)
    vector = f": {s.var.dtype}x{s.var.lanes}" if s.var.lanes > 1 else ""
    return f"{p.name(s.var)}{vector} = {value}"


def _move(p: _Printer, s: ir.Move) -> str:
    by = "" if s.mapping is None else f", by=({s.mapping}).on({'thread' if s.worker is None else p.expr(s.worker)})"
    flags = "".join(f", {name}=True" for name in ("asynchronous", "clipped") if getattr(s, name))
    return f"move({p.region(s.dst)}, {p.region(s.src)}{by}{flags})"


_EXPR: dict[type, Callable[[_Printer, Any], tuple[int, str]]] = {
    ir.Const: _Printer.const,
    ir.Var: lambda p, e: (_ATOM, p.name(e)),
    ir.Unary: _Printer.unary,
    ir.Binary: _Printer.binary,
    ir.Compare: _Printer.compare,
    ir.Select: lambda p, e: (_ATOM, f"select({p.exprs((e.cond, e.a, e.b))})"),
    ir.Cast: lambda p, e: (_ATOM, f"{e.dtype}({p.expr(e.a)})"),
    ir.Load: lambda p, e: (_ATOM, f"{p.name(e.buffer)}[{p.exprs(e.indices) or '()'}]"),
    ir.Call: lambda p, e: (_ATOM, f"{e.name}({p.exprs(e.args)})"),
    ir.Ramp: lambda p, e: (_ATOM, f"ramp({p.exprs((e.base, e.stride, e.lanes))})"),
    ir.Broadcast: lambda p, e: (_ATOM, f"broadcast({p.exprs((e.a, e.lanes))})"),
    ir.LaneReduce: lambda p, e: (_ATOM, f"lane_{e.op}({p.expr(e.a)})"),
    ir.Intrinsic: lambda p, e: (_ATOM, f"{e.instruction.name}({p.exprs(e.args)})"),
    ir.Reduce: _Printer.reduce,
    ir.Scatter: _Printer.scatter,
    Recurrence: _Printer.recurrence,
}

_STMT: dict[type, Callable[[_Printer, Any], str]] = {
    ir.Store: lambda p, s: f"{p.name(s.buffer)}[{p.exprs(s.indices) or '()'}] = {p.expr(s.value)}",
    ir.Let: _let,
    ir.Allocate: lambda p, s: f"{p.name(s.buffer)} = {s.buffer.scope.value}({p.tensor(s.buffer)})",
    ir.Barrier: lambda p, s: "barrier()",
    ir.Evaluate: lambda p, s: p.expr(s.value),
    ir.Invoke: lambda p, s: f"{s.instruction.name}({', '.join(map(p.operand, s.operands))})",
    ir.Move: _move,
    ir.MatMul: lambda p, s: f"{p.region(s.c)} += {p.region(s.a)} @ {p.region(s.b)}",
}


def print_expr(expr: ir.Expr) -> str:
    """An expression on one line, in Python's syntax."""
    return _Printer().expr(expr)


def print_dim(size: ir.Dim) -> str:
    """A size, known or symbolic."""
    return _Printer().expr(size) if isinstance(size, ir.Expr) else str(size)


def print_body(body: ir.Body | ir.Stmt) -> str:
    """Statements, one per line."""
    return "\n".join(_Printer().body((body,) if isinstance(body, ir.Stmt) else body, 0))


def kernel_line(kernel: ir.Kernel) -> str:
    """A kernel's name and parameters, for `repr`."""
    return f"<{print_kernel(kernel).splitlines()[0].rstrip(':')}>"


def kernel_html(kernel: ir.Kernel) -> str:
    """A kernel's text, for a notebook."""
    return f"<pre>{escape(print_kernel(kernel))}</pre>"


def print_kernel(kernel: ir.Kernel) -> str:
    """A whole kernel: its parameters (``out`` marks those it writes), its note, and its body."""
    return "\n".join(_Printer().kernel(kernel)) + "\n"
