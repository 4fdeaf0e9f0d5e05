"""Attention as tuning sees it: sizes, element types, mask, and the memory layouts of queries, keys and values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import call, cast, compare, const, eq, reduce, select, static_size
from taskmap.ir.errors import ScheduleError, TypeMismatchError
from taskmap.ir.lower.flatten import row_major_strides, strides_of
from taskmap.ir.nodes import Buffer, Const, Dim, Expr, Kernel, Load, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type, dtype_named, f32, i64
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.common.attention_match import Attention, find_attention
from taskmap.schedules.common.space import Config, likely, read_types, sizes_text, types_text, unreadable
from taskmap.schedules.cpu.attention.config import AttentionConfig, default, read_config, space, validity
from taskmap.schedules.cpu.attention.cost import Lengths, cycles
from taskmap.schedules.cpu.attention.dot_block import attention_dots
from taskmap.schedules.cpu.attention.template import schedule_attention
from taskmap.schedules.cpu.attention.tile_block import attention_unit

NAME = "cpu.attention"
NAMES = ("batch", "heads", "key_heads", "queries", "keys", "depth", "width")
_FREE = ("batch", "queries", "keys")
_LETTERS = {"b": "batch", "h": "heads", "q": "queries", "k": "keys"}
_NUMBER = r"[1-9]\d{0,8}"
_SHAPES = re.compile(rf"(\??{_NUMBER})x({_NUMBER})x({_NUMBER})x(\??{_NUMBER})x(\??{_NUMBER})x({_NUMBER})x({_NUMBER})")
_PLACE = r"(heads|rows|computed)"
_MASK = r"(none|computed|[a-z0-9]+\[[b1][h1][q1][k1]\])"
_LAYOUT = re.compile(rf"q={_PLACE} k={_PLACE} v={_PLACE} out=(heads|rows) mask={_MASK} (causal|all)")
_LARGEST = 1 << 30
"""Elements of an operand that tuning accepts; text from elsewhere may ask for any number."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """softmax(q kᵀ / √depth + mask) v for q [batch, heads, queries, depth], k and v [batch, key heads, keys, depth or
    width].

    types: element types of the operands and of the output. q, k, v, out: "heads" if consecutive rows of one head are
    adjacent in memory, "rows" if the heads of one row are; "computed" if the operand is fused. mask: "none",
    "computed", or its type and its dimensions: "bool[b1qk]". free: sizes known only when the kernel runs; the problem
    holds likely values for them.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    depth: int
    width: int
    types: tuple[DType, DType]
    causal: bool = False
    mask: str = "none"
    q: str = "heads"
    k: str = "heads"
    v: str = "heads"
    out: str = "heads"
    free: tuple[str, ...] = ()

    template = NAME

    @property
    def shapes(self) -> str:
        """All sizes in order; a question mark before a size that is known only when the kernel runs."""
        return sizes_text((getattr(self, name) for name in NAMES), (name in self.free for name in NAMES))

    @property
    def dtypes(self) -> str:
        """Of the operands and of the output."""
        return types_text(self.types)

    @property
    def layout(self) -> str:
        """Memory layouts, the mask, and causality."""
        where = f"q={self.q} k={self.k} v={self.v} out={self.out}"
        return f"{where} mask={self.mask} {'causal' if self.causal else 'all'}"

    @property
    def operations(self) -> float:
        """Two for each term of both products, without what a causal mask excludes."""
        pairs = self.queries * self.keys
        if self.causal:
            short = min(self.queries, self.keys)
            pairs = short * (short + 1) // 2 + (self.queries - short) * self.keys
        return 2.0 * self.batch * self.heads * pairs * (self.depth + self.width)

    def dims(self) -> tuple[int, ...]:
        """Values of the task's symbolic sizes."""
        return tuple(getattr(self, name) for name in self.free)

    def task(self) -> Task:
        """The attention alone, on arrays laid out as ``layout`` says."""
        return _task(self)

    def default(self, target: CpuTarget) -> AttentionConfig:
        """The untuned configuration."""
        return default(_attention(self), target)

    def configs(self, target: CpuTarget) -> tuple[Config, ...]:
        """At most 200 configurations, the default first."""
        return space(_attention(self), target)

    def cycles(self, config: Config, target: CpuTarget) -> float:
        """Cycles by the cost model."""
        assert isinstance(config, AttentionConfig)
        tasks = self.batch * self.heads
        return cycles(config, Lengths(tasks, self.queries, self.keys, self.depth, self.width, self.causal), target)

    def read(self, text: str, target: CpuTarget) -> AttentionConfig | None:
        """The configuration with this text, if it is valid on ``target``, else None."""
        config = read_config(text)
        return config if config is not None and validity(config, _attention(self), target) is None else None

    def kernel(self, task: Task, config: Config, target: CpuTarget) -> Kernel:
        """The template's kernel. Raises ScheduleError if ``config`` does not fit."""
        assert isinstance(config, AttentionConfig)
        kernel = schedule_attention(task, target, config)
        if kernel is None:
            raise ScheduleError(f"{task.name!r} is not an attention that the template supports")
        return kernel


