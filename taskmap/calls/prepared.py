"""A compiled graph whose constants a second program prepares, once: values that depend on constants alone."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from threading import Lock
from typing import Any

from taskmap.calls.bound import AnyTensor
from taskmap.calls.graph import BoundGraph
from taskmap.util.metrics import COUNTERS


@dataclass(frozen=True, slots=True)
class Prepared:
    """The results of a preparation, and the addresses of the main program's constants."""

    values: tuple[AnyTensor, ...]
    constants: array[int]


class PreparedGraph:
    """A compiled graph with a prepare program, called as a BoundGraph is. The prepare program runs at the first call.

    ``watched``: positions of the arguments that the prepare program reads.
    """

    watched: tuple[int, ...] = ()

    def __init__(self, main: BoundGraph, prepare: BoundGraph) -> None:
        self.main, self.prepare = main, prepare
        self._lock = Lock()
        self._prepared: Prepared | None = None
        # Extern operators may address the storage of an argument.
        elsewhere = {v.slot - main.binding.inputs for e in main.binding.externs for v in e.reads}
        prepare.keep_together(set(range(len(prepare.binding.outputs))) - elsewhere)

    def __call__(self, args: list[Any]) -> list[Any]:
        """The graph's outputs for ``args``."""
        COUNTERS.count_call()
        return self._main(self._prepared or self._prepare(args), args)

    @property
    def prepared(self) -> Prepared | None:
        """The results of the last preparation."""
        return self._prepared

    def _prepare(self, args: list[Any]) -> Prepared:
        with self._lock:
            if self._prepared is None:
                self._prepared = Prepared(*self._computed(args))
                self._free()
            return self._prepared

    def _computed(self, args: list[Any]) -> tuple[tuple[AnyTensor, ...], array[int]]:
        """The results of the prepare program, and the addresses of the main program's constants."""
        values = self._kept(tuple(self.prepare.run([*args, *self.prepare.tail], self.prepare.constants)), args)
        binding = self.main.binding
        by_slot = {**self.main.fixed, **dict(enumerate(values, binding.inputs))}
        return values, array("q", [self.main.address(by_slot[slot]) for slot in binding.constants])

    def _kept(self, values: tuple[AnyTensor, ...], args: list[Any]) -> tuple[AnyTensor, ...]:
        """The results to keep for new ones."""
        return values

    def _free(self) -> None:
        """Free the memory that only a preparation needs."""
        self.prepare.executable.release()
        self.prepare.kept.clear()
        COUNTERS.add("constants_prepared")

    def _main(self, prepared: Prepared, args: list[Any]) -> list[Any]:
        binding = self.main.binding
        values = [*args, *self.main.tail]
        args.clear()
        values[binding.inputs : binding.inputs + len(prepared.values)] = prepared.values
        return self.main.run(values, prepared.constants)


Called = BoundGraph | PreparedGraph
"""A compiled graph, ready to be called."""
