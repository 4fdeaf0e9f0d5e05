"""A convolution as tuning sees it: sizes, window, element types, and the memory layouts of image, weights and
output."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast as typed

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import binary, cast, compare, const, eq, index, load, maximum, minimum, select, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expansion import ATTRIBUTE as EXPANDS
from taskmap.ir.lower.flatten import row_major_strides, strides_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Load, Reduce, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, boolean, compute_type
from taskmap.ir.visit import walk_exprs
from taskmap.ir.winograd import ATTRIBUTE
from taskmap.schedules.common.convolution_geometry import Convolution, find_convolution
from taskmap.schedules.common.space import Config, likely, read_types, sizes_text, types_text, unreadable
from taskmap.schedules.cpu.convolution.config import (
    ConvolutionConfig,
    default,
    packed_width,
    read_config,
    space,
    validity,
)
from taskmap.schedules.cpu.convolution.cost import convolution_cycles, depthwise_cycles
from taskmap.schedules.cpu.convolution.depthwise_config import (
    DepthwiseConfig,
    depthwise_default,
    depthwise_space,
    depthwise_validity,
    read_depthwise,
)
from taskmap.schedules.cpu.convolution.template import schedulable, schedule_convolution

NAME = "cpu.convolution"
_NUMBER = r"[1-9]\d{0,8}"
_SIZES = rf"{_NUMBER}(?:x{_NUMBER}){{2,4}}"
_FREE_SIZES = rf"\??{_NUMBER}(?:x\??{_NUMBER}){{2,4}}"
_SHAPES = re.compile(rf"({_FREE_SIZES})\*({_SIZES})")
_LAYOUT = re.compile(
    r"stride=(\d+(?:x\d+)*) padding=(\d+(?:x\d+)*) dilation=(\d+(?:x\d+)*) groups=([1-9]\d{0,8})"
    r"(?: transposed=(\d+(?:x\d+)*))? x=(channels|columns|computed) w=(plain|computed|channels|packed[1-9]\d{0,4})"
    r" out=(channels|columns)"
)
_LARGEST = 1 << 31
"""Elements of an operand that tuning accepts; text from elsewhere may ask for any number."""
_LARGEST_WINDOW = 1 << 12

Sizes = tuple[int, ...]
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionProblem:
    """The convolution of x [n, c, spatial...] with w [oc, c / groups, kernel...] ([c, oc / groups, kernel...] if
    transposed).

    transposed: its output padding, None for an ordinary convolution. types: element types of x, w and the output.
    x_along, out_along: the contiguous axis in memory, "channels" or "columns"; x_along is "computed" if the image is
    fused. weights: "plain" as above, "computed" if they are fused, "packed48" for panels of 48 output channels, or
    "channels" for those of a depthwise convolution with the channels innermost. free: the dimensions of x known only
    when the kernel runs; the problem holds likely values for them.
    """

    x: Sizes
    w: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    types: tuple[DType, DType, DType]
    transposed: Sizes | None = None
    x_along: str = "channels"
    weights: str = "plain"
    out_along: str = "channels"
    free: tuple[int, ...] = ()

    template = NAME

    @property
    def shapes(self) -> str:
        """Of the image and the weights; a question mark before a size that is known only when the kernel runs."""
        return f"{sizes_text(self.x, (d in self.free for d in range(len(self.x))))}*{_text(self.w)}"

    @property
    def dtypes(self) -> str:
        """Of image, weights and output."""
        return types_text(self.types)

    @property
    def layout(self) -> str:
        """The window, and the memory layouts."""
        turned = "" if self.transposed is None else f" transposed={_text(self.transposed)}"
        slide = f"stride={_text(self.stride)} padding={_text(self.padding)} dilation={_text(self.dilation)}"
        where = f"x={self.x_along} w={self.weights} out={self.out_along}"
        return f"{slide} groups={self.groups}{turned} {where}"

    def dims(self) -> tuple[int, ...]:
        """Values of the task's symbolic sizes."""
        return tuple(self.x[d] for d in self.free)

    @property
    def rank(self) -> int:
        """Spatial dimensions."""
        return len(self.w) - 2

    @property
    def out(self) -> Sizes:
        """The output's shape."""
        spatial = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True)
        if self.transposed is None:
            return (self.x[0], self.w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spatial))
        grown = ((n - 1) * s + d * (k - 1) + 1 - 2 * p for n, k, s, p, d in spatial)
        extended = (n + extra for n, extra in zip(grown, self.transposed, strict=True))
        return (self.x[0], self.w[1] * self.groups, *extended)

    @property
    def packed(self) -> int | None:
        """The width of the weights' panels, or None if they are not packed."""
        return int(self.weights.removeprefix("packed")) if self.weights.startswith("packed") else None

    @property
    def accumulate(self) -> DType:
        """The type of the sums."""
        return compute_type(self.types[0])

    @property
    def operations(self) -> float:
        """Two for each term of each sum."""
        positions = math.prod(self.x[2:] if self.transposed is not None else self.out[2:])
        return 2.0 * self.x[0] * positions * math.prod(self.w) * (self.groups if self.transposed is not None else 1)

    def task(self) -> Task:
        """The convolution alone, on arrays laid out as ``layout`` says."""
        return _task(self)

    def convolution(self) -> Convolution:
        """The geometry that the template finds in the task. Raises ScheduleError if it does not support it."""
        found = schedulable(self.task())
        if found is None:
            raise ScheduleError(f"the template does not support a convolution of {self.shapes} {self.layout}")
        return found

    def default(self, target: CpuTarget) -> ConvolutionConfig | DepthwiseConfig:
        """The untuned configuration."""
        c = _convolution(self)
        return depthwise_default(c, target) if c.depthwise else default(c, target)

    def configs(self, target: CpuTarget) -> tuple[Config, ...]:
        """At most 200 configurations, the default first."""
        c = _convolution(self)
        return depthwise_space(c, target) if c.depthwise else space(c, target)

    def cycles(self, config: Config, target: CpuTarget) -> float:
        """Cycles by the cost model."""
        c = _likely(self)
        if isinstance(config, DepthwiseConfig):
            return depthwise_cycles(config, c, target)
        assert isinstance(config, ConvolutionConfig)
        return convolution_cycles(config, c, target)

    def read(self, text: str, target: CpuTarget) -> Config | None:
        """The configuration with this text, if it is valid on ``target``, else None."""
        c = _convolution(self)
        if c.depthwise:
            alone = read_depthwise(text)
            return alone if alone is not None and depthwise_validity(alone, c, target) is None else None
        config = read_config(text)
        return config if config is not None and validity(config, c, target) is None else None

    def kernel(self, task: Task, config: Config, target: CpuTarget) -> Kernel:
        """The template's kernel. Raises ScheduleError if ``config`` does not fit."""
        assert isinstance(config, (ConvolutionConfig, DepthwiseConfig))
        kernel = schedule_convolution(task, target, config)
        if kernel is None:
            raise ScheduleError(f"{task.name!r} is not a convolution that the template supports")
        return kernel


