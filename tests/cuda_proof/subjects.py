"""Small tasks for every GPU template, over types, layouts and sizes, primes and symbolic ones among them; and the
configurations at the corners of each template's space."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops import (
    activations,
    arithmetic,
    gather,
    join,
    matmul,
    norms,
    pooling,
    reductions,
    scatter,
    softmax,
    views,
)
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.ir.construct import cast, product, reduce
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Buffer, Dim, ExprLike, Kernel, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from taskmap.schedules import schedule
from taskmap.schedules.common.row_domain import find_contiguous_rows
from taskmap.schedules.cuda.attention import template as attention_template
from taskmap.schedules.cuda.attention.problem_view import find_attention_task
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.hopper import attention as hopper_attention
from taskmap.schedules.cuda.hopper.attention import HopperAttentionConfig
from taskmap.schedules.cuda.hopper.matmul import HopperConfig
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.rows.template import schedule_rows
from taskmap.schedules.cuda.select_attention import schedule_attention
from taskmap.schedules.cuda.select_matmul import schedule_config, space
from tests.schedules.graph_tasks import Strides, channels_last, fused, layer_norm, matrix_product, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case

LIMITS = {"f64": 1e-11, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
"""The allowed error against float64, relative to the result and to 1, by the result's type."""

Make = Callable[[], Kernel]
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration: the function that makes its kernel, and the corners of its template's space that it is at, such
    as "mma, least stages"."""

    make: Make
    corners: frozenset[str]


Choices = Callable[[Task, GpuTarget], Mapping[str, Choice]]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A task, named by template, operator and type, on arrays; ``corners``: its kernels by configuration."""

    template: str
    name: str
    case: Case
    choices: Choices
    limits: Mapping[str, float] = field(default_factory=lambda: LIMITS)

    def corners(self, target: GpuTarget) -> dict[str, Choice]:
        """The default schedule first, then those at the corners of the space; empty if the target has none."""
        task = self.case.task
        default = Choice(lambda: schedule(task, target), frozenset({"default"}))
        return {"default": default, **self.choices(task, target)}

    @property
    def types(self) -> str:
        """Of the elements, as in "f16" or "u8 i8"."""
        return " ".join(word for word in self.name.split() if word in _TYPES)

    @property
    def operator(self) -> str:
        """The operator and its sizes: the name without the types."""
        return " ".join(word for word in self.name.split() if word not in _TYPES)

    def __str__(self) -> str:
        return f"{self.template} {self.name}"


def corners_of(configs: Sequence[C], kind: str = "") -> dict[C, frozenset[str]]:
    """The first of ``configs``, the ones with the smallest and the largest tile, and for each of their fields those
    with the smallest and the largest value: each with the names of all its corners."""
    if not configs:
        return {}
    names = [f.name for f in fields(configs[0])]  # type: ignore[arg-type]  # configurations are dataclasses
    axes: dict[str, Callable[[C], Any]] = {"tile": _volume}
    axes |= {n: attrgetter(n) for n in names if not isinstance(getattr(configs[0], n), str)}
    found = [configs[0]]
    ends: dict[str, tuple[Callable[[C], Any], Any]] = {}
    for name, axis in axes.items():
        least, most = min(configs, key=axis), max(configs, key=axis)
        found += [least, most]
        if axis(least) != axis(most):
            ends |= {f"least {name}": (axis, axis(least)), f"most {name}": (axis, axis(most))}
    return {
        c: frozenset(f"{kind}, {end}" for end, (axis, value) in ends.items() if axis(c) == value) or frozenset({kind})
        for c in dict.fromkeys(found)
    }


def _choices(configs: Sequence[C], kind: str, make: Callable[[C], Kernel]) -> dict[str, Choice]:
    return {str(c): Choice(lambda c=c: make(c), ends) for c, ends in corners_of(configs, kind).items()}  # type: ignore[misc]


