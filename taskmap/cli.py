"""The command `taskmap`."""

import argparse
import sys
from collections.abc import Sequence

import taskmap

COMING = {
    "run": "run an ONNX model",
    "cache": "list, show, tune, export and merge the operator-level tuning cache",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0 done, 2 not understood or not there yet."""
    parser = argparse.ArgumentParser(prog="taskmap", description="A tensor compiler built on task mappings.")
    parser.add_argument("--version", action="version", version=f"taskmap {taskmap.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, purpose in COMING.items():
        # It has no options of its own, not even --help, so that nothing that follows hides the message below.
        command = commands.add_parser(name, help=f"{purpose} (coming)", add_help=False, prefix_chars="\0")
        command.add_argument("rest", nargs="*")
    known = parser.parse_args(arguments)
    if known.command is None:
        parser.print_usage(sys.stderr)
        return 2
    print(
        f"taskmap {known.command}: coming, not in version {taskmap.__version__} ({COMING[known.command]}).\n"
        '  What works today: torch.compile(model, backend="taskmap").',
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
