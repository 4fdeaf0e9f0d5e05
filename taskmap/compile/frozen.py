"""Frozen parameters: values that depend only on them are computed once, and again when one of them has changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import torch

from taskmap.backend.program.binding import span
from taskmap.backend.program.watch import Watch
from taskmap.calls.bound import BoundProgram, SplitProgram
from taskmap.calls.prepared import Called, Prepared, PreparedGraph
from taskmap.compile.cuda_graphs import ReplayedGraph
from taskmap.compile.runtime import CompiledGraph
from taskmap.compile.shared_constants import kept_once
from taskmap.targets.platform import LoadedPrograms, Platform
from taskmap.targets.streams import OnStream, refuse_capture
from taskmap.targets.torch_devices import torch_device
from taskmap.util.held_storages import HeldStorages, abandoned
from taskmap.util.metrics import COUNTERS

_log = logging.getLogger(__name__)
_MUCH = 16 << 20
_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")


@dataclass(frozen=True, slots=True)
class _Watched(Prepared):
    """The results of a preparation and their inputs: the address of each watched argument, and a watch of their memory
    or, where memory is not watched, their versions.

    ready: an event that streams other than the preparing one wait for; None off GPUs. ``sources`` hold the arguments'
    storages, so that no other tensor can get the same address meanwhile.
    """

    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    memory: Watch | None
    sources: HeldStorages
    ready: OnStream | None


class FrozenGraph(PreparedGraph):
    """A compiled graph with a prepare program, called as AOTAutograd calls it; see CompiledGraph.

    ``watched``: positions of the arguments that the prepare program reads. Every call looks for results prepared from
    arguments at the same addresses, which finds another parameter and a new ``.data``, and for writes to their memory
    since, by whatever way. TorchDynamo calls one graph for all layers, or models, of one class: the results for each
    are kept as long as its parameters are in use.

    ``written`` is the address of the function that looks for writes (see backend/program/watch.py), or None if memory
    is not watched: then version counters are compared, which in-place operators and load_state_dict change.
    """

    main: CompiledGraph
    _prepared: _Watched | None

    def __init__(
        self, main: CompiledGraph, prepare: CompiledGraph, watched: Sequence[int], written: int | None
    ) -> None:
        super().__init__(main, prepare)
        self._boxed_call = True  # on the instance, where wrappers of callables look for it
        self.watched = tuple(watched)
        self._written = written
        self._known: dict[tuple[int, ...], _Watched] = {}
        # The first is picked twice: an itemgetter of one item would not return a tuple.
        self._pick = itemgetter(*self.watched, *self.watched[:1]) if self.watched else _nothing
        self._said = False

    def __call__(self, args: list[Any]) -> list[Any]:
        """The graph's outputs for ``args``."""
        COUNTERS.count_call()
        prepared = self._valid(args)
        if prepared is None:
            prepared = self._prepare(args)
        if prepared.ready is not None:
            prepared.ready.wait()
        return self._main(prepared, args)

    def _valid(self, args: list[Any]) -> _Watched | None:
        """The results prepared from these arguments, or None if there are none or an argument has changed since.

        Without a Python loop: this runs at every call, on tensors that have left the caches since the last one.
        """
        watched: tuple[torch.Tensor, ...] = self._pick(args)
        addresses = tuple(map(_ADDRESS, watched))
        prepared = self._prepared
        if prepared is None or prepared.addresses != addresses:
            prepared = self._known.get(addresses)
            if prepared is None:
                return None
        changed = (
            tuple(map(_VERSION, watched)) != prepared.versions if prepared.memory is None else prepared.memory.written()
        )
        if changed:
            return None
        self._prepared = prepared
        return prepared

    def _prepare(self, args: list[Any]) -> _Watched:
        with self._lock:
            prepared = self._valid(args)
            if prepared is not None:
                return prepared  # another thread has done it meanwhile
            watched: tuple[torch.Tensor, ...] = self._pick(args)
            addresses = tuple(map(_ADDRESS, watched))
            old = self._known.get(addresses)
            prepared = None if old is None else _renewed(old)
            if prepared is None:
                refuse_capture(self.main.device, "its constants are computed")
                self._prepared = None
                self._forget(addresses)  # free the stale results before their successors are made
                prepared = self._made(args, watched, addresses, old)
            self._known[addresses] = self._prepared = prepared
            return prepared

    def _made(
        self, args: list[Any], watched: tuple[torch.Tensor, ...], addresses: tuple[int, ...], old: _Watched | None
    ) -> _Watched:
        """New results for ``args``; ``old`` ones were of other contents of the same memory."""
        # Taken before the values are computed, so that the next call notices a write in between.
        written = self._written
        avoided = () if old is None or old.memory is None else old.memory.avoided
        memory = None if written is None else Watch(map(_memory, watched), written, avoided)
        versions = tuple(map(_VERSION, watched)) if memory is None else ()
        self._say(memory)
        values, table = self._computed(args)
        ready = OnStream(self.main.device, values) if _on_gpu(self.main.device) else None
        self._free()
        return _Watched(values, table, addresses, versions, memory, HeldStorages(watched), ready)

    def _kept(self, values: tuple[Any, ...], args: list[Any]) -> tuple[Any, ...]:
        return kept_once(values, self.prepare.block, self._pick(args))

    def _forget(self, addresses: tuple[int, ...]) -> None:
        """Leaves out the results for arguments at ``addresses``, and those whose arguments nobody has any more."""
        others = {at: p for at, p in self._known.items() if at != addresses}
        gone = abandoned([p.sources for p in others.values()])
        self._known = {at: p for (at, p), no_user in zip(others.items(), gone, strict=True) if not no_user}

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


def _renewed(prepared: _Watched) -> _Watched | None:
    """``prepared`` under a new watch, if only memory beside its arguments was written."""
    memory = None if prepared.memory is None else prepared.memory.renewed()
    return None if memory is None else replace(prepared, memory=memory)


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _nothing(args: list[Any]) -> tuple[torch.Tensor, ...]:
    return ()


def _memory(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """First byte and size in bytes of the memory that a tensor may read, and whether it is private to this process."""
    private = not tensor.is_shared()  # type: ignore[no-untyped-call]
    return tensor.data_ptr(), span(tensor.shape, tensor.stride()) * tensor.element_size(), private


def on_tensors(
    parts: SplitProgram, ready: LoadedPrograms, platform: Platform, constant_inputs: frozenset[int] | None
) -> Called:
    """The programs of a graph, to be called with PyTorch's tensors. With ``constant_inputs`` launches are replayed;
    that is for inference, whose results are short-lived.
    """
    device = torch_device(platform.device)

    def runs(part: BoundProgram) -> CompiledGraph:
        return CompiledGraph(part, ready.executables[part.program], device, platform.alignment)

    capturer = None if constant_inputs is None else platform.capturer()
    main = runs(parts.main)
    if capturer is not None and constant_inputs is not None:
        executable = ready.executables[parts.main.program]
        main = ReplayedGraph(parts.main, executable, device, platform.alignment, capturer, constant_inputs)
    if parts.prepare is None:
        return main
    return FrozenGraph(main, runs(parts.prepare), parts.watched, ready.differ)
