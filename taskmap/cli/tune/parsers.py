"""The options of `taskmap tune`: for an operator, an ONNX model, a PyTorch model or function."""

from __future__ import annotations

import argparse

from taskmap.cli.operators import OPERATORS, machine
from taskmap.cli.options import cache_dir_option, isa_option
from taskmap.cli.output import command, count, positive, seconds
from taskmap.cli.run.command import model_options
from taskmap.cli.shapes import shape_option
from taskmap.options import TARGETS
from taskmap.tuning.tune import FIRST, Budget


def operator_parser(name: str) -> argparse.ArgumentParser:
    """`taskmap tune OPERATOR`."""
    named = OPERATORS[name]
    parser = command(
        f"tune {name}",
        "Measure the configurations of an operator, and remember the best.",
        f"taskmap tune {name} {named.example}",
    )
    parser.add_argument("operator", choices=[name], metavar=name, help="the operator to tune")
    named.options(parser)
    machine(parser)
    parser.add_argument("--target", choices=TARGETS, default="cpu", help="the target of the kernels (cpu)")
    parser.add_argument("--gpu", help="the GPU's name or instruction set (this machine's GPU)")
    budget_options(parser)
    cache_dir_option(parser)
    return parser


def onnx_parser() -> argparse.ArgumentParser:
    """`taskmap tune MODEL.onnx`."""
    parser = command(
        "tune",
        "Measure configurations of the operators of an ONNX model, and remember the best. Symbolic dimensions are\n"
        "measured at the sizes given by --shape and the inputs.",
        "taskmap tune model.onnx --seconds 120 --shape batch=8",
    )
    model_options(parser)
    budget_options(parser)
    return parser


def function_parser() -> argparse.ArgumentParser:
    """`taskmap tune MODULE:NAME`."""
    parser = command(
        "tune",
        "Measure configurations of the operators of a PyTorch model or function, and remember the best.\n\n"
        "MODULE:NAME names a model, a function of tensors, or a function without parameters that returns a model or\n"
        "(model, inputs). Inputs are those, the attribute example_inputs, or random ones of the shapes in --shape.\n"
        "The module is imported from the current folder or the installed packages: name only code that you trust.",
        "taskmap tune torchvision.models:resnet50 --shape 1x3x224x224 --seconds 120",
    )
    parser.add_argument("function", metavar="MODULE:NAME", help="the model or function to tune")
    shape_option(parser, "a function's inputs have no named dimensions: give the shape of each, as in 8x128:i64")
    parser.add_argument("--train", action="store_true", help="with gradients: the operators of training")
    parser.add_argument("--seed", type=count, default=0, help="seed of random inputs")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu", help="the target of the kernels (cpu)")
    parser.add_argument("--threads", type=positive, help="number of CPU threads")
    isa_option(parser)
    budget_options(parser)
    cache_dir_option(parser)
    return parser


def budget_options(parser: argparse.ArgumentParser, length: float = 60.0) -> None:
    """Add the options that limit measuring."""
    parser.add_argument("--seconds", type=seconds, default=length, help=f"time for measuring ({length:g})")
    parser.add_argument(
        "--first", type=positive, default=FIRST, help=f"measure this many of the cost model's favourites ({FIRST})"
    )
    parser.add_argument("--all", action="store_true", help="measure the whole space")
    parser.add_argument("--again", action="store_true", help="measure known configurations again")


def budget_of(a: argparse.Namespace) -> Budget:
    """The budget given by the options."""
    return Budget(a.seconds, None if a.all else a.first, a.again)
