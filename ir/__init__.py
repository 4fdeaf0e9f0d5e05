"""The foundation: task mappings, layouts, types, the tensor IR and its passes. Imports nothing else of taskmap.

The names a kernel author needs are here; each loads its module on first use (PEP 562).
"""

from importlib import import_module
from typing import Any

_HOME = {
    "repeat": "mapping",
    "spatial": "mapping",
    "row_major": "layout",
    "column_major": "layout",
}
__all__ = ["column_major", "repeat", "row_major", "spatial"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap.ir' has no attribute {name!r}")
    value = getattr(import_module(f"taskmap.ir.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
