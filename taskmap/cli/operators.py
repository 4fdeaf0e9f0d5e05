"""The operators of the command line, with their sizes as options: `matmul --m 128 --n 256 --k 256`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskmap.cli.options import isa_option
from taskmap.cli.output import positive
from taskmap.ir.errors import InputError
from taskmap.ir.target import CpuTarget, Target
from taskmap.ir.types import DType, dtype_named
from taskmap.schedules import Problem, packed_width, read_problem

_SIZES = re.compile(r"\d{1,9}(?:x\d{1,9}){0,2}")
_DTYPES = ["f64", "f32", "f16", "bf16"]


@dataclass(frozen=True, slots=True)
class Named:
    """An operator of the command line: ``options`` adds its sizes to a parser, ``problem`` reads them for a target.

    targets: the kinds of targets on which its configurations can be chosen.
    """

    options: Callable[[argparse.ArgumentParser], None]
    problem: Callable[[argparse.Namespace, Any], Problem]
    example: str
    targets: tuple[str, ...] = ("cpu",)


def machine(parser: argparse.ArgumentParser) -> None:
    """Add the options for the machine that runs an operator."""
    parser.add_argument("--threads", type=positive, help="threads per kernel (all cores)")
    isa_option(parser)


def problem_of(a: argparse.Namespace, target: Target) -> Problem:
    """The operator ``a.operator`` with the sizes in the options. Raises InputError for a target on which it cannot be
    tuned, and ScheduleError for invalid sizes or layouts."""
    named = OPERATORS[a.operator]
    if target.kind not in named.targets:
        raise InputError(
            f"{a.operator} cannot be tuned for {target.kind}",
            why=f"only the configurations of {_list(target.kind)} can be chosen there.",
        )
    return named.problem(a, target)


def _list(kind: str) -> str:
    return " and ".join(name for name, named in OPERATORS.items() if kind in named.targets) or "nothing"


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=positive, default=1, help="the size of the batch (1)")
    parser.add_argument("--dtype", default="f32", choices=_DTYPES, help="the type of all operands and the result (f32)")


def _matmul_options(parser: argparse.ArgumentParser) -> None:
    for name in ("m", "n", "k"):
        parser.add_argument(f"--{name}", type=positive, required=True, help="a size of the product m×k · k×n")
    _common(parser)
    parser.add_argument("--a", default="k", choices=["k", "m"], help="the axis along which A is contiguous (k)")
    parser.add_argument(
        "--b", default="n", help="the axis along which B is contiguous: n, k, or packed32 for panels of 32 columns (n)"
    )


def _matmul(a: argparse.Namespace, target: Target) -> Problem:
    shapes, layout = f"{a.batch}x{a.m}x{a.n}x{a.k}", f"a={a.a} b={a.b}"
    return read_problem(f"{target.kind}.matmul", shapes, _types(a), layout)


def sizes(text: str) -> tuple[int, ...]:
    """Sizes such as 56x56, for argparse."""
    if _SIZES.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 56x56, or 7 for one dimension")
    return tuple(int(digits) for digits in text.split("x"))


def _convolution_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", type=sizes, required=True, metavar="HxW", help="the image; one to three dimensions")
    parser.add_argument("--channels", type=positive, required=True, help="channels of the image")
    parser.add_argument("--out-channels", type=positive, required=True, help="channels of the output")
    parser.add_argument("--kernel", type=sizes, required=True, metavar="HxW", help="the window")
    for name, usual in (("stride", "1"), ("padding", "0"), ("dilation", "1")):
        text = f"in each dimension, or one number for all ({usual})"
        parser.add_argument(f"--{name}", type=sizes, default=usual, metavar="HxW", help=text)
    parser.add_argument("--groups", type=positive, default=1, help="groups of channels (1)")
    parser.add_argument("--transposed", action="store_true", help="a transposed convolution")
    parser.add_argument(
        "--output-padding",
        type=sizes,
        default="0",
        metavar="HxW",
        help="the extra size of a transposed convolution's output (0)",
    )
    _common(parser)
    along = "the axis that is contiguous in memory, channels or columns (channels)"
    parser.add_argument("--x", default="channels", choices=["channels", "columns"], help=f"for the image: {along}")
    parser.add_argument("--out", default="channels", choices=["channels", "columns"], help=f"for the output: {along}")
    parser.add_argument(
        "--w",
        default="packed",
        help="layout of the weights: packed (as in compiled models), plain, packed48 or channels (packed)",
    )


def _convolution(a: argparse.Namespace, target: CpuTarget) -> Problem:
    rank, dtype = len(a.kernel), dtype_named(a.dtype)
    stride, padding, dilation, extra = (
        _spread(name, getattr(a, name), rank) for name in ("stride", "padding", "dilation", "output_padding")
    )
    if len(a.image) != rank:
        raise InputError(
            f"an image of {len(a.image)} dimensions and a window of {rank}", hint="--image 56x56 --kernel 3x3"
        )
    if a.channels % a.groups or a.out_channels % a.groups:
        raise InputError(f"{a.groups} groups do not divide {a.channels} and {a.out_channels} channels")
    w = (a.channels, a.out_channels // a.groups) if a.transposed else (a.out_channels, a.channels // a.groups)
    turned = f" transposed={_text(extra)}" if a.transposed else ""
    slide = f"stride={_text(stride)} padding={_text(padding)} dilation={_text(dilation)} groups={a.groups}{turned}"

    def read(weights: str) -> Problem:
        shapes = f"{_text((a.batch, a.channels, *a.image))}*{_text((*w, *a.kernel))}"
        return read_problem("cpu.convolution", shapes, _types(a), f"{slide} x={a.x} w={weights} out={a.out}")

    if a.w != "packed":
        return read(a.w)
    if a.groups > 1 and a.groups == a.channels == a.out_channels:
        return read("channels")
    pointwise = a.groups == 1 and max(a.kernel) == 1 and not any(padding)
    channels = 0 if a.transposed or pointwise else a.channels // a.groups
    row = _row(a, stride, padding, dilation)
    return read(_weights(a.out_channels // a.groups, a.groups, row, dtype, target, channels))


def _row(a: argparse.Namespace, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]) -> int:
    """The number of neighbouring outputs in a row, for one stride phase of the convolution."""
    image, kernel, s, p, d = int(a.image[-1]), int(a.kernel[-1]), stride[-1], padding[-1], dilation[-1]
    if a.transposed:
        return max(1, -(-((image - 1) * s + d * (kernel - 1) + 1 - 2 * p) // max(s, 1)))
    return max(1, (image + 2 * p - d * (kernel - 1) - 1) // max(s, 1) + 1)


def _weights(columns: int, groups: int, row: int, dtype: DType, target: CpuTarget, channels: int) -> str:
    """The layout of weights in compiled models, for this many output channels per group."""
    if columns < (2 if groups == 1 else 4):
        return "plain"
    return f"packed{packed_width(row, columns, dtype, target, channels)}"


def _spread(name: str, given: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(given) not in (1, rank):
        raise InputError(f"--{name.replace('_', '-')} has {len(given)} numbers, and the window {rank} dimensions")
    return given * rank if len(given) == 1 else given


def _text(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def _types(a: argparse.Namespace) -> str:
    name = dtype_named(a.dtype).name
    return f"{name},{name},{name}"


def _attention_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queries", type=positive, required=True, help="rows of q")
    parser.add_argument("--keys", type=positive, help="rows of k and v (default: --queries)")
    parser.add_argument("--depth", type=positive, required=True, help="elements of a query and of a key")
    parser.add_argument("--width", type=positive, help="elements of a value (default: --depth)")
    parser.add_argument("--heads", type=positive, default=1, help="heads of the queries (1)")
    parser.add_argument("--key-heads", type=positive, help="heads of keys and values (default: --heads)")
    parser.add_argument("--causal", action="store_true", help="a query ignores keys after its own position")
    parser.add_argument("--mask", default="none", help="its type and dimensions: bool[b1qk], f32[11qk] (none)")
    _common(parser)
    place = "neighbours in memory: the rows of a head, or the heads of a row (heads)"
    for name in ("q", "k", "v", "out"):
        parser.add_argument(f"--{name}", default="heads", choices=["heads", "rows"], help=place)


def _attention(a: argparse.Namespace, target: CpuTarget) -> Problem:
    keys, width, key_heads = a.keys or a.queries, a.width or a.depth, a.key_heads or a.heads
    if a.heads % key_heads:
        raise InputError(f"{key_heads} heads of keys do not divide {a.heads} heads of queries")
    name = dtype_named(a.dtype).name
    layout = f"q={a.q} k={a.k} v={a.v} out={a.out} mask={a.mask} {'causal' if a.causal else 'all'}"
    shapes = _text((a.batch, a.heads, key_heads, a.queries, keys, a.depth, width))
    return read_problem("cpu.attention", shapes, f"{name},{name}", layout)


OPERATORS: dict[str, Named] = {
    "matmul": Named(_matmul_options, _matmul, "--m 2039 --n 2048 --k 1024 --dtype f32", ("cpu", "cuda")),
    "conv": Named(
        _convolution_options, _convolution, "--image 56x56 --channels 64 --out-channels 64 --kernel 3x3 --padding 1"
    ),
    "attention": Named(_attention_options, _attention, "--heads 12 --queries 128 --depth 64"),
}
"""The operators by name."""
