"""Tensors of strings at run time: each string is held as a number.

Equal strings have equal numbers, so operators that only move or compare elements are compiled as for integers; the
others run on the host, with strings. The empty string is 0, which is also what padding writes. The numbers of a model's
own strings stay; those of other strings are given up between calls once there are many, and never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST = 1 << 16
"""The number of strings, beyond those of models, that are remembered from call to call."""


class StringTable:
    """Numbers for strings. Threads may use it at once."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._numbers: dict[str, int] = {"": 0}
        self._texts: dict[int, str] = {0: ""}
        self._kept: set[int] = {0}
        self._next = 1
        self._calls = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Array, *, keep: bool = False) -> Array:
        """The numbers of an array of strings, in its shape; ``keep``: they belong to a model."""
        found = np.empty(texts.shape, np.int64)
        flat = found.reshape(-1)
        with self._lock:
            for place, text in enumerate(texts.reshape(-1).tolist()):
                flat[place] = self._number(text.decode() if isinstance(text, bytes) else str(text))
            if keep:
                self._kept.update(flat.tolist())
        return found

    def _number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._next
            self._next += 1
            self._numbers[text], self._texts[found] = found, text
        return found

    def texts(self, numbers: Array) -> Array:
        """The strings that ``numbers`` stand for, as objects, in their shape."""
        found = np.empty(numbers.shape, object)
        flat = found.reshape(-1)
        for place, number in enumerate(numbers.reshape(-1).tolist()):
            flat[place] = self._texts[number]
        return found

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this lasts no number is given up."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls and len(self._numbers) - len(self._kept) > self._most:
                    self._texts = {n: self._texts[n] for n in self._kept}
                    self._numbers = {text: n for n, text in self._texts.items()}


STRINGS = StringTable()
"""The table of this process."""
