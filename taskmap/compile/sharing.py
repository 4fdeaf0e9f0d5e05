"""Records of results that share memory. Imports neither torch nor sympy, because ONNX models have aliases, too."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from taskmap.ir.nodes import Dim
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class Shared:
    """A result that is a view of an argument or of another result: its shape, and its strides and offset there."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: DType
    argument: int | None = None
    result: int | None = None


@dataclass(frozen=True, slots=True)
class Aliases:
    """A key for the storage of each argument and each result; None for values other than tensors. Values with equal
    keys share memory.

    ``shared`` holds, by position, the results that are views of another value of a call. The last ``hidden`` results
    exist only as bases of views; the caller does not get them.
    """

    arguments: tuple[Hashable, ...]
    results: tuple[Hashable, ...]
    shared: dict[int, Shared] = field(default_factory=dict)
    hidden: int = 0
