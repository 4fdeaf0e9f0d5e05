"""Completion scripts for bash, zsh and fish, all generated from the same tree of commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """An option: whether it ``takes`` a value, and its ``choices``; without choices, the value may be a file."""

    takes: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class CommandNode:
    """A command or an action: its options, the words that may follow it, and whether a file may."""

    options: Mapping[str, Value]
    words: Mapping[str, CommandNode]
    files: bool = False


Tree = Mapping[str, CommandNode]


def bash(tree: Tree) -> str:
    """For bash 4 and newer, and zsh's bashcompinit."""
    lines = [
        "_taskmap() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" path="" word names="" values="" i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        '    word="${COMP_WORDS[i]}"',
        '    case "$path/$word" in',
        *(f"      {path}/{word}) path={path}/{word} ;;" for path, node in _paths(tree) for word in node.words),
        "    esac",
        "  done",
        '  case "$path $prev" in',
    ]
    for path, node in _paths(tree):
        for option, value in node.options.items():
            if value.choices:
                lines.append(f"    '{path} {option}') values={shlex.quote(' '.join(value.choices))} ;;")
            elif value.takes:
                lines.append(f"    '{path} {option}') COMPREPLY=($(compgen -f -- \"$cur\")); return ;;")
    lines += ["  esac", '  case "$path" in']
    for path, node in _paths(tree):
        names = " ".join([*node.words, *node.options])
        lines.append(f"    '{path}') names={shlex.quote(names)} ;;")
    lines += [
        "  esac",
        '  if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$cur")); return; fi',
        '  COMPREPLY=($(compgen -W "$names" -- "$cur"))',
        f'  case "$path" in {"|".join(_with_files(tree))})',
        '    if [[ "$cur" != -* ]]; then COMPREPLY+=($(compgen -f -- "$cur")); fi ;;',
        "  esac",
        "}",
        "complete -o filenames -F _taskmap taskmap",
    ]
    return "\n".join(lines)


def zsh(tree: Tree) -> str:
    """For zsh: one function for each path of words, using zsh's own _arguments."""
    lines = ["#compdef taskmap"]
    for path, node in _paths(tree):
        lines += [f"_taskmap{_name(path)}() {{", "  local context state state_descr line", "  typeset -A opt_args"]
        specs = [_zsh_option(option, value) for option, value in node.options.items()]
        if node.words:
            specs += ["'1: :->word'", "'*:: :->rest'"]
        elif node.files:
            specs.append("'*:file:_files'")
        lines.append("  _arguments " + " ".join(specs) if specs else "  _message 'nothing'")
        if node.words:
            shown = " ".join(shlex.quote(word) for word in node.words)
            files = "; _files" if node.files else ""
            lines += ["  case $state in", f"    word) compadd -- {shown}{files} ;;", "    rest) case $line[1] in"]
            lines += [f"      {word}) _taskmap{_name(f'{path}/{word}')} ;;" for word in node.words]
            lines += ["    esac ;;", "  esac"]
        lines.append("}")
    return "\n".join([*lines, "compdef _taskmap taskmap"])


def _zsh_option(option: str, value: Value) -> str:
    text = value.help.replace("[", "(").replace("]", ")").replace(":", " ")
    if not value.takes:
        return shlex.quote(f"{option}[{text}]")
    return shlex.quote(f"{option}[{text}]:value:" + (f"({' '.join(value.choices)})" if value.choices else "_files"))


def fish(tree: Tree) -> str:
    """For fish."""
    lines: list[str] = []
    for path, node in _paths(tree):
        words = path.split("/")[1:]
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words) or "__fish_use_subcommand"
        following = f"; and not __fish_seen_subcommand_from {' '.join(node.words)}" if node.words and words else ""
        files = "" if node.files else " -f"
        lines += [f"complete -c taskmap{files} -n {shlex.quote(seen + following)} -a {word}" for word in node.words]
        for option, value in node.options.items():
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            takes = f" -x -a {shlex.quote(' '.join(value.choices))}" if value.choices else " -r" if value.takes else ""
            lines.append(f"complete -c taskmap -n {shlex.quote(seen)} {name}{takes} -d {shlex.quote(value.help)}")
    return "\n".join(lines)


SHELLS: Mapping[str, Callable[[Tree], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _paths(tree: Tree) -> Iterator[tuple[str, CommandNode]]:
    """Every node with the words that lead to it, as /cache/list; the root is the empty path."""

    def below(path: str, node: CommandNode) -> Iterator[tuple[str, CommandNode]]:
        yield path, node
        for word, inner in node.words.items():
            yield from below(f"{path}/{word}", inner)

    yield from below("", CommandNode({"--help": Value(False, (), ""), "--version": Value(False, (), "")}, tree))


def _with_files(tree: Tree) -> list[str]:
    return [path for path, node in _paths(tree) if node.files]


def _name(path: str) -> str:
    return path.replace("/", "_").replace("-", "_")
