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
    parser.add_argument("operator", choices=[name], metavar=name, help="what to tune")
    named.options(parser)
    machine(parser)
    parser.add_argument("--target", choices=TARGETS, default="cpu", help="what is tuned for (cpu)")
    parser.add_argument("--gpu", help="with a GPU: its name or instruction set; else the one that is there")
    budget_options(parser)
    cache_dir_option(parser)
    return parser


def onnx_parser() -> argparse.ArgumentParser:
    """`taskmap tune MODEL.onnx`."""
    parser = command(
        "tune",
        "Measure configurations of the operators of an ONNX model, and remember the best. Symbolic dimensions are\n"
        "measured at the sizes that --shape and the inputs give.",
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
        "MODULE:NAME names a model, a function of tensors, or a function without parameters that gives a model or\n"
        "(model, inputs). Inputs are those, or the attribute example_inputs, or random ones of the shapes in --shape.\n"
        "The module is imported, from the current folder or what is installed: name only what you trust.",
        "taskmap tune torchvision.models:resnet50 --shape 1x3x224x224 --seconds 120",
    )
    parser.add_argument("function", metavar="MODULE:NAME", help="what to tune")
    shape_option(parser, "a function's inputs have no named dimensions, so the shape of each, as in 8x128:i64")
    parser.add_argument("--train", action="store_true", help="with gradients: the operators of training")
    parser.add_argument("--seed", type=count, default=0, help="of random inputs")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu", help="what is tuned for (cpu)")
    parser.add_argument("--threads", type=positive, help="of the CPU")
    isa_option(parser)
    budget_options(parser)
    cache_dir_option(parser)
    return parser


def budget_options(parser: argparse.ArgumentParser, length: float = 60.0) -> None:
    """How much to measure."""
    parser.add_argument("--seconds", type=seconds, default=length, help=f"how long to measure ({length:g})")
    parser.add_argument("--first", type=positive, default=FIRST, help=f"so many that the cost model prefers ({FIRST})")
    parser.add_argument("--all", action="store_true", help="the whole space")
    parser.add_argument("--again", action="store_true", help="what is known already, too")


def budget_of(a: argparse.Namespace) -> Budget:
    """The budget that the options say."""
    return Budget(a.seconds, None if a.all else a.first, a.again)