def _volume(c: object) -> int:
    total = 1
    for f in fields(c):  # type: ignore[arg-type]  # as above
        value = getattr(c, f.name)
        total *= max(value, 1) if isinstance(value, int) else 1
    return total


# The corners of the templates' spaces.


def no_choice(task: Task, target: GpuTarget) -> Mapping[str, Choice]:
    """Templates without configurations."""
    return {}


def product_corners(task: Task, target: GpuTarget) -> Mapping[str, Choice]:
    """Of products, by CUDA cores, by warps, and by warpgroups."""
    p = find_product(task)
    if p is None:
        return {}
    every = space(p, target)
    plain = [c for c in every if isinstance(c, MatmulConfig)]
    kinds: dict[str, list[Any]] = {
        "threads": [c for c in plain if c.multiplier == "simt"],
        "mma": [c for c in plain if c.multiplier != "simt"],
        "wgmma": [c for c in every if isinstance(c, HopperConfig)],
    }
    found: dict[str, Choice] = {}
    for kind, configs in kinds.items():
        found |= _choices(configs, kind, lambda c: schedule_config(p, c, target))
    return found


def tf32_corners(task: Task, target: GpuTarget) -> Mapping[str, Choice]:
    """Of products of f32 that may be rounded to tf32."""
    rounding = replace(target, tf32=True)
    default = Choice(lambda: schedule(task, rounding), frozenset({"rounded default"}))
    return {"rounded default": default, **product_corners(task, rounding)}