@lru_cache(maxsize=64)
def _convolution(p: ConvolutionProblem) -> Convolution:
    return p.convolution()


@lru_cache(maxsize=64)
def _likely(p: ConvolutionProblem) -> Convolution:
    """The convolution with all sizes known, or as it is if the template supports it with symbolic sizes only."""
    known = find_convolution(replace(p, free=()).task())
    return _convolution(p) if known is None else known


def find_convolution_problem(task: Task, target: CpuTarget, hints: Mapping[Var, int]) -> ConvolutionProblem | None:
    """The convolution that anchors a task. None if there is none that the template supports, or if nothing hints at a
    symbolic size."""
    c = schedulable(task)
    if c is None or not {ATTRIBUTE, EXPANDS}.isdisjoint(attrs := dict(c.stage.attrs)):
        return None  # transformed weights, and an image that is computed, belong to templates without choices
    shape = (c.batch, c.groups * c.channels, *c.spatial(c.image))
    sizes = [likely(d, hints) for d in shape]
    if any(s is None for s in sizes):
        return None
    transposed = bool(attrs.get("transposed"))
    outer = (c.groups * c.channels, c.out_channels) if transposed else (c.groups * c.out_channels, c.channels)
    slides = (typed("tuple[int, ...]", attrs[key]) for key in ("stride", "padding", "dilation"))
    stride, padding, dilation = (tuple(map(int, slide)) for slide in slides)
    found = ConvolutionProblem(
        tuple(s or 0 for s in sizes),
        (*outer, *c.spatial(c.kernel)),
        stride,
        padding,
        dilation,
        c.groups,
        (c.x.dtype, _weight_type(c), c.stage.out.dtype),
        tuple(int(n) for n in attrs["output_padding"]) if transposed else None,  # type: ignore[attr-defined]
        "computed" if c.x in task.producers else _along(c.x),
        _weights(task, c),
        _along(task.outputs[0]),
        tuple(d for d, size in enumerate(shape) if static_size(size) is None),
    )  # fmt: skip
    return found if min(found.out) > 0 and found.out == tuple(likely(d, hints) for d in c.stage.shape) else None


