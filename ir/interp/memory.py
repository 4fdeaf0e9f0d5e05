"""Memory of the interpreter: bounds, initialisation, ownership and races are checked on every access."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.digits import Task
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import IndexOutOfRangeError, InputError, VerifyError
from taskmap.ir.interp.definitions import NUMPY_TYPES
from taskmap.ir.nodes import Buffer
from taskmap.ir.types import DType
from taskmap.ir.util.wording import by

Array = NDArray[Any]
Position = int | Array

_POISON = 0x5A
_FEW = 64


def poison(count: int, dtype: DType) -> Array:
    """``count`` conspicuous elements: NaN for floats, a pattern for integers, True for bool."""
    numpy_type = NUMPY_TYPES[dtype.name]
    if dtype.is_float:
        return np.full(count, np.nan, numpy_type)
    if dtype.is_bool:
        return np.full(count, True)
    pattern = np.frombuffer(bytes([_POISON]) * dtype.bytes, numpy_type)
    return np.full(count, pattern[0], numpy_type)


@dataclass(frozen=True, slots=True)
class CheckedAccess:
    """The identity behind an access: ``worker`` among those that run concurrently in ``epoch`` (0: no others).

    ``owner`` is the thread's number as an owner of distributed buffers.
    """

    epoch: int = 0
    worker: int = 0
    owner: int = 0


@dataclass(slots=True)
class Storage:
    """Flat elements; flags of those written; and, with concurrent workers, each element's last writer and reader. Not
    ``tracked``: the workers are ordered in ways that the interpreter does not follow."""

    data: Array
    written: Array | None = None
    wrote: dict[int, tuple[int, int]] = field(default_factory=dict)
    read: dict[int, tuple[int, int]] = field(default_factory=dict)
    tracked: bool = True

    @staticmethod
    def uninitialised(count: int, dtype: DType) -> Storage:
        """Poisoned storage without any element written."""
        return Storage(poison(count, dtype), np.zeros(count, np.bool_))


@dataclass(slots=True)
class Memory:
    """A buffer with known sizes, as a view of a storage."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: Storage
    _owned: dict[int, frozenset[Task]] = field(default_factory=dict)
    _owners: int = 0
    _contained: bool | None = None

    def load(self, indices: Sequence[Position], access: CheckedAccess, lenient: bool) -> Any:
        """The elements at ``indices``, ints or arrays of one length; ``lenient`` if uninitialised ones do no harm."""
        at = self.address(indices)
        storage = self.storage
        if self.buffer.owner is not None:
            self._check_owner(self.buffer.owner, indices, access)
        if storage.written is not None and not lenient and not _all(storage.written[at]):
            raise VerifyError(
                f"{self._element(indices)} is read before anything was written to it",
                why=f"{self.buffer!r} is uninitialised where it is allocated.",
            )
        if access.epoch and storage.tracked:
            self._track_read(at, access, indices)
        return storage.data[at]

    def store(self, indices: Sequence[Position], value: Any, access: CheckedAccess) -> None:
        """Write the elements at ``indices``."""
        at = self.address(indices)
        storage = self.storage
        if access.epoch and storage.tracked:
            self._track_write(at, access, indices)
        if self.buffer.owner is not None:
            self._check_owner(self.buffer.owner, indices, access)
        storage.data[at] = value
        if storage.written is not None:
            storage.written[at] = True

    def address(self, indices: Sequence[Position]) -> Position:
        """The addresses of the elements. IndexOutOfRangeError outside the shape or the storage."""
        for d, (i, n) in enumerate(zip(indices, self.shape, strict=True)):
            if not _within(i, n):
                raise IndexOutOfRangeError(
                    f"{self._element(indices)} is out of bounds",
                    why=f"dimension {d} of {self.buffer!r} has the extent {n}.",
                )
        if self.buffer.layout is not None:
            at = self._by_layout(indices)
        else:
            at = self.offset
            for i, stride in zip(indices, self.strides, strict=True):
                at = at + i * stride
        size = self.storage.data.size
        if self._contained is None:
            self._contained = self.buffer.layout is None and self._fits(size)
        if not self._contained and not _within(at, size):
            raise IndexOutOfRangeError(
                f"{self._element(indices)} lies outside its storage",
                why=f"its address is {at}, in elements, and the storage has {size}.",
            )
        return at

    def _fits(self, size: int) -> bool:
        """True if every element of the shape lies among ``size`` elements of storage."""
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = (self.offset + sum(f(0, e) for e in ends) for f in (min, max))
        return low >= 0 and high < size

    def _by_layout(self, indices: Sequence[Position]) -> Position:
        layout: Callable[..., int] = self.buffer.layout  # type: ignore[assignment]  # checked by the verifier
        if all(isinstance(i, int) for i in indices):
            return layout(*indices)
        return np.array([layout(*lane) for lane in _lanes(indices)], np.int64)

    def elements(self) -> Array:
        """The whole buffer as a logical array."""
        return self.storage.data[self._addresses()]

    def fill(self, values: Array) -> None:
        """Write a logical array."""
        self.storage.data[self._addresses()] = values

    def unwritten(self) -> tuple[int, ...] | None:
        """The index of an element that has not been written, or None."""
        if self.storage.written is None:
            return None
        missing = np.argwhere(~self.storage.written[self._addresses()])
        return tuple(int(i) for i in missing[0]) if len(missing) else None

    def _addresses(self) -> Array:
        if self.buffer.layout is not None:
            flat = [self.address(index) for index in itertools.product(*map(range, self.shape))]
            return np.array(flat, np.int64).reshape(self.shape)
        total = np.full(self.shape, self.offset, np.int64)
        for d, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            total += (np.arange(n) * stride).reshape([-1 if k == d else 1 for k in range(len(self.shape))])
        return total

    def _element(self, indices: Sequence[Position]) -> str:
        return f"{self.buffer.name}[{', '.join(str(i) for i in indices)}]"

    def _check_owner(self, owner: TaskMapping, indices: Sequence[Position], access: CheckedAccess) -> None:
        self._owners = self._owners or owner.num_workers
        worker = access.owner % self._owners
        if worker not in self._owned:
            self._owned[worker] = frozenset(owner(worker))
        owned = self._owned[worker]
        for lane in _lanes(indices):
            if lane not in owned:
                raise VerifyError(
                    f"worker {worker} accesses {self._element(indices)}, which it does not hold",
                    why=f"{self.buffer!r} is distributed by {owner}.",
                )

    def track_read(self, at: Array, access: CheckedAccess) -> None:
        """Record that elements, given by address, are read."""
        self._track_read(at, access, [at])

    def _track_read(self, at: Position, access: CheckedAccess, indices: Sequence[Position]) -> None:
        wrote, read = self.storage.wrote, self.storage.read
        me = (access.epoch, access.worker)
        for one in _each(at):
            last = wrote.get(one)
            if last is not None and last[0] == access.epoch and last[1] != access.worker:
                raise self._race("reads", access, "wrote", last[1], indices)
            other = read.get(one)
            several = other is not None and other[0] == access.epoch and other[1] != access.worker
            read[one] = (access.epoch, -1) if several else me

    def _track_write(self, at: Position, access: CheckedAccess, indices: Sequence[Position]) -> None:
        for did, seen in (("wrote", self.storage.wrote), ("read", self.storage.read)):
            for one in _each(at):
                last = seen.get(one)
                if last is not None and last[0] == access.epoch and last[1] != access.worker:
                    raise self._race("writes", access, did, last[1], indices)
        for one in _each(at):
            self.storage.wrote[one] = (access.epoch, access.worker)

    def _race(self, does: str, access: CheckedAccess, did: str, other: int, indices: Sequence[Position]) -> VerifyError:
        who = f"worker {other}" if other >= 0 else "another worker"
        return VerifyError(
            f"race on {self._element(indices)}",
            why=f"worker {access.worker} {does} it and {who} {did} it, and nothing orders the two.",
        )


