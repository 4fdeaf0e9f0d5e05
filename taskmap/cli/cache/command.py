"""`taskmap cache`: tuning records of this machine, and compiled kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from taskmap.cli.cache import kernels as cache_kernels
from taskmap.cli.cache import maintain as cache_care
from taskmap.cli.cache import records as cache_records
from taskmap.cli.cache import share as cache_share
from taskmap.cli.operators import OPERATORS, machine
from taskmap.cli.options import cache_dir_option
from taskmap.cli.output import bytes_of, command, positive, seconds
from taskmap.cli.parser import nearest, refused

Action = Callable[[argparse.Namespace], int]
Make = Callable[[argparse.ArgumentParser], Action]


def main(arguments: Sequence[str]) -> int:
    """Run one action; returns its exit status."""
    name = arguments[0] if arguments else ""
    operator = "matmul"
    if name == "explain-miss" and len(arguments) > 1 and arguments[1] in OPERATORS:
        operator, arguments = arguments[1], [name, *arguments[2:]]
    known = actions(operator)
    if name in known:
        parser, run = known[name].parser(name)
        return run(parser.parse_args(arguments[1:]))
    lines = "\n".join(f"  {action:13} {made.purpose}" for action, made in known.items())
    usage = "usage: taskmap cache ACTION [...]"
    if name in ("-h", "--help"):
        print(f"{usage}\n\nTuning records and compiled kernels.\n\nactions:\n{lines}")
        print("\nexample: taskmap cache list")
        return 0
    if not name:
        print(f"{usage}\nactions:\n{lines}", file=sys.stderr)
        return 2
    hint = nearest(name, known) or f"actions are {', '.join(known)}"
    return refused("taskmap cache", f"unknown action {name!r}", hint, arguments)


@dataclass(frozen=True, slots=True)
class Named:
    """An action: ``make`` adds its options to a parser and returns the function that runs it."""

    make: Make
    purpose: str
    example: str

    def parser(self, name: str) -> tuple[argparse.ArgumentParser, Action]:
        """The action's parser, and the function that runs it."""
        parser = command(f"cache {name}", f"{self.purpose[0].upper()}{self.purpose[1:]}.", self.example)
        run = self.make(parser)
        cache_dir_option(parser)
        return parser, run


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each action."""
    return {name: action.parser(name)[0] for name, action in actions().items()}


def actions(operator: str = "matmul") -> dict[str, Named]:
    """All actions by name; ``operator`` is the operator of explain-miss."""
    found: dict[str, tuple[Make, str, str]] = {
        "list": (_list, "the records, filtered and sorted", "taskmap cache list --shapes 1x128x768x768 --sort time"),
        "show": (
            _show,
            "the space of one operator: a table, and its distribution",
            "taskmap cache show --shapes 1x128x768x768",
        ),
        "best": (_best, "the configuration that compilations use here", "taskmap cache best --shapes 1x128x768x768"),
        "tune": (_tune, "measure recorded operators again, here", "taskmap cache tune --shapes 1x128x768x768 --all"),
        "export": (_export, "write records as JSON lines", "taskmap cache export -o records.jsonl"),
        "import": (_import, "add records from JSON lines", "taskmap cache import records.jsonl"),
        "merge": (_merge, "add the records of other databases or files", "taskmap cache merge other/tuning.sqlite"),
        "diff": (_diff, "compare this cache with another, or two others", "taskmap cache diff records.jsonl"),
        "explain-miss": (
            partial(_miss, operator=operator),
            "explain why no record of an operator is valid here",
            "taskmap cache explain-miss matmul --m 128 --n 768 --k 768",
        ),
        "verify": (_verify, "check every record, and measure some again", "taskmap cache verify --measure 3"),
        "prune": (_prune, "remove records by age, number or target", "taskmap cache prune --older 90 --dry-run"),
        "stats": (_stats, "show numbers and sizes", "taskmap cache stats --kernels"),
        "clear": (_clear, "remove everything", "taskmap cache clear --yes"),
        "path": (_path, "show the cache's path", "taskmap cache path"),
    }
    return {name: Named(*parts) for name, parts in found.items()}


def selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select records."""
    parser.add_argument("--name", help="the template's name or part of it, such as matmul")
    parser.add_argument("--shapes", help="shapes of the operator, as listed; * matches anything")
    parser.add_argument("--dtypes", help="types of the operator, as listed")
    parser.add_argument("--layout", help="layout of the operator, as listed")
    parser.add_argument("--target", help="the target or part of it, such as avx512")
    parser.add_argument(
        "--verdict", choices=["ok", "wrong", "crashed", "hung", "refused"], help="the verdict on the configuration"
    )
    parser.add_argument(
        "--stale",
        action=argparse.BooleanOptionalAction,
        help="only records that are not valid here, or only valid ones",
    )