def find_attention_problem(task: Task, target: CpuTarget, hints: Mapping[Var, int]) -> AttentionProblem | None:
    """The attention that anchors a task. None if there is none that the template supports, if its products run on tile
    registers or dot products, or if nothing hints at a symbolic size."""
    a = find_attention(task)
    if (
        a is None
        or a.dot.dtype != f32
        or attention_unit(a, target) is not None
        or attention_dots(a, target) is not None
    ):
        return None
    batch, heads = a.stage.shape[:2]
    extents: list[Dim] = [batch, heads, a.k.buffer.shape[1], a.queries, a.keys, a.depth, a.width]
    sizes = [likely(d, hints) for d in extents]
    free = tuple(name for name, d in zip(NAMES, extents, strict=True) if static_size(d) is None)
    if not all(sizes) or not {*free} <= {*_FREE}:
        return None
    b, h, kh, q, k, d, w = (s or 0 for s in sizes)
    types = (a.q.buffer.dtype, a.stage.out.dtype)
    at = tuple(_place(task, buffer, hints) for buffer in (a.q.buffer, a.k.buffer, a.v.buffer, task.outputs[0]))
    return AttentionProblem(b, h, kh, q, k, d, w, types, a.causal, _mask(a), at[0], at[1], at[2], at[3], free)


def _place(task: Task, buffer: Buffer, hints: Mapping[Var, int]) -> str:
    """The neighbours in memory, after reading through views: "rows" of a head or "heads" of a row; "computed" if a
    stage computes the operand."""
    axes = tuple(Var(name) for name in "bhsd")
    simplifier = Simplifier()
    for v, extent in zip(axes, buffer.shape, strict=False):
        simplifier.bind(v, extent)
    where: tuple[Expr, ...] = axes
    if buffer in task.outputs or buffer not in task.producers:
        if len(buffer.shape) != len(axes):
            return "heads"
        heads, rows = (likely(s, hints) or 0 for s in strides_of(buffer)[1:3])
        return "rows" if heads < rows else "heads"
    while (stage := task.producers.get(buffer)) is not None:
        if not isinstance(stage.body, Load):
            return "computed"
        there = dict(zip(stage.axes, where, strict=True))
        buffer, where = stage.body.buffer, tuple(substitute(i, there) for i in stage.body.indices)
    address: Expr = const(0, i64)
    for i, step in zip(where, strides_of(buffer), strict=True):
        address = address + i * step
    terms = simplifier.poly(address)
    heads, rows = terms.get((axes[1],), 0), terms.get((axes[2],), 0)
    return "computed" if not rows else "rows" if 0 < heads < rows else "heads"


def _mask(a: Attention) -> str:
    """The mask's text: none, computed, or the type and dimensions of the tensor that is added to the scores or forbids
    some."""
    product = {id(e) for e in walk_exprs(a.dot)}
    loads = [e for e in walk_exprs(a.score) if isinstance(e, Load) and id(e) not in product]
    if not loads:
        return "none"
    axes = (*a.stage.axes[:3], a.key)
    if len(loads) > 1 or len(loads[0].indices) > len(axes):
        return "computed"
    indices: list[Expr | None] = [*[None] * (len(axes) - len(loads[0].indices)), *loads[0].indices]
    letters = ""
    for index, axis, letter in zip(indices, axes, "bhqk", strict=True):
        if index is axis:
            letters += letter
        elif index is None or isinstance(index, Const):
            letters += "1"
        else:
            return "computed"
    return f"{loads[0].buffer.dtype.name}[{letters}]"


