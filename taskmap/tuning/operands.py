"""Random operands of a tunable operator, and the result that they should give, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from taskmap.ir.construct import constant_dim
from taskmap.ir.nodes import Buffer
from taskmap.ir.types import bf16
from taskmap.schedules import Problem
from taskmap.schedules.cpu.matmul_problem import MatmulProblem

Array = npt.NDArray[Any]
_KINDS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16}
_DIGITS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """The memory of one buffer: ``flat`` as stored, numpy's float16 and, for bf16, its bits."""

    buffer: Buffer
    flat: Array

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.flat.ctypes.data)

    def values(self) -> Array:
        """The logical tensor, in float64."""
        shape = [constant_dim(d) or 0 for d in self.buffer.shape]
        steps = self.buffer.strides or [prod(shape[d + 1 :]) for d in range(len(shape))]
        bytes_ = [(constant_dim(s) or 0) * self.flat.itemsize for s in steps]
        view = np.lib.stride_tricks.as_strided(self.flat, shape, bytes_)
        if self.buffer.dtype == bf16:
            return (view.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return view.astype(np.float64)

    def poison(self) -> None:
        """Fill it with what no result may hold: every byte set, which is NaN in every float type."""
        self.flat.view(np.uint8)[...] = 0xFF


def operand(buffer: Buffer, draw: np.random.Generator | None) -> Operand:
    """Memory for ``buffer``, on a cache line's boundary; uniform in [-1, 1) where ``draw`` is given."""
    count = prod(constant_dim(d) or 0 for d in buffer.shape)
    kind = np.dtype(_KINDS[buffer.dtype.name])
    raw = np.empty(count * kind.itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 64
    made = Operand(buffer, raw[first : first + count * kind.itemsize].view(kind))
    if draw is not None:
        values = draw.random(count, np.float32) * 2 - 1
        made.flat[...] = values.view(np.uint32) >> 16 if buffer.dtype == bf16 else values
    return made


def expected(problem: Problem, inputs: Sequence[Operand]) -> tuple[Array, float]:
    """The output in float64, and how far from it a result may lie anywhere."""
    return _EXPECTED[problem.template](problem, inputs)


def _matmul(problem: Problem, inputs: Sequence[Operand]) -> tuple[Array, float]:
    p = cast(MatmulProblem, problem)
    a, b = (x.values() for x in inputs)
    if p.packed is not None:
        b = b.transpose(1, 0, 2).reshape(p.k, -1)[None, :, : p.n]
    out = a @ b
    # Rounding errors of a sum of k products of uniform numbers, each partial sum about sqrt(k)/3: far less than this.
    sums = _DIGITS[p.accumulate.name] * (4 + p.k) * max(1.0, sqrt(p.k) / 8)
    return out, sums + _DIGITS[p.types[2].name] * float(np.abs(out).max(initial=1.0))


_EXPECTED: dict[str, Callable[[Problem, Sequence[Operand]], tuple[Array, float]]] = {"cpu.matmul": _matmul}
