"""The scopes of a script: its own names, block by block, then the enclosing Python scopes, then builtins."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Names:
    """A name is bound once, lives to the end of its block, and is not visible in sibling blocks."""

    def __init__(self, outside: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        self.outside = outside
        self.blocks: list[dict[str, Any]] = [dict(parameters)]
        self.ended: dict[str, int] = {}
        self.line: dict[str, int] = {}

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block: names bound in it end with it."""
        self.blocks.append({})
        try:
            yield
        finally:
            for name in self.blocks.pop():
                self.ended[name] = self.line.get(name, 0)

    def bound(self, name: str) -> bool:
        """True if the script itself has bound ``name`` in a block that is still open."""
        return any(name in block for block in self.blocks)

    def bind(self, name: str, value: Any, line: int) -> None:
        """Bind a name in the innermost block."""
        self.blocks[-1][name] = value
        self.line[name] = line

    def look_up(self, name: str) -> Any:
        """The value of a name. Raises KeyError for an unknown one."""
        for block in reversed(self.blocks):
            if name in block:
                return block[name]
        if name in self.outside:
            return self.outside[name]
        return vars(builtins)[name]


def surroundings(function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> dict[str, Any]:
    """The names a function sees from outside: globals, the locals of the frame that decorates it, its closure.

    The frame is needed because a name that only an annotation uses is not part of the closure.
    """
    code = function.__code__
    closure = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {**function.__globals__, **frame_locals, **closure}
