"""The canonical text of configurations, in tuning databases, notes and messages, with one reader for all classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

C = TypeVar("C")
_FIELD = re.compile(r"\{([\w.]+):([\w|]+)\}")


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
        return _FIELD.sub(lambda found: str(attrgetter(found[1])(config)), self.pattern)

    def read(self, text: str) -> C | None:
        """The configuration whose text this is; None where there is none."""
        names, regex = _reader(self.pattern)
        found = regex.fullmatch(text)
        if found is None:
            return None
        values: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {name: {} for name in self.parts}
        for name, word in zip(names, found.groups(), strict=True):
            outer, _, own = name.rpartition(".")
            (inner[outer] if outer else values)[own] = int(word) if word.isdigit() else word
        values.update({name: self.parts[name](**given) for name, given in inner.items()})
        config = self.kind(**values)
        return config if self.write(config) == text else None


@lru_cache(maxsize=32)
def _reader(pattern: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """The names of a pattern's fields in order, and an expression with a group for each."""
    names: list[str] = []
    regex, end = "", 0
    for found in _FIELD.finditer(pattern):
        names.append(found[1])
        word = rf"[0-9]{{1,{found[2]}}}" if found[2].isdigit() else found[2]
        regex += f"{re.escape(pattern[end : found.start()])}({word})"
        end = found.end()
    return tuple(names), re.compile(regex + re.escape(pattern[end:]))
