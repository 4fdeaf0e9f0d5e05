"""Compiled graphs whose launches are recorded once and replayed as one CUDA graph, for each set of sizes.

A replay works on the memory used by the recording. So arguments are copied into the recording's own tensors, and
results out of them; parameters are used in place, and a recording is valid only for their addresses.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch

from taskmap.backend.program.binding import View
from taskmap.calls.bound import BoundProgram
from taskmap.compile.runtime import CompiledGraph
from taskmap.targets.platform import Capturer, Runs
from taskmap.targets.streams import is_capturing, stream_number

_log = logging.getLogger(__name__)

MOST_RECORDINGS = 64
"""The number of sets of sizes and parameters that a graph is recorded for; each recording keeps its memory."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """``inputs``: for each argument that is copied, its position and the destination tensor. ``values``: all slots."""

    replay: Callable[[], None]
    inputs: tuple[tuple[int, torch.Tensor], ...]
    values: list[Any]


class ReplayedGraph(CompiledGraph):
    """As CompiledGraph. The first call with given sizes runs the steps, the second records them, later ones replay.

    ``constant_inputs``: the positions of arguments whose addresses do not change. If recording fails because an
    operator that PyTorch runs synchronises with the GPU, every call runs the steps.
    """

    def __init__(
        self,
        bound: BoundProgram,
        executable: Runs,
        device: torch.device,
        alignment: int | None,
        capturer: Capturer,
        constant_inputs: frozenset[int],
    ) -> None:
        super().__init__(bound, executable, device, alignment)
        self._capturer: Capturer | None = capturer
        self._given = tuple(i for i in range(self.binding.inputs) if i not in constant_inputs)
        # A graph has hundreds of parameters, but its steps read few of them: most only make constants.
        read = {*self.binding.io, *(view.slot for step in self.binding.externs for view in step.reads)}
        self._fixed = tuple(i for i in sorted(read) if i in constant_inputs)
        self._copied = sorted(
            {o.slot for o in self.binding.outputs if isinstance(o, View) and o.slot >= self.binding.inputs}
        )
        self._seen: set[Key] = set()
        self._recordings: dict[Key, Recording] = {}
        self._order = _Order()
        self._lock = RLock()

    def _run(self, values: list[Any], constants: array[int]) -> list[Any]:
        if self._capturer is None or is_capturing(self.device):  # the steps themselves go into the caller's graph
            return super()._run(values, constants)
        key = self._key(values, constants)
        with self._lock:
            recording = self._recordings.get(key)
            if recording is None and key in self._seen and len(self._recordings) < MOST_RECORDINGS:
                recording = self._record(key, values, constants)
            self._seen.add(key)
            if recording is not None:
                return self._replay(recording, values)
        return super()._run(values, constants)

    def _key(self, values: list[Any], constants: array[int]) -> Key:
        """The conditions of a recording, besides the values of arguments."""
        given = [values[i] for i in self._given]
        addresses = [values[i].data_ptr() for i in self._fixed]
        shapes = [x.shape if isinstance(x, torch.Tensor) else x for x in given]
        return (*shapes, *addresses, constants.tobytes())

    def _record(self, key: Key, values: list[Any], constants: array[int]) -> Recording | None:
        own = list(values)
        inputs: list[tuple[int, torch.Tensor]] = []
        for position in self._given:
            given = values[position]
            if isinstance(given, torch.Tensor):
                own[position] = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=self.device)
                own[position].copy_(given)
                inputs.append((position, own[position]))
        dims = self.read_dims(values)
        places = self.places(dims)
        assert self._capturer is not None
        filled = list(own)

        def work() -> None:
            filled[:] = own
            self.execute(filled, constants, dims, places)

        try:
            replay = self._capturer.capture(work)
        except Exception as error:
            _log.warning("taskmap runs a graph without CUDA graphs, because it cannot be recorded: %s", error)
            self._capturer = None
            return None
        self._recordings[key] = made = Recording(replay, tuple(inputs), filled)
        return made

    def _replay(self, recording: Recording, values: list[Any]) -> list[Any]:
        check = getattr(self.executable, "check", None)
        if check is not None:
            check()
        with self._order:
            for position, own in recording.inputs:
                own.copy_(values[position])
            recording.replay()
            dims = self.read_dims(values)
            places = self.places(dims)
            return self.results(self._taken_out(recording, values), places, dims)

    def _taken_out(self, recording: Recording, values: list[Any]) -> list[Any]:
        """All slots: the caller's arguments, and copies of the tensors that contain results."""
        slots = [*values[: self.binding.inputs], *recording.values[self.binding.inputs :]]
        for slot in self._copied:
            slots[slot] = _copy(slots[slot])
        return slots


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class _Order:
    """Makes the work of a stream wait for that of the previous stream: both use one recording's memory."""

    def __init__(self) -> None:
        self._stream = 0
        self._event: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        if not _is_used():
            return
        number = stream_number(torch.cuda.current_device())
        if self._event is not None and number != self._stream:
            torch.cuda.current_stream().wait_event(self._event)
        self._stream = number

    def __exit__(self, *_: object) -> None:
        if _is_used():
            self._event = self._event or _new_event()
            self._event.record()


# These functions have no type annotations.
_is_used: Callable[[], bool] = torch.cuda.is_initialized
_new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
