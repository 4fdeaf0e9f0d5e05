"""The parsers of the command line: a mistyped name is answered with the nearest valid one, as JSON if --json is
given."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from taskmap.ir.errors import TaskmapError
from taskmap.ir.source import SourceLocation

_CHOICE = re.compile(r"invalid choice: '?([^']*?)'? \(choose from (.*)\)", re.DOTALL)
NOT_UNDERSTOOD = 2


class Parser(argparse.ArgumentParser):
    """As argparse's parser; a refusal names the nearest option or choice, and is JSON with --json."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Report the error, and exit with status 2."""
        hint = self._hint(message)
        if wants_json(self._words):
            print(error_json("UsageError", what=message, hint=hint or None))
        else:
            self.print_usage(sys.stderr)
            print(f"{self.prog}: error: {message}{f'; {hint}' if hint else ''}", file=sys.stderr)
        raise SystemExit(NOT_UNDERSTOOD)

    def _hint(self, message: str) -> str:
        choice = _CHOICE.search(message)
        if choice is not None:
            return nearest(choice[1], re.findall(r"[\w.+-]+", choice[2]))
        if not message.startswith("unrecognized arguments"):
            return ""
        wrong = next((word for word in message.split()[2:] if word.startswith("--")), "")
        return nearest(wrong.partition("=")[0], self._option_string_actions)


def nearest(given: str, known: Iterable[str]) -> str:
    """A question that suggests the name in ``known`` most like ``given``; empty if there is none."""
    found = get_close_matches(given, list(known), n=1)
    return f"did you mean {found[0]!r}?" if given and found else ""


def refused(prog: str, message: str, hint: str, arguments: Sequence[str]) -> int:
    """Report an unknown name on the command line; returns the exit status."""
    if wants_json(arguments):
        print(error_json("UsageError", what=message, hint=hint))
    else:
        print(f"{prog}: {message}; {hint}", file=sys.stderr)
    return NOT_UNDERSTOOD


def wants_json(arguments: Sequence[str]) -> bool:
    """True if --json is among the words of a command line."""
    return "--json" in arguments


def error_of(error: TaskmapError) -> str:
    """A TaskmapError as a JSON document."""
    where = error.where.snippet() if isinstance(error.where, SourceLocation) else error.where
    return error_json(type(error).__name__, what=error.what, where=where, why=error.why, hint=error.hint)


def error_json(
    kind: str, *, what: str, where: str | None = None, why: str | None = None, hint: str | None = None
) -> str:
    """The JSON document printed instead of a result. kind: the error's class."""
    parts = {"kind": kind, "what": what, "where": where, "why": why, "hint": hint}
    return json.dumps({"error": parts}, indent=1)
