"""`taskmap cache`: tuning records of this machine, and compiled kernels. ``ACTIONS`` is the table of its actions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taskmap.cli.cache import kernels, maintain, records, share
from taskmap.cli.operators import OPERATORS, machine
from taskmap.cli.options import cache_dir_option
from taskmap.cli.output import bytes_of, command, positive, seconds
from taskmap.cli.parser import nearest, refused

Action = Callable[[argparse.Namespace], int]
Option = Callable[[argparse.ArgumentParser], object]
"""Adds itself to a parser."""


def main(arguments: Sequence[str]) -> int:
    """Run one action; returns its exit status."""
    name = arguments[0] if arguments else ""
    operator = "matmul"
    if name == "explain-miss" and len(arguments) > 1 and arguments[1] in OPERATORS:
        operator, arguments = arguments[1], [name, *arguments[2:]]
    known = actions(operator)
    if name in known:
        parsed = known[name].parser(name).parse_args(arguments[1:])
        return known[name].run(parsed)
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
    """An action on records, and on compiled kernels where it has ``--kernels``."""

    purpose: str
    example: str
    on_records: Action
    options: tuple[Option, ...]
    on_kernels: Action | None = None

    def parser(self, name: str) -> argparse.ArgumentParser:
        """The action's parser."""
        parser = command(f"cache {name}", f"{self.purpose[0].upper()}{self.purpose[1:]}.", self.example)
        for add in (*self.options, cache_dir_option):
            add(parser)
        return parser

    def run(self, a: argparse.Namespace) -> int:
        """Run the action; returns its exit status."""
        return self.on_records(a) if self.on_kernels is None or not a.kernels else self.on_kernels(a)


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each action."""
    return {name: action.parser(name) for name, action in actions().items()}


def actions(operator: str = "matmul") -> dict[str, Named]:
    """All actions by name; ``operator`` is the operator of explain-miss."""

    def describe(parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(operator=operator)
        parser.epilog = f"operators: {', '.join(OPERATORS)}, given first (matmul)\n{parser.epilog}"
        OPERATORS[operator].options(parser)
        machine(parser)

    miss = ACTIONS["explain-miss"]
    return {**ACTIONS, "explain-miss": replace(miss, options=(describe, *miss.options))}


def option(*names: str, **settings: Any) -> Option:
    """An option with the settings of ``argparse``."""
    return lambda parser: parser.add_argument(*names, **settings)


def flag(name: str, text: str) -> Option:
    """An option that takes no value."""
    return option(name, action="store_true", help=text)


SELECTION = (
    option("--name", help="the template's name or part of it, such as matmul"),
    option("--shapes", help="shapes of the operator, as listed; * matches anything"),
    option("--dtypes", help="types of the operator, as listed"),
    option("--layout", help="layout of the operator, as listed"),
    option("--target", help="the target or part of it, such as avx512"),
    option("--verdict", choices=["ok", "wrong", "crashed", "hung", "refused"], help="the verdict on the configuration"),
    option(
        "--stale",
        action=argparse.BooleanOptionalAction,
        help="only records that are not valid here, or only valid ones",
    ),
)
"""Options that select records."""
KERNELS = flag("--kernels", "act on compiled kernels instead")


def files(text: str) -> Option:
    """The files that an action reads."""
    return option("files", nargs="+", type=Path, help=text)


ACTIONS = {
    "list": Named(
        "the records, filtered and sorted", "taskmap cache list --shapes 1x128x768x768 --sort time",
        records.list_records,
        (*SELECTION, KERNELS, option("--sort", choices=["operator", "time", "date", "size"], default="operator"),
         option("--limit", type=positive, help="show at most this many")),
        kernels.show,
    ),
    "show": Named(
        "the space of one operator: a table, and its distribution", "taskmap cache show --shapes 1x128x768x768",
        records.show, (*SELECTION, option("--limit", type=positive, default=20, help="rows of the table (20)")),
    ),
    "best": Named(
        "the configuration that compilations use here", "taskmap cache best --shapes 1x128x768x768",
        records.best, SELECTION,
    ),
    "tune": Named(
        "measure recorded operators again, here", "taskmap cache tune --shapes 1x128x768x768 --all",
        records.tune_again,
        (*SELECTION, option("--seconds", type=seconds, default=60.0, help="seconds per operator (60)"),
         flag("--all", "the whole space instead of the first few")),
    ),
    "export": Named(
        "write records as JSON lines", "taskmap cache export -o records.jsonl", share.export_records,
        (*SELECTION,
         option("-o", "--output", type=Path, help="the file to write, atomically (default: standard output)")),
    ),
    "import": Named(
        "add records from JSON lines", "taskmap cache import records.jsonl", share.import_records,
        (files("files of JSON lines; - is standard input"),),
    ),
    "merge": Named(
        "add the records of other databases or files", "taskmap cache merge other/tuning.sqlite",
        share.import_records, (files("databases (tuning.sqlite) or files of JSON lines"),),
    ),
    "diff": Named(
        "compare this cache with another, or two others", "taskmap cache diff records.jsonl", share.diff,
        (files("one collection to compare with this cache, or two"),),
    ),
    "explain-miss": Named(
        "explain why no record of an operator is valid here",
        "taskmap cache explain-miss matmul --m 128 --n 768 --k 768", records.explain_miss,
        (option("--target", choices=["cpu", "cuda"], default="cpu", help="the device it would run on (cpu)"),),
    ),
    "verify": Named(
        "check every record, and measure some again", "taskmap cache verify --measure 3", maintain.verify,
        (KERNELS, option("--measure", type=positive, help="measure this many of the valid records again")),
        kernels.verify,
    ),
    "prune": Named(
        "remove records by age, number or target", "taskmap cache prune --older 90 --dry-run", maintain.prune,
        (*SELECTION, KERNELS,
         option("--older", type=seconds, metavar="DAYS", help="those measured, or last used, longer ago"),
         option("--max-records", type=positive, help="the oldest beyond this number"),
         option("--max-size", type=bytes_of,
                help="with --kernels: the least recently used beyond this size (500M)"),
         flag("--dry-run", "only show what would be removed")),
        kernels.prune,
    ),
    "stats": Named(
        "show numbers and sizes", "taskmap cache stats --kernels", maintain.stats, (KERNELS,), kernels.stats
    ),
    "clear": Named(
        "remove everything", "taskmap cache clear --yes", maintain.clear, (KERNELS, flag("--yes", "really")),
        kernels.clear,
    ),
    "path": Named("show the cache's path", "taskmap cache path", maintain.path, (KERNELS,)),
}  # fmt: skip
