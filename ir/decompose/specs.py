"""The kinds of specs: products, copies, and initial values. Each has the primitives of ``strategy``.

MatMul(m, n, k, a=f16, b=f16)      c += a @ b
Move(f32[m, n])                    dst = src
Init                               every element = a value; accumulate_in makes it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import SCOPE_NAMES, Level
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.decompose.strategy import Primitives, Strategy
from taskmap.ir.expressions import Dim, Scope
from taskmap.ir.printer import print_dim
from taskmap.ir.types import DType, TensorType, f32


class Root(Primitives):
    """A spec with the primitives: the root of a tree."""

    __slots__ = ()

    def _tree(self) -> Strategy:
        assert isinstance(self, Spec)
        return Strategy(self)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class MatMul(Spec, Root):
    """c += a @ b, for matrices of m×k and k×n elements; with ``batch``, for as many of them.

    m, n, k and batch: ints, or sizes known when the kernel runs (``dim``). k may be several axes, of an a of m×k0×k1
    and a b of k0×k1×n: ``split`` cuts the first one that is longer than 1. a, b, c: element types, or tensor types with
    strides. ``accumulate_in`` sets c to its first value, which makes the whole c = init + a @ b.
    """

    def __init__(
        self, m: Dim, n: Dim, k: Dim | Sequence[Dim], *, a: DType | TensorType = f32, b: DType | TensorType = f32,
        c: DType | TensorType = f32, batch: Sequence[Dim] = (),
    ) -> None:  # fmt: skip
        lead = tuple(f"batch{i}" for i in range(len(batch)))
        sums = {f"k{i}": n for i, n in enumerate(k)} if isinstance(k, Sequence) else {"k": k}
        extents = (*zip(lead, batch, strict=True), ("m", m), ("n", n), *sums.items())
        pairs = (("a", a, ("m", *sums)), ("b", b, (*sums, "n")), ("c", c, ("m", "n")))
        operands = tuple(Operand.of(name, given, (*lead, *axes)) for name, given, axes in pairs)
        for name, value in (("extents", extents), ("operands", operands), ("level", Level.KERNEL)):
            object.__setattr__(self, name, value)

    @property
    def kind(self) -> str:
        """The name that steps of lowering ask for."""
        return "matmul"

    @property
    def tiled(self) -> tuple[str, ...]:
        """The axes of c."""
        return self.operands[-1].axes

    @property
    def summed(self) -> str:
        """The first axis of the sum that is longer than 1, or the last one."""
        sums = [(name, n) for name, n in self.extents if name not in self.tiled]
        return next((name for name, n in sums if static_size(n) != 1), sums[-1][0])

    @property
    def accumulated(self) -> str:
        """The operand to which products are added."""
        return "c"

    def moving(self, name: str, scope: Scope) -> Spec:
        """The copy of a or b into ``scope``."""
        return copy_of(self, name, scope, into=True)

    def storing(self, name: str, scope: Scope) -> Spec:
        """The copy of c from ``scope``."""
        return copy_of(self, name, scope, into=False)

    def setting(self, name: str, scope: Scope, value: float) -> Spec:
        """c = value, in ``scope``."""
        return Init.of(self, name, scope, value)

    def meaning(self, **arrays: NDArray[Any]) -> NDArray[Any]:
        """c + a @ b."""
        a, b, c = (arrays[name] for name in "abc")
        a, b = a.reshape(*c.shape[:-1], -1), b.reshape(*c.shape[:-2], -1, c.shape[-1])
        exact: NDArray[Any] = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
        return exact.astype(c.dtype)


def copy_of(spec: Spec, name: str, scope: Scope, *, into: bool) -> Move:
    """The copy of an operand into ``scope``, or out of it."""
    operand = spec.operand(name)
    assert operand is not None
    there = Operand("dst" if into else "src", operand.dtype, operand.axes, scope)
    here = Operand("src" if into else "dst", operand.dtype, operand.axes, operand.scope, operand.strides)
    made: Move = object.__new__(Move)
    sizes = zip(operand.axes, spec.shape(operand), strict=True)
    extents = tuple(dict(sizes).items())
    fields = (("extents", extents), ("operands", (here, there) if into else (there, here)), ("level", spec.level))
    for field, value in (*fields, ("name", name)):
        object.__setattr__(made, field, value)
    return made


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Move(Spec, Root):
    """dst = src, element by element: a copy between memories, or from one layout to another.

    shape: the type of both; dst: another type of the same shape, with strides of its own. name: of the operand of a
    larger spec that the copy serves.
    """

    name: str

    def __init__(self, shape: TensorType, dst: TensorType | None = None, *, name: str = "src") -> None:
        axes = tuple("ijkl"[: len(shape.shape)])
        to = dst or TensorType(shape.dtype, shape.shape)
        operands = (Operand.of("src", shape, axes), Operand.of("dst", to, axes))
        extents = tuple(zip(axes, shape.shape, strict=True))
        fields = (("extents", extents), ("operands", operands), ("level", Level.KERNEL), ("name", name))
        for field, value in fields:
            object.__setattr__(self, field, value)

    @property
    def kind(self) -> str:
        """The name that steps of lowering ask for."""
        return "move"

    @property
    def summed(self) -> str:
        """A copy sums nothing."""
        return ""

    def moving(self, name: str, scope: Scope) -> Spec:
        """The first half of a copy by way of ``scope``."""
        made = copy_of(self, name, scope, into=True)
        return made.derived(name=self.name)

    def meaning(self, **arrays: NDArray[Any]) -> NDArray[Any]:
        """The elements of src, in the type of dst."""
        return arrays["src"].astype(arrays["dst"].dtype if "dst" in arrays else arrays["src"].dtype)

    def __str__(self) -> str:
        src, dst = (SCOPE_NAMES[o.scope] for o in self.operands)
        return f"Move({self.name}:{_by(self)})({src}->{dst})({self.level.value})"


@dataclass(frozen=True, slots=True, repr=False)
class Init(Spec, Root):
    """Every element of ``name`` = value."""

    name: str
    value: float

    @staticmethod
    def of(spec: Spec, name: str, scope: Scope, value: float) -> Init:
        """Every element of an operand of ``spec`` = value, in ``scope``."""
        operand = spec.operand(name)
        assert operand is not None
        dst = Operand("dst", operand.dtype, operand.axes, scope)
        return Init(tuple((a, spec.extent(a)) for a in operand.axes), (dst,), spec.level, name, value)

    @property
    def kind(self) -> str:
        """The name that steps of lowering ask for."""
        return "init"

    def meaning(self, **arrays: NDArray[Any]) -> NDArray[Any]:
        """The value, as often as dst has elements."""
        return np.full_like(arrays["dst"], self.value)

    def __str__(self) -> str:
        return f"Init({self.name}:{_by(self)})({self.places})({self.level.value})"


def _by(spec: Spec) -> str:
    return "x".join(print_dim(n) for _, n in spec.extents)
