"""Frozen parameters: values that depend only on them are computed once, and again when one of them has changed."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from threading import Lock
from typing import Any

import torch

from taskmap.backend.program.binding import span
from taskmap.backend.program.watch import Watch, watch
from taskmap.compile.runtime import CompiledGraph
from taskmap.targets.streams import OnStream, refuse_capture
from taskmap.util.metrics import COUNTERS

_log = logging.getLogger(__name__)
_MUCH = 16 << 20
_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The results of a preparation and their inputs: address and version of each watched argument, and a memory watch.

    ready: an event that streams other than the preparing one wait for; None off GPUs. ``sources`` share the
    arguments' storages, so that no other tensor can get the same address meanwhile.
    """

    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    memory: Watch | None
    sources: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    constants: array[int]
    ready: OnStream | None


class FrozenGraph:
    """A compiled graph with a prepare program, called as AOTAutograd calls it; see CompiledGraph.

    ``watched``: positions of the arguments that the prepare program reads. Every call compares their addresses and
    version counters with those at the last preparation: an in-place update, load_state_dict or a new
    ``.data`` is noticed. Writes that change no version (into ``.data``, or by others that share the memory) are found
    by watching the memory. ``written`` is the address of that function (see backend/program/watch.py), or None if
    memory is not watched.
    """

    def __init__(
        self, main: CompiledGraph, prepare: CompiledGraph, watched: Sequence[int], written: int | None
    ) -> None:
        self._boxed_call = True  # on the instance, where wrappers of callables look for it
        self.main, self.prepare, self.watched = main, prepare, tuple(watched)
        self._written = written
        # The first is picked twice: an itemgetter of one item would not return a tuple.
        self._pick = itemgetter(*self.watched, *self.watched[:1]) if self.watched else _nothing
        self._lock = Lock()
        self._said = False
        self._prepared: _Prepared | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        """The graph's outputs for ``args``."""
        COUNTERS.count_call()
        prepared = self._prepared
        if prepared is None or self._changed(prepared, args):
            prepared = self._prepare(args)
        if prepared.ready is not None:
            prepared.ready.wait()
        binding = self.main.binding
        values = [*args, *self.main.tail]
        args.clear()
        values[binding.inputs : binding.inputs + len(prepared.values)] = prepared.values
        return self.main.run(values, prepared.constants)

    @property
    def prepared(self) -> _Prepared | None:
        """The results of the last preparation."""
        return self._prepared

    def _prepare(self, args: list[Any]) -> _Prepared:
        with self._lock:
            prepared = self._prepared
            if prepared is not None and not self._changed(prepared, args):
                return prepared  # another thread has done it meanwhile
            refuse_capture(self.main.device, "its constants are computed")
            self._prepared = None  # free the stale results before their successors are made
            addresses, versions = self._marks(args)
            # Taken before the values are computed, so that the next call notices a write in between.
            written = self._written
            memory = None if written is None else watch([_memory(args[i]) for i in self.watched], written)
            self._say(memory)
            values = tuple(self.prepare.run([*args, *self.prepare.tail], self.prepare.constants))
            binding = self.main.binding
            by_slot = {**self.main.fixed, **dict(enumerate(values, binding.inputs))}
            table = array("q", [by_slot[slot].data_ptr() for slot in binding.constants])
            sources = tuple(args[i].detach() for i in self.watched)
            ready = OnStream(self.main.device, values) if _on_gpu(self.main.device) else None
            self._prepared = prepared = _Prepared(addresses, versions, memory, sources, values, table, ready)
            self.prepare.executable.release()
            self.prepare.kept.clear()
            COUNTERS.add("constants_prepared")
            return prepared

    def _say(self, memory: Watch | None) -> None:
        """Warn once of a check that costs milliseconds at every call."""
        if memory is None or memory.hashed < _MUCH or self._said:
            return
        self._said = True
        _log.warning(
            "%d MiB of frozen parameters are hashed at every call, because their pages cannot be watched here; "
            "options={'check_frozen': False} turns that off; writes that PyTorch does not count then go unnoticed",
            memory.hashed >> 20,
        )

    def _marks(self, args: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Addresses and version counters of the watched arguments. Without a Python loop: this runs at every call."""
        watched: tuple[torch.Tensor, ...] = self._pick(args)
        return tuple(map(_ADDRESS, watched)), tuple(map(_VERSION, watched))

    def _changed(self, prepared: _Prepared, args: list[Any]) -> bool:
        if self._marks(args) != (prepared.addresses, prepared.versions):
            return True
        return prepared.memory is not None and bool(prepared.memory.written())


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _nothing(args: list[Any]) -> tuple[torch.Tensor, ...]:
    return ()


def _memory(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """First byte and size in bytes of the memory that a tensor may read, and whether it is private to this process."""
    private = not tensor.is_shared()  # type: ignore[no-untyped-call]
    return tensor.data_ptr(), span(tensor.shape, tensor.stride()) * tensor.element_size(), private
