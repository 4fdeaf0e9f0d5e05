"""The signature of a kernel that is called on tensors: which sizes its tensors share.

a[..., m, k], b[..., k, n]      each input with its sizes; ``...`` stands for the dimensions of a batch

The arguments of the function that makes the kernel are found by name: ``m`` is a size, known when the kernel runs, or,
annotated as int, when it is made; ``batch`` the sizes that ``...`` stands for; ``a`` the element type of ``a``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.ir.errors import InputError
from taskmap.ir.nodes import Var
from taskmap.ir.types import DType

_TENSOR = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class TensorPattern:
    """An input: its name, the names of its last dimensions, and ``batched`` if others may precede them."""

    name: str
    sizes: tuple[str, ...]
    batched: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs of a kernel, and the function's arguments that are declared as ints: kernels are made for each value.

    declared: their names. arguments: the names of all arguments.
    """

    inputs: tuple[TensorPattern, ...]
    declared: frozenset[str]
    arguments: tuple[str, ...]

    @staticmethod
    def of(function: Callable[..., Any], text: str) -> Signature:
        """Parses a signature. Raises InputError."""
        inputs, at = [], 0
        while at < len(text):
            found = _TENSOR.match(text, at)
            if found is None:
                hint = 'Write it as "a[..., m, k], b[..., k, n]".'
                raise InputError(f"{text[at:]!r} is not the signature of a tensor", hint=hint)
            names = tuple(n.strip() for n in found[2].split(",") if n.strip())
            batched = names[:1] == ("...",)
            inputs.append(TensorPattern(found[1], names[1:] if batched else names, batched))
            at = found.end()
        given = inspect.signature(function).parameters
        declared = frozenset(n for n, a in given.items() if a.annotation in (int, "int") and a.default is a.empty)
        return Signature(tuple(inputs), declared, tuple(given))

    def bind(self, name: str, shapes: Sequence[Sequence[Any]], dtypes: Sequence[DType]) -> dict[str, Any]:
        """The arguments that follow from tensors of these shapes and types: ints, symbolic sizes, types.

        Raises InputError for tensors that do not fit.
        """
        if len(shapes) != len(self.inputs):
            names = ", ".join(p.name for p in self.inputs)
            raise InputError(f"kernel {name!r} takes {len(self.inputs)} tensors ({names}), not {len(shapes)}")
        known: dict[str, Any] = {}
        batch: int | None = None
        for pattern, shape in zip(self.inputs, shapes, strict=True):
            lead = len(shape) - len(pattern.sizes)
            if lead < 0 or (lead and not pattern.batched) or (pattern.batched and batch not in (None, lead)):
                text = f"[{', '.join((['...'] if pattern.batched else []) + list(pattern.sizes))}]"
                raise InputError(f"kernel {name!r} takes {pattern.name}{text}, not {len(shape)} dimensions")
            batch = lead if pattern.batched else batch
            for size, n in zip(pattern.sizes, shape[lead:], strict=True):
                if known.setdefault(size, n) != n:
                    raise InputError(f"kernel {name!r} is called with two values of {size}: {known[size]} and {n}")
        arguments: dict[str, Any] = {s: int(n) if s in self.declared else Var(s) for s, n in known.items()}
        arguments["batch"] = tuple(Var(f"batch{i}") for i in range(batch or 0))
        arguments |= {p.name: t for p, t in zip(self.inputs, dtypes, strict=True)}
        return {a: arguments[a] for a in self.arguments if a in arguments}


def cache_key(arguments: Mapping[str, Any]) -> tuple[object, ...]:
    """Arguments as a key: symbolic sizes by name alone, types and declared sizes by value."""
    return tuple(
        (n, len(v) if isinstance(v, tuple) else "?" if isinstance(v, Var) else v) for n, v in arguments.items()
    )
