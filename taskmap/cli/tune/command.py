"""`taskmap tune`: measure the configurations of one operator, or of a model's operators, and remember the best."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskmap.cli.loading import slowly
from taskmap.cli.model_files import check_model_file
from taskmap.cli.operators import OPERATORS, problem_of
from taskmap.cli.options import folder_of
from taskmap.cli.parser import nearest, refused, wants_json
from taskmap.cli.tune.parsers import budget_of, function_parser, onnx_parser, operator_parser
from taskmap.cli.tune.session import cpu_machine, cuda_machine, report, tune_one
from taskmap.ir.util.lazy import lazily
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path

# Tuning an operator needs neither torch nor onnx, and most machines have no GPU.
_tune_onnx: Callable[[argparse.Namespace], int] = slowly("taskmap.cli.tune.onnx", "tune_model", "onnx")
_tune_function: Callable[[argparse.Namespace], int] = slowly("taskmap.cli.tune.function", "tune_function")
if TYPE_CHECKING:
    from taskmap.cli.tune.estimate import estimate as _estimate
else:
    _estimate = lazily("taskmap.cli.tune.estimate", "estimate")

_USAGE = """usage: taskmap tune OPERATOR|MODEL.onnx|MODULE:FUNCTION [...]

Measure configurations, and remember the best for later compilations.

  OPERATOR          {operators}
  MODEL.onnx        all operators of an ONNX model
  MODULE:FUNCTION   all operators of a PyTorch model or function of an importable module

example: taskmap tune matmul --m 2039 --n 2048 --k 1024 --dtype f32
         taskmap tune conv --image 56x56 --channels 64 --out-channels 64 --kernel 3x3 --padding 1
         taskmap tune model.onnx --seconds 120
         taskmap tune torchvision.models:resnet50 --shape 1x3x224x224

taskmap tune OPERATOR --help shows the options of each."""


def main(arguments: Sequence[str]) -> int:
    """Tune what the options name; returns the exit status."""
    words = [word for word in arguments if not word.startswith("-")]  # includes values of options
    kinds = (OPERATORS.__contains__, _is_file, _is_function)
    name = next((word for kind in kinds for word in words if kind(word)), words[0] if words else "")
    if name in OPERATORS:
        return _tune_operator(operator_parser(name).parse_args(arguments))
    if _is_file(name):
        a = onnx_parser().parse_args(arguments)
        check_model_file(Path(a.model))
        return _tune_onnx(a)
    if _is_function(name):
        return _tune_function(function_parser().parse_args(arguments))
    usage = _USAGE.format(operators=", ".join(OPERATORS))
    if not name and {"-h", "--help"} & {*arguments}:
        print(usage)
        return 0
    if not name and not wants_json(arguments):
        print(usage, file=sys.stderr)
        return 2
    wrong = f"{name!r} is not an operator, a .onnx file or a module:function" if name else "there is nothing to tune"
    hint = nearest(name, OPERATORS) or f"operators are {', '.join(OPERATORS)}; see taskmap tune --help"
    return refused("taskmap tune", wrong, hint, arguments)


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The parser for each kind of argument; "" is a model."""
    return {"": onnx_parser(), **{name: operator_parser(name) for name in OPERATORS}}


def _is_file(word: str) -> bool:
    return word.endswith(".onnx")


def _is_function(word: str) -> bool:
    return ":" in word


def _tune_operator(a: argparse.Namespace) -> int:
    if a.target == "cuda-sim":
        return _estimate(a)
    folder = folder_of(a)
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
