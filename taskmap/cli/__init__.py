"""The command `taskmap`: one file for each command, loaded when it is asked for.

Exit status: 0 done; 1 done, and the answer is no (not found, different, damaged, not equal); 2 not understood, or
impossible; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import taskmap
from taskmap.cli.interrupts import noticed
from taskmap.cli.output import Help, plain_lines, status_text
from taskmap.cli.parser import Parser, error_of, wants_json
from taskmap.ir.errors import TaskmapError
from taskmap.util.progress import progress_in_lines, waits_shown

COMMANDS = {
    "run": "run an ONNX model or an archive: time it, compare it, profile it, tune it",
    "compile": "compile an ONNX model into an archive that runs without compiling",
    "explain": "what taskmap makes of an ONNX model, kernel by kernel",
    "tune": "measure configurations of an operator, an ONNX model or a PyTorch function, and remember the best",
    "cache": "list, show, share and care for what tuning has found, and for compiled kernels",
    "env": "what this machine offers, and what is missing",
    "completion": "a script by which bash, zsh or fish complete commands and options",
}
_HOME = {"cache": "cache.command", "run": "run.command", "tune": "tune.command"}
"""Commands of several files: the one that holds `main`."""
INTERRUPTED = 130
_EXAMPLES = """\
examples:
  taskmap env                                              is everything here?
  taskmap run model.onnx --compare onnxruntime             run a model, and check it
  taskmap explain model.onnx                               what became of it, as a page
  taskmap compile model.onnx -o model.taskmap              compile once, run anywhere alike
  taskmap tune model.onnx --seconds 120                    find faster configurations for this machine

In Python: torch.compile(model, backend="taskmap")"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    parser = Parser(
        prog="taskmap",
        description="A tensor compiler built on task mappings: it compiles models for this machine and runs them.",
        epilog=f"{_EXAMPLES}\n\ntaskmap COMMAND --help says more about each.\n{status_text('the answer is no')}",
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"taskmap {taskmap.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="taskmap")
    for name, purpose in COMMANDS.items():
        # What follows is the command's own affair, --help included.
        command = commands.add_parser(name, help=purpose, add_help=False, prefix_chars="\0")
        command.add_argument("rest", nargs=argparse.REMAINDER)
    known = parser.parse_args(arguments)
    if known.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        with noticed() as interrupted, progress_in_lines(), waits_shown(not wants_json(known.rest)):
            status = int(import_module(f"taskmap.cli.{_HOME.get(known.command, known.command)}").main(known.rest))
            if interrupted():
                raise KeyboardInterrupt
            return status
    except TaskmapError as error:
        if wants_json(known.rest):
            print(error_of(error))
        else:
            print(plain_lines(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("taskmap: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output wants no more of it; Python must not complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
