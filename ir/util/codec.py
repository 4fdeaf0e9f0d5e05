"""JSON codecs: one description of a value writes it, and validates what someone else wrote.

PORT = record(Port, name=TEXT, shape=optional(many(whole())))
PORT.write(Port("x", (1, 8)))               {"name": "x", "shape": [1, 8]}
PORT.read(Json(document, "the manifest"))   the port, or: the manifest.shape[1] is not a whole number from 0 to ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

T = TypeVar("T")
LARGEST = 1 << 62
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

    def several(self, count: int) -> list[Json]:
        """The items of a list of ``count``."""
        items = self.items()
        if len(items) != count:
            raise self.wrong(f"a list of {count}")
        return items

    def each(self, read: Callable[[Json], T]) -> tuple[T, ...]:
        """The items of a list, each converted by ``read``."""
        return tuple(read(item) for item in self.items())

    def text(self, longest: int = _LONGEST) -> str:
        """A text of at most ``longest`` characters."""
        if not isinstance(self.value, str) or len(self.value) > longest or _lone(self.value):
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


def parsed(text: str | bytes, path: str = "the manifest") -> Json:
    """A document. Raises ValueError for invalid JSON, and for an object with a repeated field."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError(f"an object of {path} has a field twice.")
        return found

    try:
        return Json(json.loads(text, object_pairs_hook=once), path)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep.") from error


def _lone(text: str) -> bool:
    """True if a text holds an unpaired surrogate, which cannot be printed."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """The JSON form of a value: writes it, and reads it back with validation.

    name: of the field of a record that holds it, where JSON calls it otherwise. default: value that a record leaves
    out.
    """

    write: Callable[[T], Any]
    read: Callable[[Json], T]
    name: str = ""
    default: Any = _MISSING

    def of(self, name: str) -> Codec[T]:
        """The same for the field ``name`` of a record."""
        return replace(self, name=name)

    def omitted(self, default: T) -> Codec[T]:
        """The same for a field of a record that is left out where it is ``default``."""
        return replace(self, default=default)

    def checked(self, check: Callable[[T, Json], None]) -> Codec[T]:
        """The same, with a check of what was read, which raises ValueError."""

        def read(j: Json) -> T:
            value = self.read(j)
            check(value, j)
            return value

        return replace(self, read=read)

    def where(self, holds: Callable[[T], bool], wanted: str, at: str = "") -> Codec[T]:
        """The same for values that satisfy ``holds``. Others are refused: they, or their field ``at``, are not
        ``wanted``."""

        def check(value: T, j: Json) -> None:
            if not holds(value):
                raise (j.field(at) if at else j).wrong(wanted)

        return self.checked(check)


def text(longest: int = _LONGEST) -> Codec[str]:
    """A text of at most ``longest`` characters."""
    return Codec(_itself, lambda j: j.text(longest))


def whole(low: int = 0, high: int = LARGEST) -> Codec[int]:
    """A whole number from ``low`` to below ``high``."""
    return Codec(_itself, lambda j: j.number(low, high))


def real(low: float, high: float) -> Codec[float]:
    """A number from ``low`` to ``high``."""

    def read(j: Json) -> float:
        if type(j.value) not in (int, float) or not low <= j.value <= high:
            raise j.wrong(f"a number between {low:g} and {high:g}")
        return float(j.value)

    return Codec(_itself, read)


def one_of(choices: Sequence[str]) -> Codec[str]:
    """One of some texts."""
    return Codec(_itself, lambda j: j.one_of(choices))


def matching(pattern: re.Pattern[str], wanted: str) -> Codec[str]:
    """A text that ``pattern`` describes as a whole."""
    return text().where(lambda value: pattern.fullmatch(value) is not None, wanted)


def many(item: Codec[T]) -> Codec[tuple[T, ...]]:
    """A list of any length."""
    write = list if item.write is _itself else lambda values: [item.write(v) for v in values]
    return Codec(write, lambda j: j.each(item.read))


def mapping(item: Codec[T]) -> Codec[dict[str, T]]:
    """An object with any fields."""

    def read(j: Json) -> dict[str, T]:
        if not isinstance(j.value, dict):
            raise j.wrong("an object")
        return {name: item.read(j.field(name)) for name in j.value}

    return Codec(lambda values: {name: item.write(v) for name, v in values.items()}, read)


def optional(codec: Codec[T]) -> Codec[T | None]:
    """A value or null."""
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda j: None if j.value is None else codec.read(j),
    )


def row(*parts: Codec[Any]) -> Codec[tuple[Any, ...]]:
    """A list of as many values as there are parts."""

    def read(j: Json) -> tuple[Any, ...]:
        return tuple(part.read(item) for part, item in zip(parts, j.several(len(parts)), strict=True))

    return Codec(lambda values: [p.write(v) for p, v in zip(parts, values, strict=True)], read)


def record(make: Callable[..., T], **parts: Codec[Any]) -> Codec[T]:
    """An object with these fields; ``make`` takes what they hold by the names of its own fields.

    A ValueError of ``make`` names the object.
    """
    fields = {key: replace(part, name=part.name or key) for key, part in parts.items()}

    def write(value: T) -> dict[str, Any]:
        held = {key: (part, getattr(value, part.name)) for key, part in fields.items()}
        return {key: p.write(v) for key, (p, v) in held.items() if p.default is _MISSING or v != p.default}

    def read(j: Json) -> T:
        given = {
            part.name: part.read(j.field(key)) if part.default is _MISSING or j.has(key) else part.default
            for key, part in fields.items()
        }
        try:
            return make(**given)
        except ValueError as error:
            raise ValueError(f"{j.path}: {error}") from error

    return Codec(write, read)


def _itself(value: Any) -> Any:
    return value


TEXT = text()
FLAG: Codec[bool] = Codec(_itself, Json.flag)
