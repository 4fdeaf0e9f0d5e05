"""Running GPU schedules without a GPU: in the interpreter, before lowering and after it, against the definitions."""

from __future__ import annotations

from collections.abc import Mapping

from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target, cuda_target
from taskmap.ir.verify import RULES, verify
from taskmap.schedules import schedule
from tests.schedules.interpreting import interpreted
from tests.schedules.running import TOLERANCE, Case, compare_outputs


def cuda(isa: str = "sm_80") -> Target:
    """A small GPU of an architecture: two multiprocessors, so that small tasks fill it."""
    return cuda_target(isa, sms=2)


def check_kernel(case: Case, kernel: Kernel, tolerance: Mapping[str, float] | None = None) -> None:
    """``kernel`` keeps the rules and gives what the definitions of the case say."""
    verify(kernel, RULES)
    limits = {**TOLERANCE, **(tolerance or {})}
    compare_outputs(case, interpreted(kernel, kernel, case.arrays, case.dims), limits)


def check(case: Case, tolerance: Mapping[str, float] | None = None, isa: str = "sm_80") -> Kernel:
    """The schedule that a GPU of this architecture would get, checked."""
    kernel = schedule(case.task, cuda(isa))
    check_kernel(case, kernel, tolerance)
    return kernel
