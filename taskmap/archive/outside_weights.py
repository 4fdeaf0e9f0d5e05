"""Weights that a kept model leaves outside its archive, because the next run finds or makes their bytes itself.

A weight whose bytes lie in a file of the ONNX model is mapped from that file. Weights that the compiled graph computed
from these, such as packed ones, are computed again: that takes less time than verifying a stored copy's checksum.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from taskmap.archive.graph import AddWeight
from taskmap.archive.manifest import PlanRecord, array_binding
from taskmap.backend.program.arrays import address_of, dtype_held, element_strides
from taskmap.backend.program.binding import View, span
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.calls.bound import BoundProgram
from taskmap.calls.prepared import PreparedGraph
from taskmap.compile.session import Compilation
from taskmap.onnx.kept_models import Stamp

Array = NDArray[Any]
_MAPS = "/proc/self/smaps"
_LONGEST_NAME = 4096


class Outside(NamedTuple):
    """A place outside the archive: ``offset`` in ``file``, or, without a file, the number of a computed result."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Addresses from ``start`` to before ``end`` show the bytes of ``file`` from ``offset`` on."""

    start: int
    end: int
    file: str
    offset: int


class OutsideWeights:
    """The weights of one graph that a later run finds in ``files`` or computes from these."""

    def __init__(self, files: Mapping[str, Stamp | None], compilation: Compilation | None) -> None:
        self._mapped = _mappings(files)
        self._made: dict[int, tuple[int, int]] = {}
        self._prepare: BoundProgram | None = None
        call = None if compilation is None else compilation.call
        if compilation is None or not isinstance(call, PreparedGraph) or call.prepared is None or call.watched:
            return
        part, values = compilation.parts.prepare, call.prepared.values
        if part is not None and compilation.options.target in (None, "cpu") and self._is_worthwhile(part, values):
            self._prepare = part
            self._made = {address_of(t): (i, span_bytes(t)) for i, t in enumerate(values) if span_bytes(t)}

    def place_of(self, tensor: Array) -> Outside | None:
        """The place of a constant's bytes; None if the archive must hold them."""
        start, size = address_of(tensor), span_bytes(tensor)
        number, held = self._made.get(start, (0, 0))
        if 0 < size <= held:
            return Outside("", number)
        if not size:
            return None
        for m in self._mapped:
            if m.start <= start and start + size <= m.end:
                return Outside(m.file, m.offset + start - m.start)
        return None

    def plan(self, results: int, weight: AddWeight) -> PlanRecord | None:
        """The plan that computes the first ``results`` results; ``weight`` gives the number of a constant."""
        part = self._prepare
        if part is None or not results:
            return None
        binding, made = part.binding, {slot: number for number, slot in enumerate(part.binding.made)}
        memory = plan_memory(part.program)

        def constant(slot: int) -> int:
            tensor = part.fixed[slot]
            return len(made) + weight(tensor, dtype_held(tensor))

        outputs = []
        for view in binding.outputs[:results]:
            assert isinstance(view, View)
            outputs.append(View(made[view.slot], view.spec or replace(binding.made[view.slot], offset=0)))
        io, constants = tuple(made[slot] for slot in binding.io), tuple(map(constant, binding.constants))
        return PlanRecord(
            shapes=(), positive=(), checks=(), program=part.program, memory=memory,
            binding=array_binding(0, (), tuple(binding.made.values()), io, constants, tuple(outputs)),
            launch=tuple(source.symbol for source in launch_sources(part.program, memory)),
        )  # fmt: skip

    def _is_worthwhile(self, part: BoundProgram, values: Sequence[Array]) -> bool:
        """True if a program of constants alone makes much more than the archive would hold for it."""
        binding = part.binding
        if part.program.dims or binding.externs or not set(binding.io) <= set(binding.made):
            return False
        if not all(isinstance(v, View) and v.slot in binding.made for v in binding.outputs):
            return False
        held = sum(span_bytes(t) for t in part.fixed.values() if self.place_of(t) is None)
        return 2 * held <= sum(map(span_bytes, values))


def span_bytes(tensor: Array) -> int:
    """The bytes from a tensor's first element to its last."""
    return span(tensor.shape, element_strides(tensor)) * tensor.itemsize


def _mappings(files: Mapping[str, Stamp | None]) -> list[_Mapped]:
    """The memory of this process that shows bytes of ``files`` as they are on disk. Empty where the system cannot say.

    Pages that this process has changed are anonymous memory or swapped out, so a mapping with any is left out.
    """
    names = {(stamp[0], stamp[1]): name for name, stamp in files.items() if stamp is not None and _is_plain(name)}
    found: list[_Mapped] = []
    mapped: _Mapped | None = None
    try:
        with open(_MAPS, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                first, _, rest = line.partition(" ")
                if not first.endswith(":"):
                    mapped = _mapping(first, rest, names)
                elif mapped is not None and first == "Swap:":
                    found += [mapped] if rest.split()[0] == "0" else []
                    mapped = None
                elif mapped is not None and first == "Anonymous:" and rest.split()[0] != "0":
                    mapped = None
    except (OSError, ValueError, IndexError):
        return []
    return found


def _mapping(addresses: str, rest: str, names: Mapping[tuple[int, int], str]) -> _Mapped | None:
    """A mapping of one of the files ``names``, from the first line about it."""
    _, offset, device, inode, *_ = rest.split()
    major, minor = (int(n, 16) for n in device.split(":"))
    name = names.get((os.makedev(major, minor), int(inode)))
    start, end = (int(n, 16) for n in addresses.split("-"))
    return None if name is None else _Mapped(start, end, name, int(offset, 16))


def _is_plain(name: str) -> bool:
    """True if a manifest can hold the name."""
    return len(name) < _LONGEST_NAME and not any("\ud800" <= c <= "\udfff" for c in name)