def _all(flags: Any) -> bool:
    return bool(flags) if flags.ndim == 0 else bool(flags.all())


def _each(at: Position) -> Sequence[int]:
    return (at,) if isinstance(at, int) else np.atleast_1d(at).tolist()


def _lanes(indices: Sequence[Position]) -> Sequence[tuple[int, ...]]:
    """The index of each element: ints are the same for all."""
    count = max((i.size for i in indices if not isinstance(i, int)), default=1)
    every = ([i] if isinstance(i, int) else i.reshape(-1).tolist() for i in indices)
    return list(zip(*(e * count if len(e) == 1 else e for e in every), strict=True)) if indices else [()]


def _within(at: Position, size: int) -> bool:
    """True if all of ``at`` are in [0, size). Few are compared as ints of Python: calls of numpy cost more."""
    if isinstance(at, int):
        return 0 <= at < size
    if at.size > _FEW:
        return at.min() >= 0 and bool(at.max() < size)
    every = at.reshape(-1).tolist()
    return not every or (min(every) >= 0 and max(every) < size)


def region_indices(start: Sequence[int], extents: Sequence[int]) -> list[Array]:
    """The indices of a region's elements in order, one array for each dimension."""
    return [s + i for s, i in zip(start, _grid(tuple(extents)), strict=True)]


@lru_cache(maxsize=1024)
def _grid(extents: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(i.reshape(-1) for i in np.indices(extents, np.int64))


def adopt(buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, array: Array) -> Memory:
    """Memory that holds ``array``: the logical tensor, or its flat storage, which is then written in place.

    Raises InputError for an array of neither form, or of another element type.
    """
    if array.dtype != NUMPY_TYPES[buffer.dtype.name]:
        raise InputError(f"{buffer!r} is given an array of {array.dtype}")
    memory = Memory(buffer, shape, strides, offset, Storage(array))
    dense = buffer.layout is None and offset == 0 and strides == row_major(shape)
    if array.shape == shape and dense and array.flags.c_contiguous:
        memory.storage = Storage(array.reshape(-1))
        return memory
    if array.shape == shape:
        memory.storage = Storage(poison(span(buffer, shape, strides, offset), buffer.dtype))
        memory.fill(array)
        return memory
    if array.ndim != 1 or array.size < span(buffer, shape, strides, offset):
        raise InputError(
            f"{buffer!r} is given an array of shape {by(array.shape)}",
            why=f"its shape is {by(shape)} and its storage has {span(buffer, shape, strides, offset)} elements.",
        )
    return memory


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor with its last dimension contiguous."""
    steps = [1]
    for n in reversed(shape[1:]):
        steps.append(steps[-1] * n)
    return tuple(reversed(steps)) if shape else ()


def span(buffer: Buffer, shape: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """The number of elements that the storage needs."""
    if buffer.layout is not None:
        return int(buffer.layout.size)  # type: ignore[attr-defined]  # checked by the verifier
    if 0 in shape:
        return 0
    return offset + 1 + sum((n - 1) * max(s, 0) for n, s in zip(shape, strides, strict=True))
