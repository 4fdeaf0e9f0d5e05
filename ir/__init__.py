"""The foundation: task mappings, layouts, types, the tensor IR and its passes. Imports nothing else of taskmap.

The names a kernel author needs are here; each loads its module on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.ir.algebra.layout import column_major as column_major
    from taskmap.ir.algebra.layout import row_major as row_major
    from taskmap.ir.algebra.mapping import TaskMapping as TaskMapping
    from taskmap.ir.algebra.mapping import from_function as from_function
    from taskmap.ir.algebra.mapping import repeat as repeat
    from taskmap.ir.algebra.mapping import replicate as replicate
    from taskmap.ir.algebra.mapping import spatial as spatial

_HOME = {
    "TaskMapping": "taskmap.ir.algebra.mapping",
    "column_major": "taskmap.ir.algebra.layout",
    "from_function": "taskmap.ir.algebra.mapping",
    "repeat": "taskmap.ir.algebra.mapping",
    "replicate": "taskmap.ir.algebra.mapping",
    "row_major": "taskmap.ir.algebra.layout",
    "spatial": "taskmap.ir.algebra.mapping",
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