def _weight_type(c: Convolution) -> DType:
    return next((e.buffer.dtype for e in walk_exprs(c.w) if isinstance(e, Load)), c.w.dtype)


def _weights(task: Task, c: Convolution) -> str:
    width = packed_width(c)
    if width is not None:
        return "channels" if c.groups > 1 and c.channels == c.out_channels == 1 else f"packed{width}"
    return "computed" if any(isinstance(e, Load) and e.buffer in task.producers for e in walk_exprs(c.w)) else "plain"


def _along(buffer: Buffer) -> str:
    """The contiguous axis in the memory of [n, c, spatial...]."""
    steps = [static_size(s) for s in strides_of(buffer)]
    if len(steps) < 2 or static_size(buffer.shape[1]) == 1:
        return "channels"
    return "channels" if steps[1] == 1 and steps[-1] != 1 else "columns"


def read_convolution(shapes: str, dtypes: str, layout: str) -> ConvolutionProblem:
    """The problem that these texts describe. Raises ScheduleError if they describe none."""
    wrong = unreadable(NAME, f"{shapes} {dtypes} {layout}")
    sizes, where = _SHAPES.fullmatch(shapes), _LAYOUT.fullmatch(layout)
    types = read_types(dtypes)
    if sizes is None or where is None or len(types) != 3 or not all(t.is_float for t in types):
        raise wrong
    x, w = _numbers(sizes[1].replace("?", "")), _numbers(sizes[2])
    free = tuple(d for d, size in enumerate(sizes[1].split("x")) if size.startswith("?"))
    stride, padding, dilation = (_numbers(where[n]) for n in (1, 2, 3))
    transposed = None if where[5] is None else _numbers(where[5])
    slides = [stride, padding, dilation, *([transposed] if transposed is not None else [])]
    groups, rank = int(where[4]), len(w) - 2
    if len(x) != len(w) or 1 in free or any(len(s) != rank for s in slides) or not all((*stride, *dilation)):
        raise wrong
    found = ConvolutionProblem(
        x,
        w,
        stride,
        padding,
        dilation,
        groups,
        (types[0], types[1], types[2]),
        transposed,
        where[6],
        where[7],
        where[8],
        free,
    )
    inner, outer = (w[1], w[0]) if transposed is None else (w[0] // groups, w[1] * groups)
    if x[1] != inner * groups or outer % groups or (transposed is not None and w[0] % groups) or min(found.out) < 1:
        raise wrong
    alone = groups > 1 and inner == 1 and outer == groups
    if (found.packed and outer // groups < 2) or (found.weights == "channels" and not alone):
        raise wrong  # a single channel is never packed
    largest = max(math.prod(x), math.prod(w), math.prod(found.out))
    if largest > _LARGEST or math.prod(w[2:]) > _LARGEST_WINDOW:
        raise ScheduleError(
            f"a convolution of {shapes} is too large to be tuned",
            why=f"an operand has more than {_LARGEST:g} elements.",
        )
    if schedulable(found.task()) is None:
        raise ScheduleError(
            f"a convolution of {shapes} has no template of its own",
            why="a convolution with a 1x1 window is a matrix product.",
            hint="Tune that: batch 1, m positions, n output channels, k input channels.",
        )
    return found


def _text(sizes: Sequence[int]) -> str:
    return sizes_text(sizes, [False] * len(sizes))


def _numbers(text: str) -> Sizes:
    return tuple(int(digits) for digits in text.split("x"))


def _stored(name: str, dtype: DType, shape: Shape, along: str) -> Buffer:
    """[n, c, spatial...] with channels innermost, or row by row."""
    if along != "channels":
        return Buffer(name, dtype, shape)
    order = (0, *range(2, len(shape)), 1)
    steps = row_major_strides(tuple(shape[d] for d in order))
    return Buffer(name, dtype, shape, strides=tuple(steps[order.index(d)] for d in range(len(shape))))


@lru_cache(maxsize=64)
def _task(p: ConvolutionProblem) -> Task:
    wide = compute_type(p.types[0])
    turned = p.transposed is not None
    dims = {d: Var(f"n{d}") for d in p.free}
    image: Shape = tuple(dims.get(d, size) for d, size in enumerate(p.x))
    whole = tuple(_positions(p, d, image[2 + d]) for d in range(p.rank))
    x = _stored("x", p.types[0], image, p.x_along)
    out = _stored("out", p.types[2], (image[0], p.out[1], *whole), p.out_along)
    per_group, of_group = p.x[1] // p.groups, p.out[1] // p.groups
    n, oc, c = Var("n"), Var("oc"), Var("c")
    at, taps = [[Var(f"{name}{d}") for d in range(p.rank)] for name in "ok"]
    place: list[Expr] = []
    inside: Expr = const(True, boolean)
    for d, (o, k) in enumerate(zip(at, taps, strict=True)):
        reached = o + p.padding[d] - k * p.dilation[d]
        position = reached // p.stride[d] if turned else o * p.stride[d] + k * p.dilation[d] - p.padding[d]
        inside = binary("and", inside, compare("ge", position, 0) & compare("lt", position, image[2 + d]))
        if turned and p.stride[d] != 1:
            inside = inside & eq(reached % p.stride[d], 0)
        place.append(maximum(minimum(position, index(image[2 + d]) - 1), 0))
    channel: Expr = c if p.groups == 1 else oc // of_group * per_group + c
    value = select(inside, cast(load(x, (n, channel, *place)), wide), const(0, wide))
    w, weight = _weight(p, oc, c, channel, taps)
    axes = ((c, index(per_group)), *((v, index(k)) for v, k in zip(taps, p.w[2:], strict=True)))
    body = cast(Reduce("sum", axes, value * cast(weight, wide), wide), p.types[2])
    attrs = {
        "dilation": p.dilation, "groups": p.groups, "output_padding": p.transposed or (0,) * p.rank,
        "padding": p.padding, "stride": p.stride, "transposed": turned,
    }  # fmt: skip
    stage = Stage(out, (n, oc, *at), body, "convolution", tuple(sorted(attrs.items())))
    return Task("convolution", (x, w), (stage,), (out,), tuple(dims.values()), 0)


def _positions(p: ConvolutionProblem, d: int, size: Dim) -> Dim:
    """Positions of the output in a dimension, by the operator's shape formula."""
    if isinstance(size, int):
        return p.out[2 + d]
    stride, padding, reach = p.stride[d], p.padding[d], p.dilation[d] * (p.w[2 + d] - 1) + 1
    if p.transposed is not None:
        return Simplifier().dim((size - 1) * stride + (reach + p.transposed[d] - 2 * padding))
    room = size + (2 * padding - reach)
    return Simplifier().dim((room // stride if stride != 1 else room) + 1)


def _weight(p: ConvolutionProblem, oc: Var, c: Var, channel: Expr, taps: Sequence[Expr]) -> tuple[Buffer, Expr]:
    """The weights' buffer, and its element for an output channel, an input channel and taps."""
    turned, width = p.transposed is not None, p.packed
    of_group = p.out[1] // p.groups
    if p.weights == "channels":
        w = Buffer("w", p.types[1], (1, 1, *p.w[2:], p.groups))
        return w, load(w, (oc // p.groups, c, *taps, oc % p.groups))
    if width is None:
        w = Buffer("w", p.types[1], p.w)
        return w, load(w, (channel, oc % of_group, *taps) if turned else (oc, c, *taps))
    outer = (p.groups,) if p.groups > 1 and not turned else ()
    inputs = p.w[0] if turned else p.w[1]
    w = Buffer("w", p.types[1], (*outer, -(-of_group // width), *p.w[2:], inputs, width))
    column = oc % of_group
    group = (oc // of_group,) if outer else ()
    return w, load(w, (*group, column // width, *taps, channel if turned else c, column % width))
