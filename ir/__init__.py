"""The foundation: task mappings, layouts, types, the tensor IR and its passes. Imports nothing else of taskmap.

The names a kernel author needs are here; each loads its module on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.ir.layout import column_major as column_major
    from taskmap.ir.layout import row_major as row_major
    from taskmap.ir.mapping import repeat as repeat
    from taskmap.ir.mapping import spatial as spatial

_HOME = {
    "column_major": "taskmap.ir.layout",
    "repeat": "taskmap.ir.mapping",
    "row_major": "taskmap.ir.layout",
    "spatial": "taskmap.ir.mapping",
}
__all__ = ["column_major", "repeat", "row_major", "spatial"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap.ir' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