def read_attention(shapes: str, dtypes: str, layout: str) -> AttentionProblem:
    """The problem that these texts describe. Raises ScheduleError if they describe none."""
    wrong = unreadable(NAME, f"{shapes} {dtypes} {layout}")
    sizes, where = _SHAPES.fullmatch(shapes), _LAYOUT.fullmatch(layout)
    if sizes is None or where is None:
        raise wrong
    try:
        mask = None if "[" not in where[5] else dtype_named(where[5].partition("[")[0])
    except TypeMismatchError:
        raise wrong from None
    types = read_types(dtypes)
    if len(types) != 2 or not all(t.is_float for t in types) or compute_type(types[0]) != f32:
        raise wrong
    if mask is not None and not (mask.is_bool or mask.is_float):
        raise wrong
    b, h, kh, q, k, d, w = (int(s.removeprefix("?")) for s in sizes.groups())
    free = tuple(name for name, text in zip(NAMES, sizes.groups(), strict=True) if text.startswith("?"))
    if h % kh:
        raise wrong
    if b * h * max(q * d, q * w, k * d, k * w) > _LARGEST or q * k > _LARGEST:
        raise ScheduleError(
            f"an attention of {shapes} is too large to be tuned", why=f"an operand has more than {_LARGEST:g} elements."
        )
    name = where[5]
    if mask is not None:  # a dimension of extent 1 is written as 1
        full = {"b": b, "h": h, "q": q, "k": k}
        one = {letter for letter, n in full.items() if n == 1 and _LETTERS[letter] not in free}
        name = f"{mask.name}[{''.join('1' if x in one else x for x in where[5][-5:-1])}]"
    places = (where[1], where[2], where[3], where[4])
    return AttentionProblem(b, h, kh, q, k, d, w, (types[0], types[1]), where[6] == "causal", name, *places, free)


@lru_cache(maxsize=64)
def _attention(p: AttentionProblem) -> Attention:
    found = find_attention(p.task())
    if found is None:
        raise ScheduleError(f"the template does not support attention of {p.shapes} {p.layout}")
    return found


def _stored(name: str, dtype: DType, shape: tuple[Dim, Dim, Dim, Dim], place: str) -> Buffer:
    if place != "rows":
        return Buffer(name, dtype, shape)
    b, h, s, d = shape
    steps = row_major_strides((b, s, h, d))
    return Buffer(name, dtype, shape, strides=(steps[0], steps[2], steps[1], steps[3]))


@lru_cache(maxsize=64)
def _task(p: AttentionProblem) -> Task:
    dims: dict[str, Var] = {name: Var(name) for name in p.free}
    sizes: dict[str, Dim] = {name: getattr(p, name) for name in _FREE}
    sizes.update(dims)
    batch, queries, keys = (sizes[name] for name in _FREE)
    q = _stored("q", p.types[0], (batch, p.heads, queries, p.depth), p.q)
    k = _stored("k", p.types[0], (batch, p.key_heads, keys, p.depth), p.k)
    v = _stored("v", p.types[0], (batch, p.key_heads, keys, p.width), p.v)
    out = _stored("out", p.types[1], (batch, p.heads, queries, p.width), p.out)
    mask = None
    if "[" in p.mask:
        kind, _, letters = p.mask.removesuffix("]").partition("[")
        full = (batch, p.heads, queries, keys)
        mask = Buffer(
            "mask", dtype_named(kind), tuple(1 if x == "1" else n for x, n in zip(letters, full, strict=True))
        )
    shared = p.heads // p.key_heads
    b, h, i, e = Var("b"), Var("h"), Var("i"), Var("e")

    def score(j: Var) -> Expr:
        d = Var("d")
        dot = reduce("sum", [(d, p.depth)], cast(q[b, h, i, d], f32) * cast(k[b, h // shared, j, d], f32))
        value = dot * const(1 / math.sqrt(p.depth), f32)
        if mask is not None:
            at = mask[tuple(0 if n == 1 else x for n, x in zip(mask.shape, (b, h, i, j), strict=True))]
            value = select(at, value, const(-math.inf, f32)) if mask.dtype.is_bool else value + cast(at, f32)
        return select(compare("gt", j, i), const(-math.inf, f32), value) if p.causal else value

    def weight(j: Var, top: Expr) -> Expr:
        return select(eq(top, const(-math.inf, f32)), const(0.0, f32), call("exp", score(j) - top))

    def highest() -> Expr:
        j = Var("j")
        return reduce("max", [(j, keys)], score(j))

    j, m = Var("j"), Var("j")
    total = reduce("sum", [(m, keys)], weight(m, highest()))
    summed = reduce("sum", [(j, keys)], weight(j, highest()) * cast(v[b, h // shared, j, e], f32))
    body = cast(summed / select(eq(total, const(0.0, f32)), const(1.0, f32), total), p.types[1])
    stage = Stage(out, (b, h, i, e), body, "attention", (("causal", p.causal),))
    inputs = (q, k, v) if mask is None else (q, k, v, mask)
    return Task("attention", inputs, (stage,), (out,), tuple(dims.values()), 0)
