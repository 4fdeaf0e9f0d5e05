"""Runs a kept ONNX model: an archive, or a chain of archives in which computed values decide which one comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from taskmap.archive.load import ArchivedModel, load_kept
from taskmap.archive.manifest import PortRecord
from taskmap.ir.errors import InputError
from taskmap.onnx.kept_models import Kept, find

Array = NDArray[Any]
Path = tuple[str, ...]


def path_from(shapes: Sequence[Sequence[int]], values: Sequence[str]) -> Path:
    """The path to what follows a model's first graph: the shapes of the inputs, and the values of those that decided,
    in hexadecimal."""
    return (str([list(shape) for shape in shapes]), *values)


@dataclass(slots=True, eq=False)
class KeptModel:
    """A kept model: called with arrays in order, it gives its outputs as a list of arrays.

    Raises the errors of loading an archive and of running it.
    """

    kept: Kept
    threads: int | None
    head: ArchivedModel = field(init=False)
    _following: dict[Path, KeptModel | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.head = load_kept(self.kept.archive, self.threads, self.kept.files)

    @property
    def inputs(self) -> tuple[PortRecord, ...]:
        """The inputs, in order."""
        return self.head.inputs

    @property
    def is_general(self) -> bool:
        """True if its plans serve all sizes."""
        return all(plan.binding.dims for plan in self.head.manifest.plans)

    def last(self, *inputs: Any) -> ArchivedModel | None:
        """The last archive of the chain for these inputs, whose outputs are the model's; None if no earlier run took
        this path."""
        if not self.head.has_plan(*inputs):
            return None
        if self.kept.deciding is None:
            return self.head
        live = self.head(*inputs)
        following = self._next(inputs, live)
        return None if following is None else following.last(*live)

    def count(self, *inputs: Any) -> int:
        """The number of archives that run for these inputs."""
        if self.kept.deciding is None:
            return 1
        live = self.head(*inputs)
        following = self._next(inputs, live)
        return 1 + (0 if following is None else following.count(*live))

    def __call__(self, *inputs: Any) -> list[Array]:
        """The outputs. Raises InputError if no earlier run took the path of these inputs."""
        results = self.head(*inputs)
        if self.kept.deciding is None:
            return results
        following = self._next(inputs, results)
        if following is None:
            raise InputError("nothing is kept for the values that decide what is computed")
        return following(*results)

    def _next(self, inputs: Sequence[Any], live: Sequence[Array]) -> KeptModel | None:
        path = self.kept.request.path or path_from([x.shape for x in inputs], self.head.deciding_values(inputs))
        path = (*path, *self.head.held_values(live, self.kept.deciding or ()))
        if path not in self._following:
            kept = find(replace(self.kept.request, path=path))
            self._following[path] = None if kept is None else KeptModel(kept, self.threads)
        return self._following[path]
