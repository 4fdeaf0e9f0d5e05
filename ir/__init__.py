"""The foundation: task mappings, layouts, types, the tensor IR and its passes. Imports nothing else of taskmap.

In reading order: ``expressions``, ``nodes`` and ``types`` are the language itself; ``construct``, ``builder`` and
``script`` write it, ``visit`` and ``printer`` read it, ``passes`` rewrite it. Then

    algebra      task mappings and layouts: the distribution of work and data
    task         compute definitions, and the fused groups that schedules turn into kernels
    winograd     minimal filtering: matrices in exact rationals
    expansion    products that a depthwise convolution computes for itself
    recurrence, functions, workers    a node for loops with state, the functions of ``Call``, thread and block
    features, target, isa    processors and their instructions, as data
    analysis     facts about expressions, tasks and kernels
    last_block   the last of several blocks to arrive, which combines their results
    script       a Python function read into IR
    select       instructions for a statement, by equality saturation
    loops        loop shapes of a CPU: vectors, and grids that threads share
    lower        the passes that make a kernel printable
    decompose    schedules as values: specs, and the steps that decompose them
    interp       the meaning of a kernel, executed
    verify       the rules that every kernel obeys
    errors, source, util    errors, source locations, small helpers

The names that a kernel author needs are available here; each loads its module on first use (PEP 562).
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