def row_corners(task: Task, target: GpuTarget) -> Mapping[str, Choice]:
    """Of rows: a thread, a warp and several of them to a row, also in several blocks; in registers, or walked again."""
    rows = find_contiguous_rows(task)
    assert rows is not None
    length = 1
    for d in rows.reduced:
        size = rows.full.shape[d]
        length *= size if isinstance(size, int) else 0
    ways = [RowConfig(team, 1, 0) for team in (1, 32, 256, 1024)]
    if all(out.shape != rows.full.shape for out in task.outputs):  # what is as wide as a row is made by one block
        ways += [RowConfig(256, 1, 0, parts=parts) for parts in (2, 3)]
    ways += [RowConfig(team, 1, -(-length // team)) for team in (1, 2, 32, 64, 1024) if 0 < length <= 64 * team]
    if target.capability >= 90:
        ways.append(RowConfig(32, 1, 0, parts=2, cluster=True))
        ways += [RowConfig(32, 1, -(-length // 256), parts=8, cluster=True)] if length else []
    return {
        str(c): Choice(
            lambda c=c: schedule_rows(task, rows, target, c),  # type: ignore[misc]
            frozenset({
                f"rows, {c.parts * c.team} threads {'of a cluster ' if c.cluster else ''}"
                f"{'hold them' if c.slots else 'walk them'}"
            }),
        )
        for c in ways
    }  # fmt: skip


def attention_corners(task: Task, target: GpuTarget) -> Mapping[str, Choice]:
    """Of attention, by CUDA cores, by warps, by several blocks, and by warpgroups: tiles, stages."""
    t = find_attention_task(task)
    assert t is not None
    every = attention_template.space(t, target)
    every += [replace(c, stages=1) for c in every]
    every += [
        replace(c, multiplier="simt", rows=16, keys=k, stages=s) for c in every[:1] for k in (16, 32) for s in (1, 2)
    ]
    fit = [c for c in dict.fromkeys(every) if attention_template.validity(t, c, target) is None]

    def make(c: AttentionConfig | HopperAttentionConfig) -> Kernel:
        kernel = schedule_attention(task, target, c)
        assert kernel is not None
        return kernel

    found: dict[str, Choice] = {}
    for kind, plain in (("attention by warps", False), ("attention by threads", True)):
        found |= _choices([c for c in fit if (c.multiplier == "simt") == plain], kind, make)
    shared = [replace(c, split=s) for c in fit for s in (2, 3)]
    shared = [c for c in shared if attention_template.validity(t, c, target) is None]
    found |= _choices(shared, "attention by blocks", make)
    groups = [c for c in hopper_attention.space(t, target) if hopper_attention.validity(t, c, target) is None]
    return {**found, **_choices(groups, "attention by warpgroups", make)}


# The subjects.


def case_of(
    outputs: Sequence[Node],
    dims: Mapping[Var, int] | None = None,
    strides: Mapping[Node, Strides] | None = None,
    largest_index: int = 0,
    anchor: Node | None = None,
    inputs: Sequence[Node] | None = None,
) -> Case:
    """A case on random arrays; i64 inputs are indices below ``largest_index``."""
    task = fused(outputs, anchor, strides, inputs)
    chance = random.Random(len(task.stages) * 31 + len(task.inputs))
    arrays = [random_array(chance, b.dtype, [size_of(d, dims or {}) for d in b.shape]) for b in task.inputs]
    if largest_index:
        arrays = [np.abs(a) % largest_index if b.dtype == i64 else a for b, a in zip(task.inputs, arrays, strict=True)]
    return Case(task, arrays, dims or {})


FLOATS = (f16, bf16, f32)


def pointwise_subjects(dtypes: Sequence[DType] = (*FLOATS, f64)) -> Iterator[Subject]:
    """One operator after another, on flat memory, with broadcasting, through indices, joined, pooled."""
    n = Var("n")
    for t in dtypes:
        for shape, dims in (((7, 37), {}), ((6, 64), {}), ((n, 3), {n: 83}), ((1,), {})):
            x, y = tensor(*shape, dtype=t), tensor(shape[-1], dtype=t)
            nodes = [activations.gelu(arithmetic.add(arithmetic.mul(x, 0.5), y))]
            yield Subject("pointwise", f"chain {_shape(shape)} {t}", case_of(nodes, dims), no_choice)
        x = tensor(1, 8, 9, 9, dtype=t)
        pooled = pooling.max_pool(x, 2, [3, 3], [2, 2], [1, 1])[0]
        strides = {x: channels_last(1, 8, 9, 9), pooled: channels_last(1, 8, 5, 5)}
        yield Subject("pooling", f"channels last {t}", case_of([pooled], strides=strides), no_choice)
        rows = gather.embedding(tensor(23, 40, dtype=t), tensor(7, dtype=i64))
        yield Subject("gather", f"embedding {t}", case_of([rows], largest_index=23), no_choice)
        joined = join.cat([tensor(5, 24, dtype=t), tensor(5, 17, dtype=t)], 1)
        yield Subject("join", f"cat {t}", case_of([joined]), no_choice)
    for t in (i8, u8):
        x, y = tensor(7, 37, dtype=t), tensor(7, 37, dtype=t)
        yield Subject("pointwise", f"chain 7x37 {t}", case_of([arithmetic.add(x, y)]), no_choice)


def transpose_subjects(dtypes: Sequence[DType] = (*FLOATS, i8)) -> Iterator[Subject]:
    """Elements that are read along one axis and written along another."""
    n = Var("n")
    for t in dtypes:
        for shape, dims in (((67, 71), {}), ((64, 96), {}), ((72, 120), {}), ((n, 48), {n: 53})):
            turned = views.permute(tensor(*shape, dtype=t), (1, 0))
            y = arithmetic.add(turned, tensor(*reversed(shape), dtype=t))
            yield Subject("transpose", f"{_shape(shape)} {t}", case_of([y], dims), no_choice)


def scatter_subjects() -> Iterator[Subject]:
    """Updates at positions that are data: by threads that own columns, and by blocks that own ranges."""
    for t, how in ((f32, "sum"), (f32, "amax"), (f64, "sum"), (i32, "sum"), (i32, "last"), (i8, "amin"), (i8, "amax")):
        for shape, length in (((23, 40), 17), ((601,), 1021)):
            x, indices = tensor(*shape, dtype=t), tensor(length, dtype=i64)
            source = tensor(length, *shape[1:], dtype=t)
            y = scatter.index_combine("index", x, 0, indices, source, how)
            case = case_of([y], largest_index=shape[0], inputs=(x, indices, source))
            yield Subject("scatter", f"{how} into {_shape(shape)} {t}", case, no_choice, {**LIMITS, "f32": 1e-4})


def row_subjects(dtypes: Sequence[DType] = FLOATS) -> Iterator[Subject]:
    """Softmax, norms, extrema, sums."""
    n = Var("n")
    for t in dtypes:
        for length, dims in ((37, {}), (256, {}), (n, {n: 67})):
            x = tensor(5, length, dtype=t)
            yield Subject("rows", f"softmax {length} {t}", case_of([softmax.softmax(x, 1)], dims), row_corners)
            yield Subject("rows", f"layer_norm {length} {t}", case_of(layer_norm(x, 1, True), dims), row_corners)
        x = tensor(5, 37, dtype=t)
        yield Subject("rows", f"argmax {t}", case_of([reductions.argmax(x, 1)]), row_corners)
        yield Subject("rows", f"sum {t}", case_of([reductions.sum_(x, [1])]), row_corners)
        weight = tensor(37, dtype=t)
        yield Subject("rows", f"rms_norm {t}", case_of([norms.rms_norm(x, [37], weight, 1e-5)[0]]), row_corners)


def integers(m: Dim, n: Dim, k: Dim, a: DType, b: DType) -> Node:
    """A product of bytes summed in i32, with its second operand contiguous along k."""

    def element(x: Buffer, w: Buffer) -> Callable[..., ExprLike]:
        r = Var("r")
        return lambda i, j: reduce("sum", [(r, k)], cast(x[i, r], i32) * cast(w[j, r], i32))

    return define("product", [tensor(m, k, dtype=a), tensor(n, k, dtype=b)], (m, n), element, i32)


def product_subjects(dtypes: Sequence[DType] = (*FLOATS, f64)) -> Iterator[Subject]:
    """Every transposition; sizes that are primes, multiples of 8, or symbolic; prologues and epilogues."""
    m = Var("m")
    for t in dtypes:
        for form, sizes, dims in (
            ("plain", (37, 19, 41), {}), ("plain", (72, 40, 136), {}), ("left", (72, 40, 136), {}),
            ("right", (72, 40, 136), {}), ("batched", (40, 24, 72), {}), ("plain", (m, 40, 72), {m: 67}),
            ("right", (13, 14, 600), {}), ("both", (40, 24, 72), {}),
        ):  # fmt: skip
            rows, columns, depth = sizes
            node = matrix_product(form, rows, columns, depth, t, 2)
            case = case_of([node], dims)
            yield Subject("product", f"{form} {_shape(sizes)} {t}", case, product_corners)
        y = matrix_product("plain", 40, 24, 56, t)
        y = activations.gelu(arithmetic.add(y, tensor(24, dtype=t)))
        case = case_of([arithmetic.add(y, tensor(40, 24, dtype=t))])
        yield Subject("product", f"with an epilogue {t}", case, product_corners)
        y = matmul.mm(activations.relu(tensor(67, 72, dtype=t)), activations.relu(tensor(72, 40, dtype=t)))
        yield Subject("product", f"with prologues {t}", case_of([y]), product_corners)
    limits = {**LIMITS, "f32": 2e-2}  # factors have ten bits behind the point
    for form, sizes in (("plain", (37, 19, 41)), ("right", (40, 24, 72)), ("left", (40, 24, 72))):
        case = case_of([matrix_product(form, *sizes, f32)])
        yield Subject("product", f"{form} {_shape(sizes)} tf32", case, tf32_corners, limits)
    for a, b in ((i8, i8), (u8, i8)):
        for sizes in ((37, 19, 41), (40, 24, 144)):
            case = case_of([integers(*sizes, a, b)])
            yield Subject("product", f"right {_shape(sizes)} {a} {b}", case, product_corners)


def beside(filters: Dim, channels: Dim, *window: Dim) -> Strides:
    """The strides of a depthwise convolution's weight with adjacent filters, as the graph packs it."""
    taps = [product([filters, *window[d + 1 :]]) for d in range(len(window))]
    return (1, filters, *taps)


def convolution_subjects(dtypes: Sequence[DType] = FLOATS) -> Iterator[Subject]:
    """Images with the channels last: dense, strided, dilated, grouped, depthwise; of a number known and symbolic."""
    images = Var("images")
    kinds: dict[str, tuple[int, int, int, int, int, int]] = {  # channels, filters, kernel, stride, dilation, groups
        "3x3": (32, 16, 3, 1, 1, 1),
        "1x1": (16, 24, 1, 1, 1, 1),
        "3x3 of 3 channels": (3, 16, 3, 1, 1, 1),
        "3x3 strided": (16, 19, 3, 2, 1, 1),
        "3x3 dilated": (16, 16, 3, 1, 2, 1),
        "3x3 grouped": (16, 16, 3, 1, 1, 2),
        "3x3 depthwise": (16, 16, 3, 1, 1, 16),
        "3x3 depthwise of 19 channels": (19, 19, 3, 2, 1, 19),
        "3x3 of n": (16, 24, 3, 1, 1, 1),
    }
    for t in dtypes:
        for name, (channels, filters, kernel, stride, dilation, groups) in kinds.items():
            symbolic = name.endswith("of n")
            x = tensor(images if symbolic else 2, channels, 7, 6, dtype=t)
            w = tensor(filters, channels // groups, kernel, kernel, dtype=t)
            pad = [kernel // 2 * dilation]
            y = convolution(x, w, [stride], pad, [dilation], groups=groups)
            z = activations.relu(add_channel_bias(y, tensor(filters, dtype=t)))
            strides = {node: channels_last(*node.shape) for node in (x, w, z)}
            if groups == channels:
                strides[w] = beside(*w.shape)
            case = case_of([z], {images: 3} if symbolic else {}, strides, anchor=y)
            yield Subject("convolution", f"{name} {t}", case, product_corners)


def attention_subjects(dtypes: Sequence[DType] = FLOATS) -> Iterator[Subject]:
    """Causal, masked, grouped, of several depths, lengths known and symbolic."""
    n = Var("n")
    for t in dtypes:
        for name, depth, queries, keys, heads, shared, causal, mask in (
            ("causal", 16, 37, 37, 2, 2, True, None), ("grouped", 64, 40, 53, 4, 2, False, None),
            ("masked", 24, 17, 48, 2, 1, False, boolean), ("biased", 128, 33, 40, 1, 1, False, t),
            ("symbolic", 32, n, n, 2, 1, True, None), ("few", 64, 2, 150, 8, 2, False, None),
        ):  # fmt: skip
            q = tensor(1, heads, queries, depth, dtype=t)
            k, v = (tensor(1, shared, keys, depth, dtype=t) for _ in range(2))
            m = None if mask is None else tensor(1, 1, queries, keys, dtype=mask)
            case = case_of([attention(q, k, v, m, causal=causal)], {n: 43} if name == "symbolic" else {})
            yield Subject("attention", f"{name} d={depth} {t}", case, attention_corners)


def subjects() -> Iterator[Subject]:
    """All of them."""
    for every in (
        pointwise_subjects, transpose_subjects, scatter_subjects, row_subjects, product_subjects, convolution_subjects,
        attention_subjects,
    ):  # fmt: skip
        yield from every()


_TYPES = frozenset(str(t) for t in (*FLOATS, f64, i8, u8, i32)) | {"tf32"}


def _shape(sizes: Sequence[Dim]) -> str:
    return "x".join(str(d) if isinstance(d, int) else "n" for d in sizes)
