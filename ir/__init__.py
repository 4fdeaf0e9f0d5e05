"""The foundation: task mappings, layouts, types, the tensor IR and its passes. Imports nothing else of taskmap.

The names a kernel author needs are here; each loads its module on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.ir.layout import column_major as column_major
    from taskmap.ir.layout import row_major as row_major
    from taskmap.ir.mapping import TaskMapping as TaskMapping
    from taskmap.ir.mapping import from_function as from_function
    from taskmap.ir.mapping import repeat as repeat
    from taskmap.ir.mapping import replicate as replicate
    from taskmap.ir.mapping import spatial as spatial

_HOME = {
    "TaskMapping": "taskmap.ir.mapping",
    "column_major": "taskmap.ir.layout",
    "from_function": "taskmap.ir.mapping",
    "repeat": "taskmap.ir.mapping",
    "replicate": "taskmap.ir.mapping",
    "row_major": "taskmap.ir.layout",
    "spatial": "taskmap.ir.mapping",
}
__all__ = ["TaskMapping", "column_major", "from_function", "repeat", "replicate", "row_major", "spatial"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap.ir' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
