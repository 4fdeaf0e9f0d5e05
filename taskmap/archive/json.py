"""Checked reading of untrusted JSON: every value has the requested type, or is refused with its path."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from taskmap.archive.sizes import LARGEST

T = TypeVar("T")
_LONGEST = 4096
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Json:
    """A value and its path in the document. Methods raise ValueError for a value of another type."""

    value: Any
    path: str = "the manifest"

    def field(self, name: str) -> Json:
        """The field ``name`` of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        found = self.value.get(name, _MISSING)
        if found is _MISSING:
            raise ValueError(f"{self.path} has no {name}.")
        return Json(found, f"{self.path}.{name}")

    def has(self, name: str) -> bool:
        """True if this is an object with the field ``name``."""
        return isinstance(self.value, dict) and name in self.value

    def items(self, most: int = 1 << 22) -> list[Json]:
        """The items of a list."""
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.wrong("a list")
        return [Json(v, f"{self.path}[{i}]") for i, v in enumerate(self.value)]

    def each(self, read: Callable[[Json], T]) -> tuple[T, ...]:
        """The items of a list, each converted by ``read``."""
        return tuple(read(item) for item in self.items())

    def text(self) -> str:
        """A text of moderate length."""
        if not isinstance(self.value, str) or len(self.value) > _LONGEST or _lone(self.value):
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        """True or False."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def number(self, low: int = 0, high: int = LARGEST) -> int:
        """A whole number from ``low`` to below ``high``."""
        if type(self.value) is not int or not low <= self.value < high:
            raise self.wrong(f"a whole number from {low} to below {high}")
        return self.value

    def one_of(self, choices: Sequence[str]) -> str:
        """One of some texts."""
        if not isinstance(self.value, str) or self.value not in choices:
            raise self.wrong(f"one of {', '.join(choices)}")
        return self.value

    def wrong(self, wanted: str) -> ValueError:
        """The refusal of this value."""
        return ValueError(f"{self.path} is not {wanted}.")


def parsed(text: bytes) -> Json:
    """A document. Raises ValueError for invalid JSON, and for an object with a repeated field."""
    try:
        return Json(json.loads(text, object_pairs_hook=_once))
    except RecursionError as error:
        raise ValueError("the manifest is nested too deep.") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object of the manifest has a field twice.")
    return found


def _lone(text: str) -> bool:
    """True if a text holds an unpaired surrogate, which cannot be printed."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)
