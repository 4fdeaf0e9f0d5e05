"""The canonical text of configurations, in tuning databases, notes and messages, with one reader for all classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from string import Formatter
from typing import Any, Generic, TypeVar

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class ConfigText(Generic[C]):
    """The text of the frozen dataclass ``kind``, both written and read by ``pattern``.

    A field stands in braces with its greatest number of digits, or with the words that it may be; ``parts`` gives the
    class of a field whose own fields are named:

        ConfigText(MatmulConfig, "tile={tile.rows:4}x{tile.vectors:4}v, rows={rows:9}", {"tile": Tile})
    """

    kind: type[C]
    pattern: str
    parts: Mapping[str, type] = field(default_factory=dict)

    def write(self, config: C) -> str:
        """The text of ``config``. Equal configurations have equal texts, different ones different texts."""
        first, fields = _parsed(self.pattern)
        return first + "".join(f"{attrgetter(f.name)(config)}{f.end}" for f in fields)

    def read(self, text: str) -> C | None:
        """The configuration whose text this is; None where there is none."""
        first, fields = _parsed(self.pattern)
        if not text.startswith(first):
            return None
        values: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {name: {} for name in self.parts}
        rest = text[len(first) :]
        for f in fields:
            word, _, rest = rest.partition(f.end) if f.end else (rest, "", "")
            value = f.value(word)
            if value is None:
                return None
            outer, _, own = f.name.rpartition(".")
            (inner[outer] if outer else values)[own] = value
        values.update({name: self.parts[name](**given) for name, given in inner.items()})
        config = self.kind(**values)
        return config if self.write(config) == text else None


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a pattern and the literal text after it. form: the greatest number of digits, or words."""

    name: str
    form: str
    end: str

    def value(self, word: str) -> int | str | None:
        """The value that ``word`` stands for; None if it is none of the field's."""
        if not self.form.isdigit():
            return word if word in self.form.split("|") else None
        return int(word) if word.isascii() and word.isdigit() and len(word) <= int(self.form) else None


@lru_cache(maxsize=32)
def _parsed(pattern: str) -> tuple[str, tuple[_Field, ...]]:
    """The literal text before the first field of a pattern, and its fields."""
    pieces = list(Formatter().parse(pattern))
    ends = [literal for literal, *_ in pieces[1:]] + [""]
    fields = [_Field(name, form or "", end) for (_, name, form, _), end in zip(pieces, ends, strict=True) if name]
    return pieces[0][0], tuple(fields)
