"""`taskmap completion SHELL`: a script that completes commands, actions, options and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from taskmap.cli import compile as compiling
from taskmap.cli import env, explain
from taskmap.cli.cache import command as cache
from taskmap.cli.completion_shells import SHELLS, CommandNode, Value
from taskmap.cli.output import command, print_json
from taskmap.cli.run import command as run
from taskmap.cli.tune import command as tune


def main(arguments: Sequence[str]) -> int:
    """Print the script."""
    a = parser().parse_args(arguments)
    script = SHELLS[a.shell](tree())
    if a.json:
        print_json({"shell": a.shell, "script": script})
    else:
        print(script)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap completion`."""
    p = command(
        "completion",
        "Print a script that completes commands, actions, options and their values.\n\n"
        '  bash  add to ~/.bashrc:  eval "$(taskmap completion bash)"\n'
        '  zsh   add to ~/.zshrc, after compinit:  eval "$(taskmap completion zsh)"\n'
        "  fish  once:  taskmap completion fish > ~/.config/fish/completions/taskmap.fish",
        "taskmap completion bash",
    )
    p.add_argument("shell", choices=tuple(SHELLS), help="which")
    return p


def tree() -> dict[str, CommandNode]:
    """The completions: for each command, its actions or operators and their options."""
    plain = {
        "run": run.parser(),
        "compile": compiling.parser(),
        "explain": explain.parser(),
        "env": env.parser(),
        "completion": parser(),
    }
    found = {name: _node(p) for name, p in plain.items()}
    found["completion"] = CommandNode(found["completion"].options, {shell: CommandNode({}, {}) for shell in SHELLS})
    found["cache"] = CommandNode({}, _nodes(cache.parsers()))
    operators = dict(tune.parsers())
    found["tune"] = CommandNode(_node(operators.pop("")).options, _nodes(operators), files=True)
    return found


def _nodes(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, CommandNode]:
    return {name: _node(p) for name, p in parsers.items()}


def _node(p: argparse.ArgumentParser) -> CommandNode:
    options: dict[str, Value] = {}
    files = False
    for action in p._actions:
        choices = tuple(str(choice) for choice in action.choices or ())
        takes = action.nargs != 0
        for option in action.option_strings:
            options[option] = Value(takes, choices, (action.help or "").partition(";")[0])
        files = files or not action.option_strings
    return CommandNode(options, {}, files)
