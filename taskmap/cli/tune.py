"""`taskmap tune matmul`: measure the configurations of one operator, and remember the best."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from taskmap.cli.cache import product
from taskmap.cli.output import command, positive, seconds
from taskmap.cli.tuning import problem_of, report, tune_one
from taskmap.ir.lazy import lazily
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.tune import FIRST, Budget

# An operator is tuned without torch and onnx.
_model_options: Callable[..., None] = lazily("taskmap.cli.run", "model_options")
_run_model: Callable[..., int] = lazily("taskmap.cli.run", "run_model")


def main(arguments: Sequence[str]) -> int:
    """Tune what the options say; its exit status."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name.endswith(".onnx"):
        return _tune_model(arguments)
    parser = command(
        "tune",
        "Measure the configurations of an operator, or of all operators of a model, and remember the best.",
        "taskmap tune matmul --m 2039 --n 2048 --k 1024 --dtype f32\n         taskmap tune model.onnx --seconds 120",
    )
    parser.add_argument("operator", choices=["matmul"], metavar="matmul|MODEL.onnx", help="what to tune")
    product(parser, required=True)
    parser.add_argument("--target", choices=["cpu"], default="cpu", help="what is tuned for")
    parser.add_argument("--seconds", type=seconds, default=60.0, help="how long to measure (60)")
    parser.add_argument("--first", type=positive, default=FIRST, help=f"so many that the cost model prefers ({FIRST})")
    parser.add_argument("--all", action="store_true", help="the whole space")
    parser.add_argument("--again", action="store_true", help="what is known already, too")
    parser.add_argument(
        "--cache-dir", type=Path, help="the folder of the cache; else $TASKMAP_CACHE_DIR, or the user's"
    )
    a = parser.parse_args(arguments)
    folder = None if a.cache_dir is None else str(a.cache_dir)
    setting = Setting(a.threads or os.cpu_count() or 1, a.isa, cache_dir=folder)
    database = Database(database_path(folder))
    try:
        budget = Budget(a.seconds, None if a.all else a.first, a.again)
        found = tune_one(problem_of(a), setting, database, budget, quiet=a.json)
    finally:
        database.close()
    report([found], a.json)
    return 0 if found.best else 1


def _tune_model(arguments: Sequence[str]) -> int:
    """Compile a model, measuring on the way; then run it."""
    parser = command(
        "tune",
        "Measure configurations of a model's operators.",
        "taskmap tune model.onnx --seconds 120 --shape batch=8",
    )
    _model_options(parser)
    parser.add_argument("--seconds", type=seconds, default=60.0, dest="tune", help="how long to measure (60)")
    parser.set_defaults(profile=False, repeat=5, warmup=1, compare=None, save=None, rtol=0.0, atol=0.0, trace=None)
    return int(_run_model(parser.parse_args(arguments)))
