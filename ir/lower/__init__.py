"""Lowering: from a scheduled kernel to one that a code generator can print. One straight list, in order."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.specs import LowerSpecs
from taskmap.ir.lower.tidy import Tidy, Unroll
from taskmap.ir.lower.vectorize import Vectorize
from taskmap.ir.nodes import Kernel

PIPELINE = (
    LowerSpecs(),
    Flatten(),
    Tidy(),
    Vectorize(),
    Unroll(),
    Tidy(divisions=True),
)


def lower(kernel: Kernel, observe: Callable[[str, Kernel], None] | None = None) -> Kernel:
    """The kernel after every pass of the pipeline; ``observe(pass name, kernel)`` is called after each.

    Raises LoweringError when a pass cannot keep the kernel's meaning.
    """
    for step in PIPELINE:
        kernel = step.run(kernel)
        if observe is not None:
            observe(step.name, kernel)
    return kernel
