"""The command `taskmap`: one file or folder per command, loaded on use.

Exit status: 0 success; 1 done, and the answer is no (not found, different, damaged, not equal); 2 invalid usage or
impossible; 130 interrupted.

Reading order: this file (finds the command), then

    parser, options, shapes, targets    parsers, and options shared by commands
    output, plot                        tables, JSON, colours, progress bars, histograms
    loading, interrupts, model_files    slow imports, Ctrl-C, missing files
    operators                           operators named on the command line
    run/                                ONNX models and archives
    compile                             archives
    explain, explain_onnx               reports
    tune/                               tuning
    cache/                              records and compiled kernels
    env                                 this machine
    completion, completion_shells       completion scripts

It imports everything; nothing imports it.
"""

from __future__ import annotations

import argparse
import errno
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
    "explain": "show how an ONNX model is compiled, kernel by kernel",
    "tune": "measure configurations of an operator, an ONNX model or a PyTorch function, and remember the best",
    "cache": "list, show, share and maintain tuning records and compiled kernels",
    "env": "show what this machine provides, and what is missing",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
}
_HOME = {"cache": "cache.command", "run": "run.command", "tune": "tune.command"}
"""Commands in several files: the module that holds `main`."""
INTERRUPTED = 130
_EXAMPLES = """\
examples:
  taskmap env                                              check the installation
  taskmap run model.onnx --compare onnxruntime             run a model, and check it
  taskmap explain model.onnx                               show how it was compiled, as a page
  taskmap compile model.onnx -o model.taskmap              compile once, run on similar machines
  taskmap tune model.onnx --seconds 120                    find faster configurations for this machine

In Python: torch.compile(model, backend="taskmap")"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    if sys.stdout is None:  # the caller has closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    parser = Parser(
        prog="taskmap",
        description="A tensor compiler built on task mappings: it compiles models for this machine and runs them.",
        epilog=f"{_EXAMPLES}\n\ntaskmap COMMAND --help shows a command's options.\n{status_text('the answer is no')}",
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"taskmap {taskmap.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="taskmap")
    for name, purpose in COMMANDS.items():
        # The command handles the rest, --help included.
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
            sys.stdout.flush()  # failures are noticed here, not when Python exits
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
        _drop_output()  # the reader has closed the pipe
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        _drop_output()
        print(f"taskmap: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2


def _drop_output() -> None:
    """Python must not complain when it flushes the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
