"""A pytest plugin that makes tests of the simulator run their kernels on the GPU instead.

python -m pytest -p benchmarks.gpu.plugin tests/backend/sim/test_instructions.py
"""

from __future__ import annotations

import inspect
import re

import pytest

from benchmarks.gpu import hardware
from taskmap.backend.sim import run as simulator

_ARCHITECTURE = re.compile(r"sm_(\d+)(a?)")


def pytest_configure() -> None:
    """Before any test is collected, because tests import the function by name."""
    simulator.run = hardware.run


_SIMULATOR_ONLY = re.compile(r"\bSimulationError\b|\)\.counters\b|\b(?:report|found)\.counters\b")
"""Facts that tests ask for and a GPU does not tell: the rule that a wrong kernel breaks, and the cost of a kernel."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests for another GPU, and those that only a simulator can answer."""
    function = getattr(item, "function", None)
    if function is not None and _SIMULATOR_ONLY.search(inspect.getsource(function)):
        pytest.skip("a GPU does not say what the simulator does")
    target = hardware.machine().target
    own = target.capability
    for number, special in _ARCHITECTURE.findall(item.name):
        if int(number) > own or (special and int(number) != own):
            pytest.skip(f"the GPU is sm_{own}")
    entry = getattr(item, "callspec", None) and item.callspec.params.get("entry")  # type: ignore[attr-defined]
    if entry is not None and not entry.targets(target):
        pytest.skip(f"the GPU, sm_{own}, has no {entry.name}")
