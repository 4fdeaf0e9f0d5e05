"""Compiled graphs whose launches are recorded once and replayed as one CUDA graph, for each set of sizes.

A replay works on the memory that the recording worked on. So arguments are copied into tensors of the recording's own,
and results out of them; parameters are used where they are, and a recording is good for those addresses only.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch

from taskmap.compile.binding import Binding, View
from taskmap.compile.runtime import CompiledGraph, Place
from taskmap.targets.platform import Capturer, Runs
from taskmap.targets.streams import is_capturing

_log = logging.getLogger(__name__)

MOST_RECORDINGS = 64
"""For how many sets of sizes and parameters a graph is recorded; each keeps its memory."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """``inputs``: for each argument that is copied, its position and what it is copied into. ``values``: all slots."""

    replay: Callable[[], None]
    inputs: tuple[tuple[int, torch.Tensor], ...]
    values: list[Any]


class ReplayedGraph(CompiledGraph):
    """As CompiledGraph. A first call with some sizes runs the steps, a second records them, later ones replay that.

    ``constant_inputs``: the positions of arguments that stay where they are. Where recording fails, because an operator
    that PyTorch runs waits for the GPU, the steps are run at every call.
    """

    def __init__(
        self,
        binding: Binding,
        executable: Runs,
        device: torch.device,
        alignment: int | None,
        capturer: Capturer,
        constant_inputs: frozenset[int],
    ) -> None:
        super().__init__(binding, executable, device, alignment)
        self._capturer: Capturer | None = capturer
        self._constant = constant_inputs
        self._seen: set[Key] = set()
        self._recordings: dict[Key, Recording] = {}
        self._order = _Order()
        self._lock = RLock()

    def _run(self, values: list[Any], constants: array[int]) -> list[Any]:
        if self._capturer is None or is_capturing(self.device):  # the caller's graph holds the steps themselves
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
        """What a recording depends on beside the values of arguments."""
        shapes: list[Any] = []
        for position in range(self.binding.inputs):
            value = values[position]
            if not isinstance(value, torch.Tensor):
                shapes.append(value)
            elif position in self._constant:
                shapes.append(value.data_ptr())
            else:
                shapes.append(value.shape)
        return (*shapes, constants.tobytes())

    def _record(self, key: Key, values: list[Any], constants: array[int]) -> Recording | None:
        own = list(values)
        inputs: list[tuple[int, torch.Tensor]] = []
        for position in range(self.binding.inputs):
            given = values[position]
            if isinstance(given, torch.Tensor) and position not in self._constant:
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
            return self.results(self._taken_out(recording, values, places), places, dims)

    def _taken_out(self, recording: Recording, values: list[Any], places: dict[Any, Place]) -> list[Any]:
        """All slots: the caller's arguments, and copies of what the results lie in."""
        slots = [*values[: self.binding.inputs], *recording.values[self.binding.inputs :]]
        for slot in {out.slot for out in self.binding.outputs if isinstance(out, View)}:
            if slot >= self.binding.inputs:
                slots[slot] = _copy(slots[slot])
        return slots


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class _Order:
    """Has the work of one stream wait for that of the stream before it: both use one recording's memory."""

    def __init__(self) -> None:
        self._stream = 0
        self._event: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        if not _is_used():
            return
        stream = torch.cuda.current_stream()
        if self._event is not None and stream.cuda_stream != self._stream:
            stream.wait_event(self._event)
        self._stream = stream.cuda_stream

    def __exit__(self, *_: object) -> None:
        if _is_used():
            self._event = self._event or _new_event()
            self._event.record()


# These carry no types.
_is_used: Callable[[], bool] = torch.cuda.is_initialized
_new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event


class TorchCapturer:
    """Records by PyTorch's CUDA graphs, whose memory comes from a pool of this compiled graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Records the work of ``function``; raises RuntimeError where it waits for the GPU."""
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                function()
            replay: Callable[[], None] = graph.replay
            return replay
