"""Operators outside the standard: their parameters in one line, and a definition by standard operators.

ONNX Runtime documents its operators in ContribOperators.md, but ``onnx`` does not know them. A contract is written

    @composed("FastGelu", "X:F bias:F? -> Y:F", "alpha:f")

that is, inputs and results with their types, then attributes. ``?`` marks an optional parameter, ``*`` all further
inputs, of any types. ``F``, ``Q``, ``I``, ``A``, optionally with a digit, are type variables (floats, small integers,
integers, any type), and ``S`` any type or strings; the others are ONNX types (``f32``, ``u8``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import TensorProto, defs

MICROSOFT = "com.microsoft"
Schema = defs.OpSchema
Define = Callable[[Any], None]
"""Composes an operator in a `read.composition.Body`, which is built by the reader above."""

_PLAIN = {"f32": "float", "f16": "float16", "i32": "int32", "i64": "int64", "u8": "uint8", "i8": "int8", "bool": "bool"}
_SMALL = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
_CLASSES: dict[str, tuple[str, ...]] = {
    "F": ("float", "double", "float16", "bfloat16"),
    "Q": _SMALL,
    "I": ("int32", "int64"),
    "A": tuple(TensorProto.DataType.Name(v).lower() for v in TensorProto.DataType.values() if v not in (0, 8)),
}
_CLASSES["S"] = (*_CLASSES["A"], "string")
_KINDS = {
    "f": Schema.AttrType.FLOAT,
    "i": Schema.AttrType.INT,
    "s": Schema.AttrType.STRING,
    "fs": Schema.AttrType.FLOATS,
    "is": Schema.AttrType.INTS,
    "ss": Schema.AttrType.STRINGS,
}
_OPTIONS = {"?": Schema.FormalParameterOption.Optional, "*": Schema.FormalParameterOption.Variadic}

CONTRACTS: dict[tuple[str, str], defs.OpSchema] = {}
"""Maps an operator's domain and name to its contract."""
DEFINITIONS: dict[tuple[str, str], Define] = {}
"""Maps an operator's domain and name to the function that composes it of standard operators."""
REFUSED: dict[tuple[str, str], str] = {}
"""The reason for refusing an operator, by its domain and name; an empty name stands for the whole domain."""


def contract(domain: str, name: str, text: str, attributes: str = "") -> None:
    """Registers an operator of version 1, in the notation of this file."""
    inputs, results = text.split("->")
    used: dict[str, tuple[str, ...]] = {}
    CONTRACTS[domain, name] = Schema(
        name,
        domain,
        1,
        inputs=[_parameter(p, used) for p in inputs.split()],
        outputs=[_parameter(p, used) for p in results.split()],
        type_constraints=[(v, [f"tensor({t})" for t in types], "") for v, types in used.items()],
        attributes=[Schema.Attribute(n, _KINDS[k], required=False) for n, k in _pairs(attributes)],
    )


def composed(name: str, text: str, attributes: str = "", domain: str = MICROSOFT) -> Callable[[Define], Define]:
    """Registers an operator that the decorated function composes of standard operators."""
    contract(domain, name, text, attributes)

    def register(define: Define) -> Define:
        DEFINITIONS[domain, name] = define
        return define

    return register


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (part.partition(":") for part in text.split())]


def _parameter(text: str, used: dict[str, tuple[str, ...]]) -> defs.OpSchema.FormalParameter:
    name, _, kind = text.partition(":")
    option = _OPTIONS.get(kind[-1], Schema.FormalParameterOption.Single)
    kind = kind.rstrip("?*")
    if kind in _PLAIN:
        return Schema.FormalParameter(name, f"tensor({_PLAIN[kind]})", param_option=option)
    used[kind] = _CLASSES[kind[0]]
    several = option == Schema.FormalParameterOption.Variadic
    return Schema.FormalParameter(name, kind, param_option=option, is_homogeneous=not several, min_arity=int(several))
