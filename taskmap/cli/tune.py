"""`taskmap tune`: measure the configurations of one operator, or of a model's operators, and remember the best."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from taskmap.cli.operators import OPERATORS, machine, problem_of
from taskmap.cli.output import command, positive, seconds
from taskmap.cli.tuning import cpu_machine, cuda_machine, report, tune_one
from taskmap.ir.lazy import lazily
from taskmap.options import TARGETS
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path
from taskmap.tuning.tune import FIRST, Budget

# An operator is tuned without torch and onnx, and most machines have no GPU.
_tune_onnx: Callable[[Sequence[str]], int] = lazily("taskmap.cli.tune_onnx", "main")
_tune_function: Callable[[Sequence[str]], int] = lazily("taskmap.cli.tune_function", "main")
_estimate: Callable[[argparse.Namespace], int] = lazily("taskmap.cli.tune_estimate", "estimate")

_USAGE = """usage: taskmap tune OPERATOR|MODEL.onnx|MODULE:FUNCTION [...]

Measure configurations, and remember the best for later compilations.

  OPERATOR          {operators}
  MODEL.onnx        all operators of an ONNX model
  MODULE:FUNCTION   all operators of a PyTorch model or function of an importable module

example: taskmap tune matmul --m 2039 --n 2048 --k 1024 --dtype f32
         taskmap tune conv --image 56x56 --channels 64 --out-channels 64 --kernel 3x3 --padding 1
         taskmap tune model.onnx --seconds 120
         taskmap tune torchvision.models:resnet50 --shape 1x3x224x224

taskmap tune OPERATOR --help says more about each."""


def main(arguments: Sequence[str]) -> int:
    """Tune what the options say; its exit status."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name in OPERATORS:
        return _tune_operator(name, arguments)
    if name.endswith(".onnx"):
        return _tune_onnx(arguments)
    if ":" in name:
        return _tune_function(arguments)
    usage = _USAGE.format(operators=", ".join(OPERATORS))
    if not name and {"-h", "--help"} & {*arguments}:
        print(usage)
        return 0
    print(usage, file=sys.stderr)
    if name:
        nearest = get_close_matches(name, OPERATORS, n=1)
        guess = f"; did you mean {nearest[0]!r}?" if nearest else ""
        print(f"taskmap tune: {name!r} is no operator, no .onnx file and no module:function{guess}", file=sys.stderr)
    return 2


def budget_options(parser: argparse.ArgumentParser, length: float = 60.0) -> None:
    """How much to measure."""
    parser.add_argument("--seconds", type=seconds, default=length, help=f"how long to measure ({length:g})")
    parser.add_argument("--first", type=positive, default=FIRST, help=f"so many that the cost model prefers ({FIRST})")
    parser.add_argument("--all", action="store_true", help="the whole space")
    parser.add_argument("--again", action="store_true", help="what is known already, too")
    parser.add_argument(
        "--cache-dir", type=Path, help="the folder of the cache; else $TASKMAP_CACHE_DIR, or the user's"
    )


def budget_of(a: argparse.Namespace) -> Budget:
    """The budget that the options say."""
    return Budget(a.seconds, None if a.all else a.first, a.again)


def _tune_operator(name: str, arguments: Sequence[str]) -> int:
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
    a = parser.parse_args(arguments)
    if a.target == "cuda-sim":
        return _estimate(a)
    folder = None if a.cache_dir is None else str(a.cache_dir)
    if a.target == "cuda":
        where = cuda_machine(a.gpu, folder)
    else:
        where = cpu_machine(a.threads or os.cpu_count() or 1, a.isa, folder)
    problem = problem_of(a, where.target)
    database = Database(database_path(folder))
    try:
        found = tune_one(problem, where, database, budget_of(a), quiet=a.json)
    finally:
        database.close()
    report([found], a.json)
    return 0 if found.best else 1