def _kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", action="store_true", help="act on compiled kernels instead")


def _list(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    _kernels(parser)
    parser.add_argument("--sort", choices=["operator", "time", "date", "size"], default="operator")
    parser.add_argument("--limit", type=positive, help="show at most this many")
    return lambda a: cache_kernels.show(a) if a.kernels else cache_records.list_records(a)


def _show(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    parser.add_argument("--limit", type=positive, default=20, help="rows of the table (20)")
    return cache_records.show


def _best(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    return cache_records.best


def _tune(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    parser.add_argument("--seconds", type=seconds, default=60.0, help="seconds per operator (60)")
    parser.add_argument("--all", action="store_true", help="the whole space instead of the first few")
    return cache_records.tune_again


def _export(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    parser.add_argument("-o", "--output", type=Path, help="the file to write, atomically (default: standard output)")
    return cache_share.export_records


def _import(parser: argparse.ArgumentParser) -> Action:
    parser.add_argument("files", nargs="+", type=Path, help="files of JSON lines; - is standard input")
    return cache_share.import_records


def _merge(parser: argparse.ArgumentParser) -> Action:
    parser.add_argument("files", nargs="+", type=Path, help="databases (tuning.sqlite) or files of JSON lines")
    return cache_share.import_records


def _diff(parser: argparse.ArgumentParser) -> Action:
    parser.add_argument("files", nargs="+", type=Path, help="one collection to compare with this cache, or two")
    return cache_share.diff


def _miss(parser: argparse.ArgumentParser, operator: str) -> Action:
    parser.set_defaults(operator=operator)
    parser.epilog = f"operators: {', '.join(OPERATORS)}, given first (matmul)\n{parser.epilog}"
    OPERATORS[operator].options(parser)
    machine(parser)
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu", help="the device it would run on (cpu)")
    return cache_records.explain_miss


def _verify(parser: argparse.ArgumentParser) -> Action:
    _kernels(parser)
    parser.add_argument("--measure", type=positive, help="measure this many of the valid records again")
    return lambda a: cache_kernels.verify(a) if a.kernels else cache_care.verify(a)


def _prune(parser: argparse.ArgumentParser) -> Action:
    selection(parser)
    _kernels(parser)
    parser.add_argument("--older", type=seconds, metavar="DAYS", help="those measured, or last used, longer ago")
    parser.add_argument("--max-records", type=positive, help="the oldest beyond this number")
    parser.add_argument(
        "--max-size", type=bytes_of, help="with --kernels: the least recently used beyond this size (500M)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    return lambda a: cache_kernels.prune(a) if a.kernels else cache_care.prune(a)


def _stats(parser: argparse.ArgumentParser) -> Action:
    _kernels(parser)
    return lambda a: cache_kernels.stats(a) if a.kernels else cache_care.stats(a)


def _clear(parser: argparse.ArgumentParser) -> Action:
    _kernels(parser)
    parser.add_argument("--yes", action="store_true", help="really")
    return lambda a: cache_kernels.clear(a) if a.kernels else cache_care.clear(a)


def _path(parser: argparse.ArgumentParser) -> Action:
    _kernels(parser)
    return cache_care.path
