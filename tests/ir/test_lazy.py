"""Functions that load with their first call."""

import subprocess
import sys

import pytest

from taskmap.ir.util.lazy import lazily


def test_the_function_is_called_and_named() -> None:
    join = lazily("posixpath", "join")
    assert join("a", "b") == "a/b"
    assert join("a", "b", "c") == "a/b/c"
    assert join.__name__ == "join"


def test_a_module_that_is_not_there_is_missed_at_the_call() -> None:
    absent = lazily("no_such_module", "function")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        absent()


def test_the_cpu_backend_does_not_wait_for_the_others() -> None:
    code = "import sys, taskmap.torch_backend; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "taskmap.compile.driver" in loaded
    late = (
        "taskmap.targets.cuda",
        "taskmap.targets.sim",
        "taskmap.backend.sim",
        "taskmap.schedules.cuda",
        "taskmap.ir.instructions_",
        "taskmap.ir.lower.gpu",
        "taskmap.ir.verify.rules",
        "taskmap.ir.decompose",
        "taskmap.schedules.strategies",
    )
    assert [name for name in loaded if name.startswith(late)] == []


def test_a_product_for_a_cpu_does_not_wait_for_the_instructions_of_gpus() -> None:
    code = """
import sys
import numpy as np
from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.fusion.planning import plan
from taskmap.graph.ops.matmul import mm
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.target import cpu_target
from taskmap.ir.types import f32
from taskmap.schedules import scheduled
x, w = (InputNode((), (256, 256), f32, i) for i in range(2))
(group,) = plan(Graph([x, w], [mm(x, w)])).steps
target = cpu_target("avx2", 2)
lower(scheduled(group.task, target).kernel, None, target)
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "taskmap.schedules.cpu.matmul.template" in loaded
    assert "taskmap.ir.isa.gpu" not in loaded
